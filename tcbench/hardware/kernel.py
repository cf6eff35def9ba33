"""Reading files of the Linux kernel, and the limits of a process's control groups: CPU quota, memory, throttled time.

The parents of a process's group limit it too. Versions 1 and 2 of control groups may both be mounted.
Sources: cgroups(7), and Documentation/scheduler/sched-bwc.rst and admin-guide/cgroup-v2.rst of the kernel."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_NO_MEMORY_LIMIT = 2**60
"""Version 1 reports about 2**63 for a group without a memory limit."""


def text(path: Path) -> str:
    """Return the text of a file of /proc or /sys, "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpu_quota() -> float:
    """Return the CPU quota of this process, in processors; 0 without a quota."""
    quotas = []
    for folder in _groups("cpu", "self"):
        v1_quota = f"{text(folder / 'cpu.cfs_quota_us')} {text(folder / 'cpu.cfs_period_us')}"
        with contextlib.suppress(ValueError, ZeroDivisionError):  # "max" or no such file
            allowed_us, period_us = map(int, (text(folder / "cpu.max") or v1_quota).split())
            quotas.append(allowed_us / period_us)
    return min((quota for quota in quotas if quota > 0), default=0.0)


def memory_limit_bytes() -> int | None:
    """Return the smallest memory limit of this process's groups, None without a limit."""
    limits = []
    for folder in _groups("memory", "self"):
        with contextlib.suppress(ValueError):  # "max" or no such file
            limits.append(int(text(folder / "memory.max") or text(folder / "memory.limit_in_bytes")))
    return min((limit for limit in limits if 0 < limit < _NO_MEMORY_LIMIT), default=None)


def memory_left_bytes() -> int | None:
    """Return how much more memory the limits of this process's groups leave, None without a limit. Files that the
    kernel caches and can drop do not count as used."""
    left_bytes = []
    for folder in _groups("memory", "self"):
        with contextlib.suppress(ValueError):  # "max" or no such file
            limit = int(text(folder / "memory.max") or text(folder / "memory.limit_in_bytes"))
            used = int(text(folder / "memory.current") or text(folder / "memory.usage_in_bytes"))
            names = "total_inactive_file", "inactive_file"  # version 1 counts the groups below only in the first
            stat = text(folder / "memory.stat")
            cached = next(filter(None, (re.search(rf"(?m)^{name} (\d{{1,18}})$", stat) for name in names)), None)
            if 0 < limit < _NO_MEMORY_LIMIT:
                left_bytes.append(max(0, limit - used + (int(cached[1]) if cached else 0)))
    return min(left_bytes, default=None)


def throttled_s(pid: int) -> float:
    """Return the processor time that quotas have withheld from a process's groups since their creation.

    Nested groups count the same time, so this is the largest of their figures and not the sum."""
    seconds = [0.0]
    for folder in _groups("cpu", str(pid)):
        for name, value in re.findall(r"(?m)^throttled_(usec|time) (\d{1,18})$", text(folder / "cpu.stat")):
            seconds.append(int(value) * (1e-6 if name == "usec" else 1e-9))
    return max(seconds)


def _groups(controller: str, process: str) -> Iterator[Path]:
    """Yield the mounted folders of a process's control groups for a controller such as "cpu", and of their parent
    groups. `process` is a process id or "self"."""
    mounts = list(_mounts())
    for line in text(_PROC / process / "cgroup").splitlines():
        if line.count(":") < 2:
            continue
        _, controllers, group = line.split(":", 2)
        for mounted, root, point in mounts:
            if (controller in mounted and controller in controllers.split(",")) or (not mounted and not controllers):
                # In a container the mount point shows the container's group, although /proc may give another path.
                below = Path(group).relative_to(root) if Path(group).is_relative_to(root) else Path()
                folder = point if ".." in below.parts else point / below
                yield from (above for above in (folder, *folder.parents) if above.is_relative_to(point))


def _mounts() -> Iterator[tuple[frozenset[str], str, Path]]:
    """Yield each mounted hierarchy: its controllers (empty for version 2), its root group, and its mount point."""
    for line in text(_PROC / "self" / "mountinfo").splitlines():
        places, _, described = line.partition(" - ")
        kind, _, options = [*described.split(), "", "", ""][:3]
        if kind in ("cgroup", "cgroup2") and len(places.split()) > 4:
            root, point = (place.replace(r"\040", " ") for place in places.split()[3:5])
            yield frozenset(options.split(",") if kind == "cgroup" else ()), root, Path(point)


def affinity() -> set[int]:
    """Return the processors that this process may run on; all of the machine's if a sandbox hides the affinity mask."""
    with contextlib.suppress(OSError):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))
