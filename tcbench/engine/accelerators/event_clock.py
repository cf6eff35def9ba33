"""A GPU's clock: events on the stream that the work is on.

A mark is an event in the stream: it is passed when the device gets there, so marking waits for nothing. Two events that
follow each other tell how long the device took from one to the next (resolution about half a microsecond: CUDA Runtime
API, section "Event Management")."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal


@dataclass(eq=False)
class EventClock:
    """See `tcbench.engine.session.Clock`. Events are made once and used again after each `read`, so that a block of N
    steps costs N+1 records and one wait. An event is one such as CuPy's: `record(stream)`, `synchronize()`. `stall`
    gives the stream work that lasts so many seconds and does nothing, where the device can tell so what it needs."""

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
