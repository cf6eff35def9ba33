"""What the host itself tells of a session: the time, and the most memory that this process had."""

import itertools
import time
from pathlib import Path
from typing import Literal

_STATUS = Path("/proc/self/status")


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


def peak_resident_bytes() -> int:
    """The most memory this process ever had resident: VmHWM, since a child inherits `ru_maxrss` from its parent."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no VmHWM line")
