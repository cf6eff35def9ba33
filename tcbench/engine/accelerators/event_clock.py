"""A clock for GPUs: events on the stream that does the work.

A mark is an event in the stream, which the device passes later, so that marking does not wait. The time between two
events is the device's, with a resolution of about half a microsecond (CUDA Runtime API, "Event Management")."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal


@dataclass(eq=False)
class EventClock:
    """A `tcbench.engine.session.Clock` that reads device time. Timing N steps takes N + 1 events and one wait.

    `make_event` returns an event with `record(stream)` and `synchronize()`, as CuPy's; events are reused after each
    `read`. `stall(seconds)`, if available, keeps the stream busy without doing work."""

    of: ClassVar[Literal["device"]] = "device"
    stream: Any
    make_event: Callable[[], Any]
    elapsed_ms: Callable[[Any, Any], float]
    stall: Callable[[float], None] | None = None
    _pool: list[Any] = field(default_factory=list, init=False)
    _marks: int = field(default=0, init=False)

    def mark(self) -> None:
        if self._marks == len(self._pool):
            self._pool.append(self.make_event())
        self._pool[self._marks].record(self.stream)
        self._marks += 1

    def read(self) -> tuple[float, ...]:
        passed = self._pool[: self._marks]
        self._marks = 0
        if passed:
            passed[-1].synchronize()
        return tuple(self.elapsed_ms(before, after) * 1e-3 for before, after in itertools.pairwise(passed))
