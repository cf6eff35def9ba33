"""The host's clock, and the peak memory of this process and its children."""

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
    """A clock of the host's time, for sessions whose phases are done when they return, as on a CPU."""

    of: Literal["host"] = "host"

    def __init__(self) -> None:
        self._marks_ns: list[int] = []

    def mark(self) -> None:
        """Set a mark."""
        self._marks_ns.append(time.perf_counter_ns())

    def read(self) -> tuple[float, ...]:
        """Return the seconds between successive marks and forget the marks."""
        marks, self._marks_ns = self._marks_ns, []
        return tuple((after - before) * 1e-9 for before, after in itertools.pairwise(marks))


def peak_resident_bytes() -> int:
    """Return the peak resident memory of this process and its children.

    It is the sum of this process's peak (VmHWM, else `ru_maxrss`), the private memory that living children have now,
    and the peak of the largest ended child. That child counts only if its peak exceeds this process's, because a
    child's `ru_maxrss` starts at its parent's peak (Linux keeps the larger value in exec)."""
    own_bytes = _sum_bytes(_STATUS, "VmHWM") or _peak_bytes(resource.RUSAGE_SELF)
    ended_bytes = _peak_bytes(resource.RUSAGE_CHILDREN)
    return own_bytes + _private_bytes_of_children(os.getpid()) + (ended_bytes if ended_bytes > own_bytes else 0)


def peak_bytes_of(pid: int) -> int:
    """Return the peak resident memory of a living process, and the private memory that its children have now."""
    return _sum_bytes(Path(f"/proc/{pid}/status"), "VmHWM") + _private_bytes_of_children(pid)


def _private_bytes_of_children(pid: int) -> int:
    """Return the private memory that all living descendants of a process have now."""
    return sum(
        _sum_bytes(Path(f"/proc/{child}/smaps_rollup"), "Private_Clean|Private_Dirty")
        for child in load.family(pid)
        if child != pid
    )


def _peak_bytes(who: int) -> int:
    """Return the peak resident memory of this process (RUSAGE_SELF) or of its largest ended child (RUSAGE_CHILDREN).
    Returns 0 if it is unknown."""
    with contextlib.suppress(OSError):
        return int(resource.getrusage(who).ru_maxrss) * 1024
    return 0


def _sum_bytes(file: Path, names: str) -> int:
    """Return the sum, in bytes, of the lines of a file in /proc whose names match the regular expression `names`."""
    return sum(int(kilobytes) * 1024 for kilobytes in re.findall(rf"(?m)^(?:{names}):\s*(\d+)", kernel.text(file)))
