"""Estimators of a gate's ratio on rounds of unchanged code that `load_rounds.py` recorded beside busy programs.

    uv run python benchmarks/load_truth.py --foreign 0.25 benchmarks/data/load*.jsonl.gz

Every figure is a replay: gates are drawn from the recorded pairs of processes, with the sides swapped at random. An
estimator makes one figure of each process, so a process stays the unit, and its steps never count as a sample.

- *scatter*: the standard deviation of the log ratio of a pair of processes, pooled over cells.
- *one step in ten*: the loss that an estimator shows if every tenth step of one side takes twice as long (true: 9.1%).
- *false alarms*: verdicts other than `pass` and `inconclusive` on unchanged code.
- *found*: gates that call a regression, in any cell and in every cell, after the trials of each look. The update of one
  side takes so much longer that a step takes 1.1 times as long, and its processor time and delays grow alike.
"""

import argparse
import dataclasses
import gzip
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcbench.analysis import phase_tests, rounds, welch
from tcbench.analysis.phase_tests import PhaseTrials
from tcbench.analysis.stats import typical
from tcbench.analysis.verdict import Interim, Rule, interims
from tcbench.analysis.welch import Estimate, SampleStats

Array = NDArray[np.float64]
PLANTED = 0.1
SETTLES_S = 0.03
"""The pause of a worker before the other's turn."""


@dataclass(frozen=True, eq=False)
class Process:
    """One process: `steps_s` has the shape (turns, steps, phases); the other times are those of each turn, with its
    first step. `delay_s` is the run delay of all threads together, `main_delay_s` that of the main thread."""

    phases: tuple[str, ...]
    steps_s: Array
    elapsed_s: Array
    cpu_s: Array
    delay_s: Array
    main_delay_s: Array

    def first(self, turns: int) -> "Process":
        """Return the process as if it had ended after so many turns."""
        arrays = {f.name: getattr(self, f.name)[:turns] for f in dataclasses.fields(self) if f.name != "phases"}
        return dataclasses.replace(self, **arrays)

    def scaled(self, factors: Array) -> "Process":
        """Return the process with the time of each phase of each step multiplied by these factors."""
        steps_s = self.steps_s * factors
        growth = steps_s.sum(axis=(1, 2)) / self.steps_s.sum(axis=(1, 2))
        times = ("elapsed_s", "cpu_s", "delay_s", "main_delay_s")
        return dataclasses.replace(self, steps_s=steps_s, **{name: getattr(self, name) * growth for name in times})

    @property
    def turns_s(self) -> Array:
        """The mean step time of each turn."""
        return np.asarray(self.steps_s.sum(axis=2).mean(axis=1))


@dataclass(frozen=True, eq=False)
class Pair:
    """A pair of processes of one cell that took turns. `start_s`: the time until both began their timed passes."""

    cell: str
    load: int
    base: Process
    current: Process
    start_s: float
    foreign: float

    @property
    def timed_s(self) -> float:
        return sum(float(side.elapsed_s.sum()) + SETTLES_S * len(side.elapsed_s) for side in (self.base, self.current))

    def common(self, most_turns: int | None = None) -> "Pair":
        """Return the pair with the turns that both processes have, at most so many."""
        turns = min(len(self.base.steps_s), len(self.current.steps_s), most_turns or 10**9)
        return dataclasses.replace(self, base=self.base.first(turns), current=self.current.first(turns))

    def swapped(self) -> "Pair":
        return dataclasses.replace(self, base=self.current, current=self.base)

    def with_loss(self, factor: float) -> "Pair":
        """Return the pair with the update of the current side that many times as long."""
        factors = np.array([factor if name == "update" else 1.0 for name in self.current.phases])
        return dataclasses.replace(self, current=self.current.scaled(factors))

    def with_slow_tenth(self) -> "Pair":
        """Return the pair with every tenth step of the current side twice as long."""
        turns, steps, _ = self.current.steps_s.shape
        factors = np.ones(turns * steps)
        factors[9::10] = 2.0
        return dataclasses.replace(self, current=self.current.scaled(factors.reshape(turns, steps, 1)))


def read(files: Sequence[Path]) -> Iterator[Pair]:
    for file in files:
        with gzip.open(file, "rt") as lines:
            for line in map(json.loads, lines):
                base, current = (_process(line[side]) for side in ("base", "current"))
                yield Pair(line["cell"], line["load"], base, current, line["start_s"], line["foreign"])


def _process(side: dict[str, Any]) -> Process:
    complete = [turn for turn in side["steps"] if len(turn) == len(side["steps"][0])]
    turns = np.array(side["turns"][: len(complete)], dtype=float).T * 1e-6
    return Process(tuple(side["phases"]), np.array(complete, dtype=float) * 1e-6, *turns)


# --------------------------------------------------------------------------------------------------------- estimators


def all_steps(pair: Pair) -> tuple[float, float]:
    """Each side's mean step, over all its turns."""
    return math.log(pair.base.turns_s.mean()), math.log(pair.current.turns_s.mean())


def common_turns(pair: Pair) -> tuple[float, float]:
    """Each side's mean step, over the turns that both have."""
    return all_steps(pair.common())


def turn_ratios(pair: Pair) -> Array:
    """The log ratios of adjacent turns. A turn is compared with the mean of the other side's before and after it."""
    pair = pair.common()
    return np.asarray(np.log(pair.current.turns_s / pair.base.turns_s))


def mean_of_turns(pair: Pair) -> tuple[float, float]:
    """The mean log ratio of adjacent turns."""
    return 0.0, float(turn_ratios(pair).mean())


def trimmed_turns(pair: Pair) -> tuple[float, float]:
    """The mean log ratio of adjacent turns, without the highest and the lowest fifth."""
    ratios = np.sort(turn_ratios(pair))
    cut = len(ratios) // 5
    return 0.0, float(ratios[cut : len(ratios) - cut].mean())


def median_of_turns(pair: Pair) -> tuple[float, float]:
    """The median log ratio of adjacent turns."""
    return 0.0, float(np.median(turn_ratios(pair)))


def trimmed_steps(pair: Pair) -> tuple[float, float]:
    """Each side's step, 10% trimmed, over the turns that both have."""
    sides = (pair.common().base, pair.common().current)
    base, current = (math.log(typical(side.steps_s.sum(axis=2).ravel().tolist())) for side in sides)
    return base, current


def median_step(pair: Pair) -> tuple[float, float]:
    """Each side's median step."""
    sides = (pair.base, pair.current)
    base, current = (math.log(float(np.median(side.steps_s.sum(axis=2)))) for side in sides)
    return base, current


def _of_turns(pair: Pair, seconds: Callable[[Process], Array]) -> tuple[float, float]:
    common = pair.common()
    return math.log(seconds(common.base).mean()), math.log(seconds(common.current).mean())


def less_main_delay(pair: Pair) -> tuple[float, float]:
    """The wall time less the run delay of the main thread."""
    return _of_turns(pair, lambda side: side.elapsed_s - side.main_delay_s)


def steps_less_delay(pair: Pair) -> tuple[float, float]:
    """The time of all steps of a process less the run delay of its main thread, as tcbench computes it."""
    sides = (pair.base, pair.current)
    base, current = (math.log(float((side.elapsed_s - side.main_delay_s).mean())) for side in sides)
    return base, current


def less_mean_delay(pair: Pair) -> tuple[float, float]:
    """The wall time less the run delay of all threads, divided among two."""
    return _of_turns(pair, lambda side: np.maximum(side.elapsed_s - side.delay_s / 2, side.elapsed_s / 20))


def cpu_time(pair: Pair) -> tuple[float, float]:
    """The processor time."""
    return _of_turns(pair, lambda side: side.cpu_s)


LESS_DELAY = "wall less main thread's run delay"
ESTIMATORS: dict[str, Callable[[Pair], tuple[float, float]]] = {
    "today: all steps": all_steps,
    "steps of common turns": common_turns,
    "adjacent turns": mean_of_turns,
    "adjacent turns, trimmed by 1/5": trimmed_turns,
    "adjacent turns, median": median_of_turns,
    "common turns, steps trimmed by 1/10": trimmed_steps,
    "median step": median_step,
    LESS_DELAY: less_main_delay,
    "wall less half of the run delay": less_mean_delay,
    "processor time": cpu_time,
}


# -------------------------------------------------------------------------------------------------------------- gates


Pooling = Callable[[Sequence[Estimate]], list[Estimate]]


def own_noise(estimates: Sequence[Estimate]) -> list[Estimate]:
    return list(estimates)


def common_noise(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Return paired estimates with the mean variance of all cells, as if their noise were equal."""
    variance = statistics.fmean(e.numerator.variance for e in estimates)
    degrees = sum(e.numerator.n - 1 for e in estimates)
    return [_Shared(dataclasses.replace(e.numerator, variance=variance), None, degrees) for e in estimates]


def shrunk_noise(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Return paired estimates with variances shrunk towards that of all cells, a prior of one degree of freedom."""
    prior, weight = statistics.fmean(e.numerator.variance for e in estimates), 1.0
    shrunk: list[Estimate] = []
    for e in estimates:
        degrees = e.numerator.n - 1
        variance = (degrees * e.numerator.variance + weight * prior) / (degrees + weight)
        shrunk.append(_Shared(dataclasses.replace(e.numerator, variance=variance), None, degrees + weight))
    return shrunk


@dataclass(frozen=True)
class _Shared(Estimate):
    """A paired estimate whose variance has other degrees of freedom than its pairs."""

    degrees: float = 1.0

    def with_more_trials(self, more: int) -> welch.LogRatio:
        return dataclasses.replace(super().with_more_trials(more), degrees=self.degrees + more)


@dataclass(frozen=True)
class Method:
    """How a gate judges: the figures of each process, whether rounds are always paired, and the noise of few cells.

    With `second`, other figures are tested too, with 9/10 of the levels, but find regressions only.
    """

    figures: Callable[[Pair], tuple[float, float]]
    pairs: bool = True
    pooling: Pooling = own_noise
    second: Callable[[Pair], tuple[float, float]] | None = None


def estimate(logs: Array, pairs: bool) -> Estimate:
    """Return the ratio of throughputs, current / base, from the log step times of each round's two processes."""
    if pairs:
        return Estimate(SampleStats.from_values((logs[:, 0] - logs[:, 1]).tolist()))
    return rounds.estimate(np.exp(-logs[:, 1]).tolist(), np.exp(-logs[:, 0]).tolist())


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a gate sees of one cell: the log step times and the phases of both processes of each round."""

    logs: Array
    second_logs: Array
    base_phases: dict[str, list[float]]
    current_phases: dict[str, list[float]]


def found(cells: Sequence[Drawn], looks: Sequence[Interim], method: Method) -> list[list[str]]:
    """Return the decisions on each cell after each look."""
    decided = ["inconclusive"] * len(cells)
    history = []
    for look in looks:
        n, rule = look.trials, look.rule.among(len(cells))
        estimates = method.pooling([estimate(cell.logs[:n], method.pairs) for cell in cells])
        verdicts = [str(rule.judge(e.ratio)) for e in estimates]
        if method.second is not None:
            few = rule.part(0.1)
            verdicts = [v if v == "pass" else str(few.judge(e.ratio)) for v, e in zip(verdicts, estimates, strict=True)]
        trials = [
            PhaseTrials(
                math.exp(cell.logs[:n, 0].mean()),
                {name: times[:n] for name, times in cell.base_phases.items()},
                {name: times[:n] for name, times in cell.current_phases.items()},
                e.by_round,
            )
            for cell, e in zip(cells, estimates, strict=True)
        ]
        slower = [bool(phase_tests.lost(phases)) for phases in phase_tests.judge(trials, rule)]
        if method.second is not None:
            seconds = method.pooling([estimate(cell.second_logs[:n], method.pairs) for cell in cells])
            slower = [
                before or rule.part(0.9).judge(e.ratio) == "regression"
                for before, e in zip(slower, seconds, strict=True)
            ]
        verdicts = [
            "regression" if v == "inconclusive" and is_slower else v
            for v, is_slower in zip(verdicts, slower, strict=True)
        ]
        decided = [before if before != "inconclusive" else v for before, v in zip(decided, verdicts, strict=True)]
        history.append(list(decided))
    return history


@dataclass(frozen=True, eq=False)
class Prepared:
    """The figures of one recorded pair, in both orders of its sides: index 1 has the sides swapped."""

    logs: tuple[tuple[float, float], ...]
    second_logs: tuple[tuple[float, float], ...]
    phases: tuple[tuple[dict[str, float], dict[str, float]], ...]


def prepare(pair: Pair, method: Method, factor: float) -> Prepared:
    orders = [order.with_loss(factor) if factor != 1 else order for order in (pair, pair.swapped())]
    return Prepared(
        tuple(map(method.figures, orders)),
        tuple(map(method.second or method.figures, orders)),
        tuple((phase_times(order.base), phase_times(order.current)) for order in orders),
    )


def phase_times(side: Process) -> dict[str, float]:
    return {name: typical(side.steps_s[:, :, n].ravel().tolist()) for n, name in enumerate(side.phases)}


def draw(random: np.random.Generator, prepared: Sequence[Prepared], trials: int) -> Drawn:
    """Draw the rounds of one cell of a gate: different pairs of processes, with sides swapped at random."""
    places = random.choice(len(prepared), size=trials, replace=False)
    swaps = random.integers(2, size=trials)
    logs, second_logs = (
        np.array([getattr(prepared[place], name)[swap] for place, swap in zip(places, swaps, strict=True)])
        for name in ("logs", "second_logs")
    )
    base, current = (
        {
            name: [prepared[p].phases[s][side][name] for p, s in zip(places, swaps, strict=True)]
            for name in prepared[0].phases[0][0]
        }
        for side in (0, 1)
    )
    return Drawn(logs, second_logs, base, current)


def gates(
    pairs: dict[str, list[Pair]], method: Method, looks: Sequence[Interim], planted: bool, number: int, seed: int
) -> list[list[list[str]]]:
    """Return the decisions of `number` drawn gates: gate by gate, look by look, cell by cell."""
    random = np.random.default_rng(seed)
    cells = []
    for of_cell in pairs.values():
        step_s = np.mean([p.base.steps_s.sum(axis=2).mean() for p in of_cell])
        update = of_cell[0].base.phases.index("update")
        update_s = np.mean([p.base.steps_s[:, :, update].mean() for p in of_cell])
        factor = 1 + PLANTED * float(step_s / update_s) if planted else 1.0
        cells.append([prepare(pair, method, factor) for pair in of_cell])
    return [
        found([draw(random, prepared, looks[-1].trials) for prepared in cells], looks, method) for _ in range(number)
    ]


# ------------------------------------------------------------------------------------------------------------- tables


def scatter(pairs: dict[str, list[Pair]], figures: Callable[[Pair], tuple[float, float]]) -> float:
    """Return the root mean square of the log ratios of all pairs, which have a true value of 0."""
    differences = [current - base for of_cell in pairs.values() for base, current in map(figures, of_cell)]
    return math.sqrt(statistics.fmean(d * d for d in differences))


def show_scatter(pairs: dict[str, list[Pair]]) -> None:
    least = min(len(p.common().base.steps_s) for of_cell in pairs.values() for p in of_cell)
    sizes = sorted({max(1, least // 4), max(1, least // 2), least})
    print(f"{'scatter of a pair, by turns':38}" + "".join(f"{n:>9}" for n in sizes) + f"{'all':>9}{'one in ten':>12}")
    for name, figures in ESTIMATORS.items():
        of_sizes = [
            scatter({cell: [p.common(n) for p in of_cell] for cell, of_cell in pairs.items()}, figures) for n in sizes
        ]
        slow = [figures(q.with_slow_tenth())[1] - figures(q)[1] for of_cell in pairs.values() for q in of_cell]
        row = "".join(f"{100 * sd:8.2f}%" for sd in (*of_sizes, scatter(pairs, figures)))
        print(f"{name:38}{row}{100 * (1 - math.exp(-statistics.fmean(slow))):11.1f}%")


def show_gates(pairs: dict[str, list[Pair]], looks: Sequence[int], number: int, seed: int, start_s: float) -> None:
    of_gate = interims(looks, Rule())
    pair_s = statistics.fmean(p.timed_s for of_cell in pairs.values() for p in of_cell) + start_s
    round_s = pair_s * len(pairs)
    times = ", ".join(f"{n} trials {n * round_s:.0f} s" for n in looks)
    print(f"looks: {times} (a pair takes {pair_s:.1f} s, {start_s:.1f} s of it to start)")
    print(f"{'':54}{'false alarms':>14}{'passed':>8}   found in any cell, in every cell, by look")
    methods = {name: Method(figures, pairs=not name.startswith("today")) for name, figures in ESTIMATORS.items()}
    for name in ("today: all steps", LESS_DELAY):
        methods[f"{name}, common noise"] = Method(ESTIMATORS[name], pooling=common_noise)
        methods[f"{name}, shrunk noise"] = Method(ESTIMATORS[name], pooling=shrunk_noise)
    methods["today, then without run delay"] = Method(all_steps, pairs=False, second=steps_less_delay)
    for name, method in methods.items():
        unchanged = [v for gate in gates(pairs, method, of_gate, False, number, seed) for v in gate[-1]]
        alarms = sum(v in ("regression", "improved") for v in unchanged)
        passed = unchanged.count("pass") / len(unchanged)
        planted = gates(pairs, method, of_gate, True, number, seed + 1)
        by_look = [
            [
                sum(combine(v == "regression" for v in gate[look]) for gate in planted) / number
                for look in range(len(looks))
            ]
            for combine in (any, all)
        ]
        shares = "   ".join(" ".join(f"{share:4.0%}" for share in row) for row in by_look)
        print(f"{name:54}{alarms:6} of {len(unchanged)}{passed:8.0%}   {shares}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--gates", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--looks", default="3,4,6,8")
    parser.add_argument("--turns", type=int, help="of each process at most")
    parser.add_argument("--start", default="0=5,2=8,6=16", help="seconds to start two processes, by load")
    parser.add_argument("--foreign", type=float, default=1.0, help="drop pairs beside which others took this share")
    parser.add_argument("--scatter", action="store_true", help="only the scatter")
    options = parser.parse_args()
    looks = [int(word) for word in options.looks.split(",")]
    starts = {int(load): float(s) for load, s in (word.split("=") for word in options.start.split(","))}
    all_pairs = [pair for pair in read(options.files) if pair.foreign < options.foreign]
    for load in sorted({pair.load for pair in all_pairs}):
        pairs: dict[str, list[Pair]] = {}
        for pair in all_pairs:
            if pair.load == load:
                pairs.setdefault(pair.cell, []).append(pair.common(options.turns) if options.turns else pair)
        print(f"\nload {load}: " + ", ".join(f"{len(of_cell)} pairs of {cell}" for cell, of_cell in pairs.items()))
        turns = [len(p.common().base.steps_s) for of_cell in pairs.values() for p in of_cell]
        print(
            f"{min(turns)} to {max(turns)} common turns; foreign at most "
            f"{max(p.foreign for of_cell in pairs.values() for p in of_cell):.1%}"
        )
        show_scatter(pairs)
        if not options.scatter:
            show_gates(pairs, looks, options.gates, options.seed, starts[load])


if __name__ == "__main__":
    main()
