"""Texts of the kernel, and the limits that control groups put on a process: processors, memory, throttled time.

Every group above a process limits it too, in version 1 and in version 2 of control groups; both may be mounted at once.
Sources: cgroups(7), and Documentation/scheduler/sched-bwc.rst and admin-guide/cgroup-v2.rst of the kernel.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_NO_MEMORY_LIMIT = 2**60
"""Version 1 writes a number of about 2**63 where a group has no memory limit."""


def text(path: Path) -> str:
    """Return what a file of /proc or /sys says, "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpu_quota() -> float:
    """Return the number of processors whose time the quotas of this process allow, 0 without a quota."""
    quotas = []
    for folder in _groups("cpu", "self"):
        of_v1 = f"{text(folder / 'cpu.cfs_quota_us')} {text(folder / 'cpu.cfs_period_us')}"
        with contextlib.suppress(ValueError, ZeroDivisionError):  # "max" or no such file
            allowed_us, period_us = map(int, (text(folder / "cpu.max") or of_v1).split())
            quotas.append(allowed_us / period_us)
    return min((quota for quota in quotas if quota > 0), default=0.0)


def memory_limit_bytes() -> int | None:
    """Return the smallest memory limit of this process' groups, None without a limit."""
    limits = []
    for folder in _groups("memory", "self"):
        with contextlib.suppress(ValueError):  # "max" or no such file
            limits.append(int(text(folder / "memory.max") or text(folder / "memory.limit_in_bytes")))
    return min((limit for limit in limits if 0 < limit < _NO_MEMORY_LIMIT), default=None)


def throttled_s(pid: int) -> float:
    """Return the processor time that quotas have withheld from the groups of a process since these exist. Where groups
    are nested they withhold the same time, so that the largest figure counts."""
    seconds = [0.0]
    for folder in _groups("cpu", str(pid)):
        for name, value in re.findall(r"(?m)^throttled_(usec|time) (\d{1,18})$", text(folder / "cpu.stat")):
            seconds.append(int(value) * (1e-6 if name == "usec" else 1e-9))
    return max(seconds)


def _groups(controller: str, process: str) -> Iterator[Path]:
    """Yield the folders of a process' groups of a controller, and of the groups above, as far as they are mounted."""
    mounts = list(_mounts())
    for line in text(_PROC / process / "cgroup").splitlines():
        if line.count(":") < 2:
            continue
        _, controllers, group = line.split(":", 2)
        for mounted, root, point in mounts:
            if (controller in mounted and controller in controllers.split(",")) or (not mounted and not controllers):
                # A container sees its own group at the mount point, whatever /proc calls that group.
                below = Path(group).relative_to(root) if Path(group).is_relative_to(root) else Path()
                folder = point if ".." in below.parts else point / below
                yield from (above for above in (folder, *folder.parents) if above.is_relative_to(point))


def _mounts() -> Iterator[tuple[frozenset[str], str, Path]]:
    """Yield the mounted hierarchies: their controllers (none: version 2), the group mounted there, the mount point."""
    for line in text(_PROC / "self" / "mountinfo").splitlines():
        places, _, described = line.partition(" - ")
        kind, _, options = [*described.split(), "", "", ""][:3]
        if kind in ("cgroup", "cgroup2") and len(places.split()) > 4:
            root, point = (place.replace(r"\040", " ") for place in places.split()[3:5])
            yield frozenset(options.split(",") if kind == "cgroup" else ()), root, Path(point)


def affinity() -> set[int]:
    """Return the processors that this process may run on; where the system does not tell, as a sandbox may not, all of
    the machine's."""
    with contextlib.suppress(OSError):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))
