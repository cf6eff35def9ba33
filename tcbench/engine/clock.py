"""The host's clock, and the most memory that this process and its children had."""

import contextlib
import itertools
import os
import re
import resource
import time
from pathlib import Path
from typing import Literal

from tcbench.hardware import kernel, load

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
    """Return the most memory that this process had resident (VmHWM) with that of its children: what living ones hold
    alone now, and the peak of the largest that has ended. A child's `ru_maxrss` begins at its parent's peak (Linux
    keeps the larger in exec), so an ended child is known only where it had more than this process. Where Linux tells no
    VmHWM, `ru_maxrss` stands in for it."""
    own_bytes = _kilobytes(_STATUS, "VmHWM") or _largest_bytes(resource.RUSAGE_SELF)
    ended_bytes = _largest_bytes(resource.RUSAGE_CHILDREN)
    living_bytes = sum(
        _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Private_Clean|Private_Dirty")
        for pid in load.family(os.getpid())
        if pid != os.getpid()
    )
    return own_bytes + living_bytes + (ended_bytes if ended_bytes > own_bytes else 0)


def _largest_bytes(who: int) -> int:
    """Return the most memory that this process or one of its ended children had resident; 0 where that is unknown."""
    with contextlib.suppress(OSError):
        return int(resource.getrusage(who).ru_maxrss) * 1024
    return 0


def _kilobytes(file: Path, names: str) -> int:
    """Return the bytes that the lines of a file in /proc sum up to whose names match; 0 where it has none."""
    return sum(int(kilobytes) * 1024 for kilobytes in re.findall(rf"(?m)^(?:{names}):\s*(\d+)", kernel.text(file)))
