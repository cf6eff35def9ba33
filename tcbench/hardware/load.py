"""A trial's share of the processors, and who else had them, from what Linux counts.

Imports no framework. Source of the figures: proc(5), and Documentation/scheduler/sched-stats.rst of the kernel.
"""

import contextlib
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tcbench.core.record import HostLoad
from tcbench.hardware import kernel

_PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Counts:
    """Linux's counters at one moment, in seconds since the machine or a process started."""

    at_s: float  # by the clock
    processors: int  # that this process may use
    busy_s: float  # these processors, whoever used them
    stolen_s: float  # these processors, given to others by a hypervisor
    own_s: float  # computed by a process with all its descendants
    waited_s: float  # its threads, for a processor
    ended_s: float = 0.0  # the part of own_s that belongs to children which have ended
    throttled_s: float = 0.0  # a quota withheld from its control group


def slowdown() -> float:
    """How many times as long as alone work takes here that asks for all processors, by the load of the last minute: no
    more of it than runs now, since what has ended slows nothing. 1 where the load is unknown."""
    load = average()
    with contextlib.suppress(ValueError, IndexError):
        of_minute, _, _, tasks, *_ = kernel.text(_PROC / "loadavg").split()
        load = max(0.0, min(load, float(of_minute)))  # a sandbox's own file and the system's call may differ
        running = int(tasks.partition("/")[0])
        load = min(load, running - 1) if running > 0 else load  # who reads the file runs: 0 tells nothing
    return 1 + load / len(kernel.affinity())


def average() -> float:
    """Return how many processes ran over the last minute, on all of the machine's processors; 0 where it is unknown."""
    try:
        return max(0.0, os.getloadavg()[0])
    except OSError:
        return 0.0


def counts(root: int) -> Counts | None:
    """The counts of now, with those of the process `root` and all its descendants; None where Linux does not tell, or
    that process has ended: what it computed would count as others' work."""
    told = _counts(root, family(root), reaped=True)
    return told if _runs(root) else None


def own() -> Counts | None:
    """The counts of now, with those of this process alone."""
    return _counts(os.getpid(), [os.getpid()])


def _counts(root: int, pids: Iterable[int], reaped: bool = False) -> Counts | None:
    processors, missing = kernel.affinity(), kernel.affinity()
    try:
        busy_s = stolen_s = 0.0
        for name, line in re.findall(r"(?m)^cpu(\d+) (.*)$", kernel.text(_PROC / "stat")):
            if int(name) in processors:
                user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[:8])
                busy_s += (user + nice + system + irq + softirq) * _TICK_S
                stolen_s += steal * _TICK_S
                missing.discard(int(name))
        each = [_of_process(pid, reaped) for pid in pids]
    except (OSError, ValueError):
        return None
    if missing:  # others' time on these would be unknown
        return None
    own_s, waited_s, ended_s = (math.fsum(column) for column in zip((0.0, 0.0, 0.0), *each, strict=True))
    throttled_s = kernel.throttled_s(root)
    return Counts(time.monotonic(), len(processors), busy_s, stolen_s, own_s, waited_s, ended_s, throttled_s)


def between(before: Counts | None, after: Counts | None, outside_s: float = 0.0) -> HostLoad | None:
    """Return the load between two counts of one process; None where one is missing. `outside_s` is the time between
    them that does not belong to the pass.

    Linux does not say how long children that have ended waited for a processor. Where a share of the computing was
    theirs, the same share of the time in which the process computed nothing is taken for their waiting."""
    if before is None or after is None or after.at_s <= before.at_s:
        return None
    elapsed_s = max(after.at_s - before.at_s - outside_s, 1e-6)
    own_s = max(0.0, after.own_s - before.own_s)
    ended_share = min(1.0, max(0.0, after.ended_s - before.ended_s) / own_s) if own_s else 0.0
    ended_waited_s = ended_share * max(0.0, elapsed_s - own_s)
    return HostLoad(
        elapsed_s=elapsed_s,
        processors=after.processors,
        own_s=own_s,
        waited_s=max(0.0, after.waited_s - before.waited_s) + ended_waited_s,
        others_s=max(0.0, after.busy_s - before.busy_s - own_s),
        stolen_s=max(0.0, after.stolen_s - before.stolen_s),
        throttled_s=max(0.0, after.throttled_s - before.throttled_s),
    )


def together(loads: Sequence[HostLoad | None]) -> HostLoad | None:
    """The load of all these times; None where one is missing, or there are none."""
    known = [load for load in loads if load is not None]
    if not known or len(known) < len(loads):
        return None
    seconds = ("elapsed_s", "own_s", "waited_s", "others_s", "stolen_s", "throttled_s")
    sums = {name: math.fsum(getattr(load, name) for load in known) for name in seconds}
    return HostLoad(processors=known[-1].processors, **sums)


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
    """Whether a process has not ended. A zombie has, and not every kernel tells its times any more."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _of_process(pid: int, reaped: bool) -> tuple[float, float, float]:
    """Return the seconds that a process computed, that its threads waited on a run queue, and that its ended children
    computed, which are part of the first where `reaped` and 0 otherwise; zeros for a process that has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        computed_s, ended_s = (sum(map(int, fields[i : i + 2])) * _TICK_S for i in (11, 13))
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0, 0.0
    if not reaped:
        ended_s = 0.0
    delay_ns = 0
    for thread in (_PROC / str(pid) / "task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            delay_ns += int(thread.read_text().split()[1])
    return computed_s + ended_s, delay_ns * 1e-9, ended_s
