"""Waiting and transfer between ranks, against simulated ranks whose waiting is known."""

import json
import random

import pytest

from tcbench.analysis.host_trace import judge_training
from tcbench.analysis.rank_traces import rank_waits
from tcbench.tracing import kineto


class Rank:
    """A simulated rank with a clock of its own, in microseconds: it computes on stream 7 and communicates on 20."""

    def __init__(self, number, clock_us):
        self.number, self.clock_us = number, clock_us
        self.events, self.now, self.free = [], 0, 0
        self.work, self.waits = set(), []

    def record(self, category, name, begin, length, **arguments):
        times = {"ts": begin + self.clock_us, "dur": length}
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "args": arguments} | times)

    def kernel(self, name, begin, length, stream, **arguments):
        linked = {"correlation": len(self.events) + 1}
        self.record("cuda_runtime", "cudaLaunchKernel", self.now, 1, **linked)
        self.record("kernel", name, begin, length, device=0, stream=stream, **linked, **arguments)

    def compute(self, length):
        self.kernel("gemm", self.now + 1, length, 7)
        self.work |= set(range(self.now + 1, self.now + 1 + length))
        self.now += 1 + length

    def trace(self, path, world_size):
        header = {"distributedInfo": {"rank": self.number, "world_size": world_size}}
        path.write_text(json.dumps(header | {"traceEvents": self.events}), encoding="utf-8")
        trace = kineto.read(path)
        return trace, judge_training(trace)


def simulate(seed, n_ranks=None):
    """Return ranks of which the last is slower, and the transfer of each. In half of all runs two process groups share
    a stream: that of all ranks, and that of the first two."""
    r = random.Random(seed)
    ranks = [Rank(number, r.randrange(10**9)) for number in range(n_ranks or r.randint(2, 5))]
    transfers = dict.fromkeys(ranks, 0)
    for step in range(r.randint(2, 4)):
        begins = [rank.now for rank in ranks]
        for _ in range(r.randint(2, 8)):
            members = r.choice([ranks, ranks[:2]]) if seed % 2 else ranks
            for rank in ranks:
                rank.compute(int(r.uniform(50, 300) * (1.5 if rank is ranks[-1] else 1)))
            transfer = r.randint(20, 400)
            arrivals = {rank: max(rank.now + 1, rank.free) for rank in members}
            for rank, arrival in arrivals.items():
                rank.free = max(arrivals.values()) + transfer
                numbers = str([member.number for member in members])
                group = {"Process Group Name": "0", "Process Group Ranks": numbers} if seed % 2 else {}
                rank.kernel("ncclDevKernel_AllReduce(x)", arrival, rank.free - arrival, 20, **group)
                rank.waits.append(range(arrival, rank.free - transfer))
                transfers[rank] += transfer
        for rank, begin in zip(ranks, begins, strict=True):
            rank.now = max(rank.now, rank.free) + 5
            rank.record("user_annotation", f"ProfilerStep#{step}", begin, rank.now - begin)
    return ranks, transfers


@pytest.mark.parametrize("seed", range(10))
def test_waiting_and_transfer_are_within_a_point_of_what_was_simulated(tmp_path, seed):
    ranks, transfers = simulate(seed)
    traces = [rank.trace(tmp_path / "t.json", len(ranks)) for rank in ranks]
    random.Random(seed).shuffle(traces)
    waits = rank_waits(traces)
    assert (waits.mismatch, [each.rank for each in waits.ranks]) == ("none", list(range(len(ranks))))
    for rank, wait in zip(ranks, waits.ranks, strict=True):
        waiting = sum(map(len, rank.waits))
        exposed = len(set().union(*rank.waits) - rank.work)
        figures = [time_ns / wait.window_ns for time_ns in (wait.waiting_ns, wait.exposed_ns, wait.transfer_ns)]
        truths = [time_us * 1000 / wait.window_ns for time_us in (waiting, exposed, transfers[rank])]
        assert figures == pytest.approx(truths, abs=0.01)
        assert wait.times_last == sum(not times for times in rank.waits)
    least = min(ranks, key=lambda rank: sum(map(len, rank.waits)))
    assert waits.slowest is None or waits.slowest.rank == least.number


def collectives_of(rank):
    return [event for event in rank.events if "nccl" in event["name"]]


@pytest.mark.parametrize("mismatch", ["counts", "names", "ends", "too few"])
def test_collectives_that_cannot_be_matched_have_no_waiting(tmp_path, mismatch):
    ranks, _ = simulate(4, n_ranks=2)
    if mismatch == "counts":
        ranks[0].events.remove(collectives_of(ranks[0])[3])
    elif mismatch == "names":
        collectives_of(ranks[0])[3]["name"] = "ncclDevKernel_Broadcast(x)"
    elif mismatch == "ends":  # one rank's recording lacks the first collective, the other's the last
        ranks[0].events.remove(collectives_of(ranks[0])[0])
        ranks[1].events.remove(collectives_of(ranks[1])[-1])
    else:
        for rank in ranks:
            rank.events = [event for event in rank.events if event not in collectives_of(rank)[2:]]
    waits = rank_waits([rank.trace(tmp_path / "t.json", 2) for rank in ranks])
    assert (waits.mismatch, waits.ranks, waits.slowest) == (mismatch, (), None)


def test_a_rank_is_the_slowest_only_if_the_others_wait_for_it(tmp_path):
    ranks, _ = simulate(4, n_ranks=2)
    assert rank_waits([rank.trace(tmp_path / "t.json", 2) for rank in ranks]).slowest.rank == 1
    ranks[1].events = [event | {"ts": event["ts"] + 7} for event in ranks[0].events]
    assert rank_waits([rank.trace(tmp_path / "t.json", 2) for rank in ranks]).slowest is None


def test_traces_of_one_rank_or_of_runs_of_different_sizes_are_not_compared(tmp_path):
    first, second = simulate(4, n_ranks=2)[0]
    traces = [first.trace(tmp_path / "t.json", 2), second.trace(tmp_path / "t.json", 2)]
    assert rank_waits(traces[:1]) is None
    assert rank_waits([*traces, traces[0]]) is None
    assert rank_waits([traces[0], second.trace(tmp_path / "t.json", 4)]) is None
