"""Check whether the factors within a run cover the truth, on simulated runs whose true levels are known.

    uv run python benchmarks/scatter_truth.py --runs 2000
    uv run python benchmarks/scatter_truth.py --few --runs 10000
    uv run python benchmarks/scatter_truth.py --records results/*/cpu-*.jsonl

Each run has 20 cells; the base has three trials, half of the others two and the rest one, as where four minutes end
amid a round. Each factor over the base is judged as a run's table does. `of wild`: of the cells that vary most, one in
ten. `called`: the share of cells as fast as the base whose interval excludes 1; `seen`: of those 1.77 times as fast.

With `--few` the runs have 2 to 20 cells of 3 to 8 trials each, whose noise is equal, or five times as large in one cell
that is not the base. `noisy`: the factors of that cell; `others`: those of two cells with equal noise.

With `--records` half of the cells of each real run, drawn by the seed, are cut to their first trial, and the factors of
any two cells of a batch size are compared with those of all trials. `holds`: the interval of the cut run holds the
factor of the whole one; `apart`: the two intervals share nothing; `against`: the cut run says faster where the whole
one says slower; `decided`: the share of factors that exclude 1, cut and whole.
"""

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tcbench.analysis import scatter, welch
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import summarise
from tcbench.core import store
from tcbench.core.record import Cell, Record

CELLS, SIGMA = 20, 0.02


@dataclass(frozen=True)
class Machine:
    """How trials vary: each cell's standard deviation, drawn; and the drift from trial to trial, its standard deviation
    with its correlation between neighbours."""

    sigma: Callable[[random.Random], float]
    drift: float = 0.0
    lag: float = 0.0


MACHINES = {
    "alike, 2%": Machine(lambda _: SIGMA),
    "alike, 10%": Machine(lambda _: 0.1),
    "sd of ln sigma 0.5": Machine(lambda draw: SIGMA * draw.lognormvariate(0, 0.5)),
    "sd of ln sigma 0.8": Machine(lambda draw: SIGMA * draw.lognormvariate(0, 0.8)),
    "one in ten five times as much": Machine(lambda draw: SIGMA * (5 if draw.random() < 0.1 else 1)),
    "drift within a round, lag 0.73": Machine(lambda _: 0.05, 0.11, 0.73),
    "slow drift, lag 0.98": Machine(lambda _: SIGMA, 0.1, 0.98),
}


def run(machine: Machine, draw: random.Random, trials: list[int]) -> tuple[list[scatter.Trials], list[float]]:
    """Return the cells' simulated trials and their standard deviations; all levels are 0."""
    sigmas = [machine.sigma(draw) for _ in trials]
    cells: list[list[tuple[int, float]]] = [[] for _ in trials]
    level = draw.gauss(0, machine.drift)
    for trial in range(max(trials)):
        for cell, n in enumerate(trials):
            if trial < n:
                level = machine.lag * level + (1 - machine.lag**2) ** 0.5 * draw.gauss(0, machine.drift)
                cells[cell].append((trial, level + draw.gauss(0, sigmas[cell])))
    return [*cells], sigmas


def coverage(cells: int, trials: int, noisy: bool, runs: int, seed: int) -> tuple[float, float | None]:
    """Return how often the 95% interval holds the true factor over the base: for the second cell, which is noisy if
    `noisy`, and for all later ones (None without any)."""
    draw, sigmas = random.Random(seed), [SIGMA * (5 if noisy and cell == 1 else 1) for cell in range(cells)]
    second, later = [], []
    for _ in range(runs):
        simulated = [[(trial, draw.gauss(0, sigma)) for trial in range(trials)] for sigma in sigmas]
        fitted = scatter.scatter(simulated)
        assert fitted is not None
        base, *groups = (fitted.group(cell) for cell in simulated)
        holds = [welch.log_ratio(group, base).interval().holds(1.0) for group in groups]
        second.append(holds[0])
        later += holds[1:]
    return sum(second) / len(second), sum(later) / len(later) if later else None


def of_few(runs: int, seed: int) -> None:
    """Print the coverage in runs of few and of many cells."""
    print(f"{'cells':>5} {'trials':>6} {'equal noise':>11} {'noisy':>6} {'others':>6}")
    for cells in (2, 3, 5, 8, 20):
        for trials in (3, 5, 8):
            second, later = coverage(cells, trials, False, runs, seed)
            equal = second if later is None else (second + (cells - 2) * later) / (cells - 1)
            noisy, others = coverage(cells, trials, True, runs, seed + 1)
            rest = "-" if others is None else f"{others:.1%}"
            print(f"{cells:5} {trials:6} {equal:11.1%} {noisy:6.1%} {rest:>6}", flush=True)


def cut(records: list[Record], draw: random.Random) -> list[Record]:
    """Return the records without later trials of half of the cells."""
    cells = list(dict.fromkeys(record.cell for record in records))
    short = {*draw.sample(cells, len(cells) // 2)}
    return [record for record in records if record.cell not in short or record.trial == 0]


def factors(records: list[Record]) -> dict[tuple[Cell, Cell], Interval]:
    """Return the factor between any two cells of the same batch size."""
    groups = [(summary.cell, summary.throughput) for summary in summarise(records)]
    return {
        (a, b): welch.log_ratio(first, second).interval()
        for (a, first), (b, second) in combinations(groups, 2)
        if first and second and a.batch_size == b.batch_size
    }


def of_records(paths: list[Path], seed: int) -> None:
    """Print the table of real runs."""
    print(f"{'run':40} {'factors':>8} {'holds':>7} {'apart':>6} {'against':>8} {'decided, cut':>13} {'whole':>6}")
    for path in paths:
        records = [record for record in store.read([path]).records if record.status == "ok"]
        full, short = factors(records), factors(cut(records, random.Random(seed)))
        pairs = [(interval, full[cells]) for cells, interval in short.items()]
        holds = sum(interval.holds(all_.value) for interval, all_ in pairs) / len(pairs)
        disjoint = sum(interval.low > all_.high or interval.high < all_.low for interval, all_ in pairs)
        against = sum(
            (interval.low > 1 and all_.high < 1) or (interval.high < 1 and all_.low > 1) for interval, all_ in pairs
        )
        decided = [sum(not interval.holds(1.0) for interval in side) / len(pairs) for side in zip(*pairs, strict=True)]
        print(
            f"{path.stem:40} {len(pairs):8} {holds:7.1%} {disjoint:6} {against:8} {decided[0]:13.1%} {decided[1]:6.1%}"
        )


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=2000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--records", type=Path, nargs="+", help="real runs in place of simulated ones")
    options.add_argument("--few", action="store_true", help="runs of 2 to 20 cells with equal numbers of trials")
    chosen = options.parse_args()
    if chosen.few:
        of_few(chosen.runs, chosen.seed)
        return
    if chosen.records:
        of_records(chosen.records, chosen.seed)
        return
    print(f"{'machine':32} {'trials':>12} {'covered':>8} {'of wild':>8} {'called':>7} {'half-width':>10} {'seen':>6}")
    for name, machine in MACHINES.items():
        for trials in ([3, *[2] * 10, *[1] * 9], [3] * CELLS, [2, *[1] * 19], [2] * 10 + [1] * 10):
            draw = random.Random(chosen.seed)
            covered, wild, seen, widths = [], [], [], []
            for _ in range(chosen.runs):
                cells, sigmas = run(machine, draw, trials)
                fitted = scatter.scatter(cells)
                assert fitted is not None
                base, *groups = (fitted.group(cell) for cell in cells)
                loudest = sorted(sigmas[1:])[-2]
                for group, sigma in zip(groups, sigmas[1:], strict=True):
                    of_ratio = welch.log_ratio(group, base).interval()
                    covered.append(of_ratio.holds(1.0))
                    seen.append(of_ratio.low * 1.77 > 1.0)
                    widths.append(of_ratio.high - of_ratio.low)
                    if sigma >= loudest:
                        wild.append(of_ratio.holds(1.0))
            shares = [sum(values) / len(values) for values in (covered, wild, seen)]
            width = sorted(widths)[len(widths) // 2] / 2
            counts = "".join(map(str, trials[:2])) + ".." + str(trials[-1])
            print(
                f"{name:32} {counts:>12} {shares[0]:8.1%} {shares[1]:8.1%} {1 - shares[0]:7.1%} {width:10.1%} "
                f"{shares[2]:6.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
