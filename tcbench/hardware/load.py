"""CPU time of a trial's processes and of everything else on the same processors, from Linux's counters. Sources:
proc(5), and Documentation/scheduler/sched-stats.rst of the kernel."""

import contextlib
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tcbench.core.record import HostLoad
from tcbench.hardware import kernel

_PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Counts:
    """Linux's CPU counters at one moment, in seconds since the machine or a process started."""

    at_s: float  # `time.monotonic`
    processors: int  # processors that this process may use
    busy_s: float  # busy time of these processors
    stolen_s: float  # time that a hypervisor took from these processors
    own_s: float  # CPU time of the process and all its descendants
    waited_s: float  # time that its threads waited for a processor
    ended_s: float = 0.0  # the part of own_s of children that have ended
    throttled_s: float = 0.0  # time that a quota withheld from its control group
    main_waited_s: float | None = None  # the part of waited_s of the main thread, if the process counts itself


def slowdown() -> float:
    """Return the factor by which the present load slows work that uses all processors; 1 if the load is unknown. Uses
    the load average of the last minute, limited to the number of tasks that run now."""
    load = average()
    with contextlib.suppress(ValueError, IndexError):
        minute_load, _, _, tasks, *_ = kernel.text(_PROC / "loadavg").split()
        load = max(0.0, min(load, float(minute_load)))  # in a sandbox, the file may differ from the system call
        running = int(tasks.partition("/")[0])
        load = min(load, running - 1) if running > 0 else load  # this process runs, so 0 is no information
    return 1 + load / len(kernel.affinity())


def average() -> float:
    """Return the machine's load average over the last minute; 0 if it is unknown."""
    try:
        return max(0.0, os.getloadavg()[0])
    except OSError:
        return 0.0


def counts(root: int) -> Counts | None:
    """Return the present counters for the process `root` and all its descendants; None if unavailable.

    Also None if the process has ended, since its CPU time would look like that of other processes."""
    present = _counts(root, family(root), reaped=True)
    return present if _runs(root) else None


def own_counts() -> Counts | None:
    """Return the present counters for this process without its children; None if unavailable."""
    return _counts(os.getpid(), [os.getpid()])


def _counts(root: int, pids: Iterable[int], reaped: bool = False) -> Counts | None:
    """Return the present counters of the processes `pids` and of the processors that this process may use; None if they
    are unavailable.

    `throttled_s` is that of `root`'s control group. With `reaped`, the CPU time includes that of ended children."""
    processors, missing = kernel.affinity(), kernel.affinity()
    try:
        busy_s = stolen_s = 0.0
        for name, line in re.findall(r"(?m)^cpu(\d+) (.*)$", kernel.text(_PROC / "stat")):
            if int(name) in processors:
                user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[:8])
                busy_s += (user + nice + system + irq + softirq) * _TICK_S
                stolen_s += steal * _TICK_S
                missing.discard(int(name))
        times = [_process_times(pid, reaped) for pid in pids]
    except (OSError, ValueError):
        return None
    if missing:  # the other processes' time on these processors is unknown
        return None
    own_s, waited_s, ended_s = (math.fsum(column) for column in zip((0.0, 0.0, 0.0), *times, strict=True))
    throttled_s = kernel.throttled_s(root)
    main_waited_s = _waited_s(_PROC / str(root) / "schedstat") if root == os.getpid() else None
    now_s = time.monotonic()
    return Counts(now_s, len(processors), busy_s, stolen_s, own_s, waited_s, ended_s, throttled_s, main_waited_s)


def between(before: Counts | None, after: Counts | None, outside_s: float = 0.0) -> HostLoad | None:
    """Return the load of the host between two counts for one process; None if either is missing or no time has passed.

    `outside_s` is the part of the interval that does not belong to the timed pass, in seconds. Linux does not count the
    time that ended children waited for a processor. It is estimated as the children's share of the process's CPU time,
    times the elapsed time without CPU use."""
    if before is None or after is None or after.at_s <= before.at_s:
        return None
    elapsed_s = max(after.at_s - before.at_s - outside_s, 1e-6)
    own_s = max(0.0, after.own_s - before.own_s)
    ended_share = min(1.0, max(0.0, after.ended_s - before.ended_s) / own_s) if own_s else 0.0
    ended_waited_s = ended_share * max(0.0, elapsed_s - own_s)
    is_known = before.main_waited_s is not None and after.main_waited_s is not None
    return HostLoad(
        elapsed_s=elapsed_s,
        processors=after.processors,
        own_s=own_s,
        waited_s=max(0.0, after.waited_s - before.waited_s) + ended_waited_s,
        others_s=max(0.0, after.busy_s - before.busy_s - own_s),
        stolen_s=max(0.0, after.stolen_s - before.stolen_s),
        throttled_s=max(0.0, after.throttled_s - before.throttled_s),
        step_waited_s=(after.main_waited_s or 0.0) - (before.main_waited_s or 0.0) if is_known else msgspec.UNSET,
    )


def sum_loads(loads: Sequence[HostLoad | None]) -> HostLoad | None:
    """Return the sum of several loads; None if one is missing or there are none."""
    present = [load for load in loads if load is not None]
    if not present or len(present) < len(loads):
        return None
    seconds = ["elapsed_s", "own_s", "waited_s", "others_s", "stolen_s", "throttled_s"]
    seconds += ["step_waited_s"] * all(load.step_waited_s is not msgspec.UNSET for load in present)
    sums = {name: math.fsum(getattr(load, name) for load in present) for name in seconds}
    return HostLoad(processors=present[-1].processors, **sums)


def family(root: int) -> Iterator[int]:
    """Yield the process ids of a process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def _runs(pid: int) -> bool:
    """Return whether a process is running. A zombie is not: some kernels no longer report its times."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _process_times(pid: int, reaped: bool) -> tuple[float, float, float]:
    """Return a process's CPU time, its threads' waiting time, and the CPU time of its ended children, in seconds.

    The children's time is part of the first figure; it is left out unless `reaped`. All are 0 if the process has ended.
    """
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        computed_s, ended_s = (sum(map(int, fields[i : i + 2])) * _TICK_S for i in (11, 13))
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0, 0.0
    if not reaped:
        ended_s = 0.0
    threads = (_PROC / str(pid) / "task").glob("*/schedstat")
    return computed_s + ended_s, math.fsum(_waited_s(thread) or 0.0 for thread in threads), ended_s


def _waited_s(schedstat: Path) -> float | None:
    """Return the time that a thread waited for a processor, from its file `schedstat`; None if it cannot be read."""
    try:
        return int(schedstat.read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return None
