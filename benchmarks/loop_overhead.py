"""Measure the overhead of the measuring loop per step, and the share of NVTX ranges with no tool attached.

The session's phases do nothing, and the loop's own clock times them.

    uv run python benchmarks/loop_overhead.py [SHORTEST_STEP_MS]

Goal: at most 20 us per step, and at most 0.5% of the shortest step measured (default: the newest run's); the ranges at
most 0.1% of it.
"""

import statistics
import sys
import time
from pathlib import Path

from tcbench.core import store
from tcbench.engine.clock import HostClock
from tcbench.engine.measure import loop
from tcbench.engine.measure.ranges import Ranges, attached
from tcbench.engine.session import Facts, Phase


class NoOp:
    """Four phases that do nothing."""

    def __init__(self) -> None:
        self.phases = tuple(Phase(name, lambda: None) for name in ("io", "forward", "backward", "update"))
        self.clock = HostClock()

    def facts(self) -> Facts:
        return Facts(0.0, 0, "process", 0, 0, 0)

    def close(self) -> None: ...


def shortest_step_s() -> float | None:
    if len(sys.argv) > 1:
        return float(sys.argv[1]) * 1e-3
    files = sorted(Path("results").rglob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not files:
        return None
    measured = [r.measurement for r in store.read(files[-1:]).records if r.measurement]
    return min(statistics.median(m.counted_times_s) for m in measured) if measured else None


def ranges_s(ranges: Ranges, phases: int) -> float:
    """Seconds of one step's ranges alone: the median of many."""
    step, push, pop = ranges.step, ranges.push, ranges.pop
    times = []
    for number in range(20_000):
        begin_ns = time.perf_counter_ns()
        push(step(number))
        for attributes in ranges.phases[:phases]:
            push(attributes)
            pop()
        pop()
        times.append(time.perf_counter_ns() - begin_ns)
    return statistics.median(times) * 1e-9


def main() -> None:
    session = NoOp()
    ranges = Ranges([phase.name for phase in session.phases])
    medians = []
    for _ in range(50):
        times = loop.run_block(session, ranges, 1000, first=0).steps_s
        medians.append(statistics.median(times))
    added_s = statistics.median(medians)
    print(f"the loop adds {added_s * 1e6:.2f} us per step (median of {50 * 1000} steps)")
    nvtx_s = ranges_s(ranges, len(session.phases))
    print(f"of which NVTX ranges with {'a' if attached() else 'no'} tool attached: {nvtx_s * 1e6:.2f} us")
    shortest = shortest_step_s()
    if shortest:
        print(f"the ranges are {nvtx_s / shortest:.5%} of the shortest step measured")
        print(f"that is {added_s / shortest:.4%} of the shortest step measured, {shortest * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
