"""Waiting and transfer in the communication of the ranks of one training run, from a trace of each. Pure functions.

The k-th collective of a process group is the same operation on all its ranks. A rank that arrives early waits for the
others, so that its collective takes longer. The last one to arrive does not wait, and a collective ends on all ranks at
the same time. Therefore, without a clock that the ranks share:

    transfer of a collective = its shortest duration over the ranks
    waiting of a rank = the sum of its durations - the sum of their transfers

TraceLens computes the transfer in the same way (`comm_latency` in its nccl_analyser.py). It matches collectives by
their order alone. Here the ends show whether the matches are right: between two ranks the ends differ by the offset of
their clocks only, which hardly changes during a recording.
"""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tcbench.analysis import intervals
from tcbench.analysis.host_trace import collective_ranges
from tcbench.analysis.trace_verdict import TraceVerdict, busy_time, is_communication
from tcbench.core.groups import grouped
from tcbench.core.training_trace import TrainingTrace, UserRange

Mismatch = Literal["none", "too few", "counts", "names", "ends"]
"""The reason for which the collectives of several ranks cannot be matched."""

LEAST_COLLECTIVES = 3
"""Fewer collectives than this do not show whether their ends agree."""

MOST_DISAGREEMENT = 0.1
"""The ends may disagree by this share of the time of the collectives."""

LEAST_LEAD = 0.01
"""A rank is the slowest only if the others wait longer than it by at least this share of the window, on average."""


@dataclass(frozen=True)
class RankWait:
    """A rank's collectives in the window: the time that they need without waiting, the waiting for other ranks, the
    part of it in which the rank did no other work, and the number in which it was the last to arrive."""

    rank: int
    n_steps: int
    window_ns: int
    transfer_ns: int
    waiting_ns: int
    exposed_ns: int
    times_last: int


@dataclass(frozen=True)
class RankWaits:
    """The communication of several ranks. `world_size` is the number of ranks of the run, of which `ranks` have a
    trace; `collectives` is the number that each rank took part in, the largest if they differ."""

    mismatch: Mismatch
    world_size: int
    ranks: tuple[RankWait, ...] = ()
    collectives: int = 0

    @property
    def slowest(self) -> RankWait | None:
        """The rank that the others wait for, None if no rank is much slower than the others."""
        first = min(self.ranks, key=lambda each: each.waiting_ns, default=None)
        return first if first and self.lead_ns(first) >= LEAST_LEAD * first.window_ns else None

    def lead_ns(self, slowest: RankWait) -> float:
        """Return how much longer the other ranks wait than the slowest, on average."""
        return statistics.mean(each.waiting_ns for each in self.ranks if each is not slowest) - slowest.waiting_ns


def rank_waits(traces: Sequence[tuple[TrainingTrace, TraceVerdict]]) -> RankWaits | None:
    """Return the waiting of the ranks that the traces are from, or None if they are not from ranks of one run."""
    ranks = {trace.rank: (trace, verdict) for trace, verdict in traces if trace.rank is not None}
    sizes = {trace.ranks for trace, _ in ranks.values()}
    if len(ranks) < max(2, len(traces)) or len(sizes) != 1:
        return None
    (world_size,) = sizes
    groups = grouped(
        (group, (rank, collectives))
        for rank, (trace, verdict) in sorted(ranks.items())
        for group, collectives in _collectives(trace, verdict).items()
    )
    shared = [dict(members) for members in groups.values() if len(members) > 1]
    mismatch = _mismatch(shared)
    if mismatch != "none":
        return RankWaits(mismatch, world_size)
    waits: dict[int, list[tuple[int, int]]] = {rank: [] for rank in ranks}
    times_last, transfers_ns = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0)
    for members in shared:
        for matched in zip(*members.values(), strict=True):
            shortest_ns = min(each.duration_ns for each in matched)
            for rank, each in zip(members, matched, strict=True):
                waits[rank].append((each.begin_ns, each.end_ns - shortest_ns))
                transfers_ns[rank] += shortest_ns
                times_last[rank] += each.duration_ns == shortest_ns
    rank_times = []
    for rank, (trace, verdict) in sorted(ranks.items()):
        exposed = intervals.difference(intervals.union(waits[rank]), _work(trace, verdict))
        waiting_ns = sum(end - begin for begin, end in waits[rank])
        figures = transfers_ns[rank], waiting_ns, round(intervals.length(exposed)), times_last[rank]
        rank_times.append(RankWait(rank, verdict.n_steps, verdict.window_ns, *figures))
    most = max(map(len, waits.values()))
    return RankWaits("none", world_size, tuple(rank_times), most)


def _collectives(trace: TrainingTrace, verdict: TraceVerdict) -> Mapping[Hashable, list[UserRange]]:
    """Return the collectives that began in the steps, by process group. If the trace does not name these, the streams
    of a GPU stand for them, in the order of their first collectives."""
    window = verdict.window
    first, last = (window.steps[0][0], window.steps[-1][1]) if window.steps else (window.begin_ns, window.end_ns)
    if trace.is_on_cpu:
        return {"": [each for each in collective_ranges(trace) if first <= each.begin_ns < last]}
    streams: dict[int, int] = {}
    pairs: list[tuple[Hashable, UserRange]] = []
    for activity, launch in zip(window.activities, window.launches, strict=True):
        if launch and is_communication(activity) and (not window.steps or first <= launch.begin_ns < last):
            stream = streams.setdefault(activity.stream, len(streams))
            group = trace.process_groups.get((activity.device, activity.correlation), stream)
            name, thread = activity.name.partition("(")[0], (launch.process, launch.thread)
            pairs.append((group, UserRange(name, thread, activity.begin_ns, activity.end_ns)))
    return grouped(pairs)


def _mismatch(groups: Sequence[Mapping[int, Sequence[UserRange]]]) -> Mismatch:
    """Return why the collectives of the ranks of each group cannot be matched, "none" if they can."""
    if sum(len(next(iter(members.values()))) for members in groups) < LEAST_COLLECTIVES:
        return "too few"
    disagreement_ns = communication_ns = 0.0
    for members in groups:
        reference, *remaining = members.values()
        for collectives in remaining:
            if len(collectives) != len(reference):
                return "counts"
            if any(a.name != b.name for a, b in zip(reference, collectives, strict=True)):
                return "names"
            offsets = [b.end_ns - a.end_ns for a, b in zip(reference, collectives, strict=True)]
            disagreement_ns += sum(abs(offset - statistics.median(offsets)) for offset in offsets)
            communication_ns += sum(each.duration_ns for each in collectives)
    return "ends" if disagreement_ns > MOST_DISAGREEMENT * communication_ns else "none"


def _work(trace: TrainingTrace, verdict: TraceVerdict) -> intervals.Intervals:
    """Return the time in which a rank did work besides communication."""
    if trace.is_on_cpu:
        return intervals.union(time for times in trace.operators.values() for time in times)
    return busy_time(verdict.window, [each for each in verdict.window.activities if not is_communication(each)])
