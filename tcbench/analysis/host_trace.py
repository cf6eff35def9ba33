"""The limit of training on a CPU that a trace recorded. Pure functions.

Each nanosecond of the steps has exactly one label, the first of these that applies:

1. input: the main thread is in a range in which the program gets its input
2. work: a thread is in an operator of the framework, outside of such a range of its own
3. communication: a thread is in a collective of Gloo, MPI or UCC, which the framework marks with a range
4. python: none of these, so Python, other code, or a wait that nothing marks

PyTorch runs the backward pass of a CPU on the thread that called it. Its phase therefore lasts from one operator of
automatic differentiation to the next, as long as no other operator begins in between.
"""

import bisect
import itertools
import re
from collections.abc import Sequence
from typing import cast

from tcbench.analysis import intervals
from tcbench.analysis.trace_causes import INPUT_RANGE, IdleCause, IdleGap, total_causes
from tcbench.analysis.trace_verdict import (
    BACKWARD,
    OUTSIDE,
    PhaseShare,
    TraceVerdict,
    judge,
    largest_limit,
    outermost_ranges,
)
from tcbench.analysis.trace_window import Window, find_steps
from tcbench.core.groups import grouped, summed
from tcbench.core.training_trace import ThreadKey, TrainingTrace, UserRange

COLLECTIVE_RANGE = re.compile(r"^(gloo|mpi|ucc):")
"""The names of the ranges that PyTorch writes around collectives of the libraries for CPUs."""

_Times = Sequence[tuple[int, int]]


def judge_training(trace: TrainingTrace) -> TraceVerdict | None:
    """Return the verdict on training on a GPU or on the CPU, or None if the trace has no work of either."""
    if not trace.is_on_cpu:
        return judge(trace)
    inputs = grouped((r.thread, (r.begin_ns, r.end_ns)) for r in trace.ranges if INPUT_RANGE.search(r.name))
    operators = {
        thread: _times(intervals.difference(times, intervals.union(inputs.get(thread, []))))
        for thread, times in trace.operators.items()
    }
    window = _host_window(trace, sorted(time for times in operators.values() for time in times))
    if window.length_ns <= 0:
        return None
    extent = [(window.begin_ns, window.end_ns)]
    waits = intervals.intersection(intervals.union(inputs.get(window.main, [])), extent)
    running = intervals.union(time for times in operators.values() for time in times)
    work = intervals.difference(intervals.intersection(running, extent), waits)
    collectives = intervals.union((each.begin_ns, each.end_ns) for each in collective_ranges(trace))
    labelled = intervals.union([*waits, *work])
    exposed = intervals.difference(intervals.intersection(collectives, extent), labelled)
    rest = intervals.difference(extent, intervals.union([*labelled, *exposed]))
    labels: tuple[tuple[IdleCause, intervals.Intervals], ...] = (("input", waits), ("python", rest))
    gaps = sorted(
        (IdleGap(begin, end, cause, None) for cause, times in labels for begin, end in _times(times)),
        key=lambda gap: gap.begin_ns,
    )
    causes = total_causes(gaps)
    work_ns, exposed_ns = round(intervals.length(work)), round(intervals.length(exposed))
    limit = largest_limit(work_ns, exposed_ns, causes)
    phases = _host_phases(trace, window, _times(work))
    return TraceVerdict(
        window=window,
        gaps=tuple(gaps),
        clocks_differ=False,
        limit="cannot be told" if not work else "compute-bound" if limit == "gpu-bound" else limit,
        device_name="CPU",
        source=window.source,
        step_name=window.step_name,
        n_steps=len(window.steps),
        window_ns=window.length_ns,
        recording_ns=trace.end_ns - trace.begin_ns,
        devices=0,
        busy_ns=work_ns + exposed_ns,
        communication_ns=round(intervals.length(intervals.intersection(collectives, extent))),
        exposed_ns=exposed_ns,
        recomputation_ns=0,
        causes=causes,
        launches=sum(phase.launches for phase in phases),
        phases=phases,
        bus_bytes_per_s=None,
        overheads=trace.overheads,
        ranks=trace.ranks,
        invalid_events=trace.invalid_events,
    )


def collective_ranges(trace: TrainingTrace) -> list[UserRange]:
    """Return the ranges of collectives between CPUs."""
    return [user_range for user_range in trace.ranges if COLLECTIVE_RANGE.match(user_range.name)]


def _host_window(trace: TrainingTrace, operators: _Times) -> Window:
    """Return the time from the begin of the first step to the end of the last, or that of all operators if there are no
    steps. It has length 0 if there are no operators either."""
    source, name, steps, main = find_steps(trace, [begin for begin, _ in operators])
    if not steps:
        main = max(trace.operators, key=lambda thread: len(trace.operators[thread]), default=main)
    times = steps or operators or [(0, 0)]
    begin_ns, end_ns = times[0][0], max(end for _, end in times)
    return Window(begin_ns, end_ns, 0, source, name, tuple(steps), main, (), ())


def _host_phases(trace: TrainingTrace, window: Window, work: _Times) -> tuple[PhaseShare, ...]:
    """Return the phases in the order in which they first begin: the outermost ranges within a step on the main thread,
    and outside of these the backward pass and the rest. The time in ranges of input is no work."""
    first, last = window.begin_ns, window.end_ns
    ranges = [(max(b, first), min(e, last), name) for b, e, name in outermost_ranges(trace, window)]
    ranges = [part for part in ranges if part[0] < part[1]]
    marked = [(begin, end) for begin, end, _ in ranges]
    extent = [(first, last)]
    backward = intervals.difference(intervals.intersection(backward_times(trace, window.main), extent), marked)
    rest = intervals.difference(extent, intervals.union([*marked, *backward]))
    parts = sorted(
        [*ranges, *((*part, BACKWARD) for part in _times(backward)), *((*part, OUTSIDE) for part in _times(rest))]
    )
    names, times = [name for _, _, name in parts], [(begin, end) for begin, end, _ in parts]
    begins = sorted(begin for thread_times in trace.operators.values() for begin, _ in thread_times)
    work_ns = summed(zip(names, intervals.covered(times, work), strict=True))
    counts = summed(
        (name, bisect.bisect_left(begins, end) - bisect.bisect_left(begins, begin)) for begin, end, name in parts
    )
    all_ns = summed((name, end - begin) for begin, end, name in parts)
    return tuple(
        PhaseShare(name, round(counts[name]), round(work_ns[name]), round(all_ns[name] - work_ns[name]))
        for name in all_ns
    )


def backward_times(trace: TrainingTrace, main: ThreadKey) -> list[tuple[int, int]]:
    """Return the time of the backward pass: the operators of automatic differentiation on any thread, joined where no
    other operator of the main thread lies between two of them."""
    backward = intervals.union(time for times in trace.backward.values() for time in times)
    other_operators = intervals.difference(trace.operators.get(main, ()), backward)
    gaps = [(end, begin) for (_, end), (begin, _) in itertools.pairwise(backward)]
    free = [gap for gap, used in zip(gaps, intervals.covered(gaps, other_operators), strict=True) if not used]
    return _times(intervals.union([*backward, *free]))


def _times(times: intervals.Intervals) -> list[tuple[int, int]]:
    """Return intervals as whole numbers, which they are: the functions of `intervals` are declared with floats."""
    return cast(list[tuple[int, int]], list(times))
