"""Waiting and transfer in the communication of the ranks of one training run, from a trace of each. Pure functions.

The k-th collective of a process group is the same operation on all its ranks. It ends on all of them at the same time,
and the last rank to arrive does not wait. Therefore, whatever the clocks, for one group that all traces share:

    transfer of a collective = its shortest duration over the ranks (as in TraceLens, `comm_latency`)
    waiting of a rank = the sum of its durations - the sum of their transfers
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tcbench.analysis import intervals
from tcbench.analysis.host_trace import collective_ranges
from tcbench.analysis.trace_verdict import TraceVerdict, busy_time, is_communication
from tcbench.core.groups import grouped
from tcbench.core.training_trace import TrainingTrace

Mismatch = Literal["none", "runs", "groups", "ends"]
"""The reason for which the traces of several ranks cannot be compared."""

_Times = list[tuple[int, int]]
_MOST_DISAGREEMENT = 0.1  # of the ends but for the offset of the clocks, as a share of the time of the collectives


@dataclass(frozen=True)
class RankWait:
    """A rank's collectives in the window: the time that they need without waiting, the waiting for other ranks, the
    part of it in which the rank did no other work, and the number in which it was the last to arrive."""

    rank: int
    verdict: TraceVerdict
    transfer_ns: int
    waiting_ns: int
    exposed_waiting_ns: int
    times_last: int


@dataclass(frozen=True)
class RankWaits:
    """The communication of several ranks in the process group that communicates most of those that all traces share;
    `collectives` is the number that each rank took part in."""

    mismatch: Mismatch
    ranks: tuple[RankWait, ...] = ()
    collectives: int = 0

    @property
    def slowest(self) -> RankWait | None:
        """The rank that the others wait for, None if they wait longer than it by less than 1% of the window."""
        first = min(self.ranks, key=lambda each: each.waiting_ns, default=None)
        return first if first and self.lead_ns(first) >= 0.01 * first.verdict.window_ns else None

    def lead_ns(self, slowest: RankWait) -> float:
        """Return how much longer the other ranks wait than the slowest, on average."""
        return statistics.mean(each.waiting_ns for each in self.ranks if each is not slowest) - slowest.waiting_ns


def rank_waits(traces: Sequence[tuple[TrainingTrace, TraceVerdict]]) -> RankWaits | None:
    """Return how long each rank waited for the others, or None if the traces do not name several ranks of a run."""
    ranks, world_sizes = {trace.rank for trace, _ in traces}, {trace.ranks for trace, _ in traces}
    if len(ranks) < 2 or world_sizes == {1}:
        return None
    if None in ranks or len(ranks) < len(traces) or len(world_sizes) > 1:
        return RankWaits("runs")
    traces = sorted(traces, key=lambda pair: pair[0].rank or 0)
    rank_groups = [_collectives(trace, verdict) for trace, verdict in traces]
    shared = set.intersection(*map(set, rank_groups))
    if not shared:
        return RankWaits("groups")
    busiest = max(sorted(shared), key=lambda g: sum(end - begin for groups in rank_groups for begin, end in groups[g]))
    rank_times = [groups[busiest] for groups in rank_groups]
    if not _end_together(rank_times):
        return RankWaits("ends")
    shortest_ns = [min(end - begin for begin, end in matched) for matched in zip(*rank_times, strict=True)]
    waits = tuple(_rank_wait(*pair, times, shortest_ns) for pair, times in zip(traces, rank_times, strict=True))
    return RankWaits("none", waits, len(shortest_ns))


def _collectives(trace: TrainingTrace, verdict: TraceVerdict) -> dict[str, _Times]:
    """Return the collectives that began in the steps, by process group, if they are enough to show whether ends agree.
    A trace that names no group has one."""
    steps = verdict.window.steps or ((trace.begin_ns, trace.end_ns),)
    launched = [("", each.begin_ns, (each.begin_ns, each.end_ns)) for each in collective_ranges(trace)]
    if not trace.is_on_cpu:
        launched = [
            (trace.process_groups.get((work.device, work.correlation), ""), call.begin_ns, (work.begin_ns, work.end_ns))
            for work, call in zip(verdict.window.activities, verdict.window.launches, strict=True)
            if call and is_communication(work)
        ]
    groups = grouped((group, times) for group, begin, times in launched if steps[0][0] <= begin < steps[-1][1])
    if trace.process_groups:
        groups.pop("", None)
    return {group: times for group, times in groups.items() if len(times) >= 3}


def _end_together(rank_times: Sequence[_Times]) -> bool:
    """Return whether the ranks have as many collectives, and the k-th of each rank ends at the same time."""
    for times in rank_times:
        offsets = [end - reference for (_, end), (_, reference) in zip(times, rank_times[0], strict=False)]
        clock_ns, communication_ns = statistics.median(offsets), sum(end - begin for begin, end in times)
        disagreement_ns = sum(abs(offset - clock_ns) for offset in offsets)
        if len(times) != len(rank_times[0]) or disagreement_ns > _MOST_DISAGREEMENT * communication_ns:
            return False
    return True


def _rank_wait(trace: TrainingTrace, verdict: TraceVerdict, times: _Times, shortest_ns: Sequence[int]) -> RankWait:
    """Return the waiting of a rank, from its collectives and the shortest duration of each over the ranks."""
    work: intervals.Intervals = intervals.union(period for periods in trace.operators.values() for period in periods)
    if not trace.is_on_cpu:
        work = busy_time(verdict.window, [each for each in verdict.window.activities if not is_communication(each)])
    waits = [(begin, end - transfer) for (begin, end), transfer in zip(times, shortest_ns, strict=True)]
    waiting_ns, times_last = sum(end - begin for begin, end in waits), sum(begin == end for begin, end in waits)
    exposed_ns = round(intervals.length(intervals.difference(intervals.union(waits), work)))
    return RankWait(trace.rank or 0, verdict, sum(shortest_ns), waiting_ns, exposed_ns, times_last)
