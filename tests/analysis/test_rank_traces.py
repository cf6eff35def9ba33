"""Waiting and transfer between ranks, against simulated ranks whose waiting is known."""

import json
import random
from collections import defaultdict

import pytest

from tcbench.analysis.host_trace import judge_training
from tcbench.analysis.rank_traces import rank_waits
from tcbench.tracing import kineto


class Rank:
    """A simulated rank with a clock of its own, in microseconds: it computes on stream 7 and communicates on 20."""

    def __init__(self, number, clock_us):
        self.number, self.clock_us, self.world_size = number, clock_us, 8
        self.events, self.now, self.free = [], 0, 0
        self.work, self.collectives = set(), defaultdict(list)  # (arrival, arrival of the last rank, end) by group

    def record(self, category, name, begin, length, **arguments):
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "args": arguments}
        self.events.append(event | {"ts": begin + self.clock_us, "dur": length})

    def kernel(self, name, begin, length, stream, **arguments):
        linked = {"correlation": len(self.events) + 1}
        self.record("cuda_runtime", "cudaLaunchKernel", self.now, 1, **linked)
        self.record("kernel", name, begin, length, device=0, stream=stream, **linked, **arguments)

    def compute(self, length):
        self.kernel("gemm", self.now + 1, length, 7)
        self.work |= set(range(self.now + 1, self.now + 1 + length))
        self.now += 1 + length

    def read(self, path):
        header = {"distributedInfo": {"rank": self.number, "world_size": self.world_size}}
        path.write_text(json.dumps(header | {"traceEvents": self.events}), encoding="utf-8")
        trace = kineto.read(path)
        return trace, judge_training(trace)


def simulate(seed, n_ranks=None):
    """Return ranks and the slowest. In half of all runs they share two groups and one that is not recorded, and two
    ranks have one of their own."""
    r = random.Random(seed)
    ranks = [Rank(number, r.randrange(10**9)) for number in range(n_ranks or r.randint(3, 5))]
    groups = {"0": ranks, "1": ranks, "2": ranks[:2], "": ranks} if seed % 2 else {"": ranks}
    slowest = r.choice(ranks)
    for step in range(4):
        begins = [rank.now for rank in ranks]
        for group in r.choices([*groups, ""], k=r.randint(4, 8)):
            for rank in ranks:
                rank.compute(int(r.uniform(50, 300) * (2 if rank is slowest else 1)))
            arrivals = {rank: max(rank.now + 1, rank.free) for rank in groups[group]}
            last, transfer = max(arrivals.values(), default=0), r.randint(20, 400)
            for rank, arrival in arrivals.items():
                rank.free = last + transfer
                rank.collectives[group].append((arrival, last, rank.free))
                names = {"Process Group Name": group, "Process Group Ranks": str(list(groups))} if group else {}
                rank.kernel("ncclDevKernel_AllReduce(x)", arrival, rank.free - arrival, 20, **names)
        for rank, begin in zip(ranks, begins, strict=True):
            rank.now = max(rank.now, rank.free) + 5
            rank.record("user_annotation", f"ProfilerStep#{step}", begin, rank.now - begin)
    return ranks, slowest


@pytest.mark.parametrize("seed", range(12))
def test_waiting_and_transfer_in_the_busiest_shared_group_are_what_was_simulated(tmp_path, seed):
    ranks, slowest = simulate(seed)
    waits = rank_waits([rank.read(tmp_path / "t.json") for rank in random.Random(seed).sample(ranks, len(ranks))])
    durations = {g: sum(end - begin for rank in ranks for begin, _, end in rank.collectives[g]) for g in "01"}
    group = max(durations, key=durations.get) if seed % 2 else ""
    for rank, wait in zip(ranks, waits.ranks, strict=True):
        waiting = [us for arrival, last, _ in rank.collectives[group] for us in range(arrival, last)]
        transfer = sum(end - last for _, last, end in rank.collectives[group])
        truths_us = [len(waiting), len(set(waiting) - rank.work), transfer]
        assert [wait.waiting_ns, wait.exposed_waiting_ns, wait.transfer_ns] == [1000 * time_us for time_us in truths_us]
        assert wait.times_last == sum(arrival == last for arrival, last, _ in rank.collectives[group])
    assert waits.slowest.rank == slowest.number


FAULTS = {"groups": "groups", "few": "groups", "ends": "ends", "counts": "ends", "none late": "none"}
FAULTS |= dict.fromkeys(["no rank", "one rank", "another run"], "runs")


@pytest.mark.parametrize("fault", FAULTS)
def test_traces_that_do_not_belong_together_have_no_slowest_rank(tmp_path, fault):
    ranks, _ = simulate(4, n_ranks=3)
    for rank in ranks:
        collectives = [event for event in rank.events if "nccl" in event["name"]]
        for event in collectives:  # ranks 0 and 1 wait for each other, and the group of rank 2 has no other trace
            event["args"] |= {"Process Group Name": str(rank.number // 2)} if fault == "groups" else {}
        removed = {"few": collectives[2:], "ends": collectives[-1:] if rank.number else collectives[:1]}
        removed["counts"] = collectives[rank.number : 1]
        rank.events = [event for event in rank.events if event not in removed.get(fault, ())]
        rank.events = ranks[0].events if fault == "none late" else rank.events
    ranks[2].number = {"no rank": None, "one rank": 0}.get(fault, 2)
    ranks[2].world_size = 4 if fault == "another run" else 8
    waits = rank_waits([rank.read(tmp_path / "t.json") for rank in ranks])
    assert (waits.mismatch, waits.slowest) == (FAULTS[fault], None)
    assert rank_waits([ranks[0].read(tmp_path / "t.json")]) is None
