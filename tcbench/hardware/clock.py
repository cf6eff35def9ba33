"""The host's clock."""

import itertools
import time
from typing import Literal


class HostClock:
    """Marks with the monotonic high-resolution clock: right where a phase is done when it returns, as on a CPU."""

    of: Literal["host"] = "host"

    def __init__(self) -> None:
        self._marks_ns: list[int] = []

    def mark(self) -> None:
        self._marks_ns.append(time.perf_counter_ns())

    def read(self) -> tuple[float, ...]:
        marks, self._marks_ns = self._marks_ns, []
        return tuple((after - before) * 1e-9 for before, after in itertools.pairwise(marks))
