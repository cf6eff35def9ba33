"""The steps of a training trace, and the window of GPU time that they fill. Pure functions.

Steps are found on the host, from the first of these that a trace has:

1. ranges named `ProfilerStep#N`, which PyTorch's profiler writes at every call of its `step`
2. user ranges that repeat and in which nearly all launches between the first and the last of them lie
3. the time between the ends of the optimizer's updates

The window is GPU time: the host may run ahead, so that a step's work runs long after the step has ended on the host.
"""

import bisect
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tcbench.core.groups import grouped
from tcbench.core.recording import Activity, ApiCall
from tcbench.core.training_trace import NO_CORRELATION, ThreadKey, TrainingTrace

StepSource = Literal["profiler", "range", "optimizer", "none"]
"""The marks that steps were found by, as listed above; "none" if there are no steps."""

LEAST_REPEATS = 3
"""Ranges of one name are steps only if there are at least this many."""

LEAST_LAUNCHES = 0.8
"""Ranges of one name are steps only if at least this share of the launches between them lies in them."""

_PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
_OPTIMIZER = re.compile(r"Optimizer\.")
_UPDATE = re.compile(r"Optimizer\.step\b")


@dataclass(frozen=True)
class Window:
    """The window of a trace on one device, in nanoseconds.

    - `steps`: the begin and end of each step on the host, on the thread `main`.
    - `activities`: the work on the device that overlaps with the window, sorted by its begin.
    - `launches`: for each activity the call that launched it, None if the trace does not have it.
    """

    begin_ns: int
    end_ns: int
    device: int
    source: StepSource
    step_name: str
    steps: tuple[tuple[int, int], ...]
    main: ThreadKey
    activities: tuple[Activity, ...]
    launches: tuple[ApiCall | None, ...]

    @property
    def length_ns(self) -> int:
        """The length of the window."""
        return self.end_ns - self.begin_ns


def find_window(trace: TrainingTrace) -> Window | None:
    """Return the window of the device with the most work, or None if the trace has no work of a GPU."""
    calls = _calls_by_correlation(trace)
    device_activities = grouped((activity.device, activity) for activity in trace.activities)
    if not device_activities:
        return None
    device = max(device_activities, key=lambda number: sum(a.end_ns - a.begin_ns for a in device_activities[number]))
    activities = device_activities[device]
    launches = [calls.get((activity.process, activity.correlation)) for activity in activities]
    launch_times = sorted({launch.begin_ns for launch in launches if launch is not None})
    processes = {launch.process for launch in launches if launch is not None}  # others may have ranges of these names
    ranges = tuple(each for each in trace.ranges if each.thread[0] in processes)
    calls_there = tuple(call for call in trace.calls if call.process in processes)
    source, name, steps, main = find_steps(replace(trace, ranges=ranges, calls=calls_there), launch_times)
    begins = [begin for begin, _ in steps]

    def in_steps(launch: ApiCall | None) -> bool:
        if launch is None:
            return False
        index = bisect.bisect_right(begins, launch.begin_ns) - 1
        return index >= 0 and launch.begin_ns < steps[index][1]

    members = [activity for activity, launch in zip(activities, launches, strict=True) if in_steps(launch)]
    if steps and members:
        first_ns = members[0].begin_ns
        earlier_ends = [a.end_ns for a in activities if a.begin_ns < first_ns]
        # The GPU's time for the first step begins when the host begins it, or when earlier work ends if that is later.
        begin_ns = min(first_ns, max(steps[0][0], max(earlier_ends, default=steps[0][0])))
        end_ns = max(max(activity.end_ns for activity in members), steps[-1][1])
    else:
        source, name, steps = "none", "", ()
        begin_ns, end_ns = activities[0].begin_ns, max(activity.end_ns for activity in activities)
    shown = [
        (activity, launch)
        for activity, launch in zip(activities, launches, strict=True)
        if activity.begin_ns < end_ns and activity.end_ns > begin_ns
    ]
    shown_activities, shown_launches = tuple(a for a, _ in shown), tuple(launch for _, launch in shown)
    return Window(begin_ns, end_ns, device, source, name, tuple(steps), main, shown_activities, shown_launches)


def _calls_by_correlation(trace: TrainingTrace) -> dict[tuple[int, int], ApiCall]:
    """Return the calls by process and correlation, without correlations that several calls of a process have: which of
    these launched a work is not known."""
    calls: dict[tuple[int, int], ApiCall | None] = {}
    for call in trace.calls:
        key = call.process, call.correlation
        calls[key] = None if key in calls or call.correlation == NO_CORRELATION else call
    return {key: call for key, call in calls.items() if call is not None}


_Steps = tuple[StepSource, str, Sequence[tuple[int, int]], ThreadKey]


def find_steps(trace: TrainingTrace, launch_times: Sequence[int]) -> _Steps:
    """Return how steps were found, the name of their ranges, their times on the host, and their thread. On a CPU,
    operators take the place of launches."""
    marked = [each for each in trace.ranges if _PROFILER_STEP.fullmatch(each.name)]
    if marked:
        main = marked[0].thread
        times = [(each.begin_ns, each.end_ns) for each in marked if each.thread == main]
        return "profiler", "ProfilerStep", _disjoint(times), main
    best: tuple[int, int, _Steps] | None = None
    for (name, thread), ranges in grouped(
        ((repeated_name(r.name), r.thread), r) for r in trace.ranges if not _OPTIMIZER.match(r.name)
    ).items():
        times = [(each.begin_ns, each.end_ns) for each in ranges]
        if len(times) < LEAST_REPEATS or list(_disjoint(times)) != times:
            continue
        inside = sum(_count(launch_times, *time) for time in times)
        if inside >= max(1.0, LEAST_LAUNCHES * _count(launch_times, times[0][0], times[-1][1])):
            length_ns = sum(end - begin for begin, end in times)
            if best is None or (inside, length_ns) > best[:2]:
                best = inside, length_ns, ("range", name, times, thread)
    if best is not None:
        return best[2]
    updates = grouped(((each.name, each.thread), each) for each in trace.ranges if _UPDATE.match(each.name))
    if updates:
        # A program may have several optimizers, each with its own name, and one may call another.
        name, main = max(updates, key=lambda key: len(updates[key]))
        ends = sorted({each.end_ns for each in updates[name, main]})
        if len(ends) > LEAST_REPEATS:
            return "optimizer", "Optimizer.step", list(itertools.pairwise(ends)), main
    launchers = grouped(((call.process, call.thread), call) for call in trace.calls)
    main = max(launchers, key=lambda thread: len(launchers[thread]), default=(0, 0))
    return "none", "", (), main


def repeated_name(name: str) -> str:
    """Return the name of a range without its number: "step 12" and "step 13" are one name."""
    return re.sub(r"\d+", "N", name)


def _disjoint(times: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the times in order, without those that begin before an earlier one ends."""
    ordered: list[tuple[int, int]] = []
    for begin, end in sorted(times):
        if begin < end and (not ordered or begin >= ordered[-1][1]):
            ordered.append((begin, end))
    return ordered


def _count(sorted_times: Sequence[int], begin: int, end: int) -> int:
    """Return how many of the times lie in the interval."""
    return bisect.bisect_left(sorted_times, end) - bisect.bisect_left(sorted_times, begin)
