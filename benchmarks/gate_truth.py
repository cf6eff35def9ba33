"""How often the verdicts are right: `python benchmarks/gate_truth.py [--matrices 1000] [--only WORDS]`.

Simulates matrices of cells whose truth is known and lets the product's own rules judge them. Nothing here draws a
distribution that the rules assume. A cell's steps are those of one real trial under results/, drawn in blocks of 3 (the
moving blocks bootstrap, which keeps what neighbours have in common: H. Kuensch, Annals of Statistics 17, 1989); a trial
has 200 of them. Machines differ in how much trials do (standard deviation of their logarithms):

- even: the figures of trials differ by 1% in all, steps included;
- quiet: trials differ by 1%, and their steps move them on top: 1.0 to 1.3% in all for 44 of the 50 real trials, 1.6 to
  6.6% for the six others;
- drifting: quiet, and rounds differ by 10%, which the two trials of a round share: what a gate's turns are for;
- noisy: trials differ by 5%, more than the threshold, which then keeps no false alarm away;
- mixed: each cell has trials that differ by another share, from 0.5% to 5%, as cells of a real matrix do;
- with accidents: steps are simulated: autocorrelated (AR(1), 0.5), 2% apart, and 0.5% of them take 5 times as long,
  four times as many as took twice as long in the real trials.

Code gets slower in two ways: every step takes longer, or one step in ten takes twice as long (`stalls`).

`--phases` judges matrices whose trials have phases: by what share of themselves these differ from trial to trial is
drawn, a trial's phases at once, from the trials of 30 real cells, scaled to what the machine's trials do in all. They
change in one phase, in all, or from one to another.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tcbench.analysis import noise, phase_tests, verdict, welch
from tcbench.analysis import rounds as rounds_of
from tcbench.analysis.verdict import Decided, Interim, Rule
from tcbench.analysis.welch import Estimate
from tcbench.core import store

Figures = tuple[Sequence[float], Sequence[float]]
"""A cell's trials, of which more is better: current's, base's."""

APART, IN_TURNS = welch.estimate, rounds_of.estimate
"""How ratios are estimated of sides that were measured apart, and of trials beside each other."""

CELLS = 40
STEPS = 200
TRIAL_SD = 0.01
NOISY_SD, DRIFT_SD = 0.05, 0.1
LEAST_SD, MOST_SD = 0.005, 0.05
STEP_TIME_S = 0.1
BLOCK = 3
STEP_SD, AUTOCORRELATION = 0.02, 0.5
SPIKE_SHARE, SPIKE_FACTOR = 0.005, 5.0
STALL_EVERY, STALL_FACTOR = 10, 2.0
STALLS = 1 - STALL_EVERY / (STALL_EVERY - 1 + STALL_FACTOR)
"""The share of the throughput that stalls cost."""

RESULTS = Path(__file__).parents[1] / "results"
RUNS = ("amd-epyc-2cpu/cpu-20261121-035658.jsonl", "amd-epyc-2cpu/peers-20261121-110639.jsonl")
"""Named, so that what is measured later changes no figure that was given."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Machine:
    """Standard deviations: from trial to trial, and from round to round on top, which both sides share. `even`: the
    first is that of trials in all, their steps included. `mixed`: it is another for each cell. `accidents`: whether
    steps are simulated ones that some accident befalls."""

    trial_sd: float = TRIAL_SD
    drift_sd: float = 0.0
    even: bool = False
    mixed: bool = False
    accidents: bool = False

    def trial_sds(self, cells: range) -> Array:
        """Return the standard deviation of each cell's trials, shape (len(cells), 1, 1)."""
        shares = np.array([cell % CELLS / (CELLS - 1) for cell in cells]) if self.mixed else np.zeros(len(cells))
        least = LEAST_SD if self.mixed else self.trial_sd
        return np.asarray(least * (MOST_SD / LEAST_SD) ** shares)[:, None, None]


EVEN, QUIET, NOISY = Machine(even=True), Machine(), Machine(trial_sd=NOISY_SD)
DRIFTING, MIXED, ACCIDENTS = Machine(drift_sd=DRIFT_SD), Machine(mixed=True), Machine(accidents=True)


@functools.cache
def real_trials() -> tuple[Array, ...]:
    """Return the step times of every trial of RUNS, divided by their mean."""
    files = sorted(RESULTS / run for run in RUNS)
    measured = (record.measurement for record in store.read(files).records)
    times_s = (np.array(m.counted_times_s) for m in measured if m is not None)
    return tuple(trial_s / trial_s.mean() for trial_s in times_s if len(trial_s) > BLOCK)


def real_steps(random: np.random.Generator, cells: range, trials: int) -> Array:
    """Return step times over their mean, shape (len(cells), trials, STEPS), each cell's from one real trial."""
    times_s = np.empty((len(cells), trials, STEPS))
    for cell, number in enumerate(cells):
        blocks = np.lib.stride_tricks.sliding_window_view(real_trials()[number % len(real_trials())], BLOCK)
        drawn = random.integers(len(blocks), size=(trials, -(-STEPS // BLOCK)))
        times_s[cell] = blocks[drawn].reshape(trials, -1)[:, :STEPS]
    return times_s


def steps_with_accidents(random: np.random.Generator, cells: range, trials: int) -> Array:
    """Return simulated step times over their mean, with occasional spikes."""
    from scipy.signal import lfilter  # a second to import, which whoever collects the tests of this need not wait for

    noise = random.standard_normal((len(cells), trials, STEPS), dtype=np.float32)
    noise[..., 1:] *= np.sqrt(1 - AUTOCORRELATION**2)  # the first step has the whole standard deviation
    noise = lfilter([1.0], [1.0, -AUTOCORRELATION], noise, axis=-1)
    logs = STEP_SD * noise
    logs += np.log(SPIKE_FACTOR) * (random.random(logs.shape, dtype=np.float32) < SPIKE_SHARE)
    return np.exp(logs)


def step_times_s(random: np.random.Generator, cells: range, trials: int, machine: Machine = QUIET) -> Array:
    """Return step times of trials in seconds, shape (len(cells), trials, STEPS)."""
    steps = (steps_with_accidents if machine.accidents else real_steps)(random, cells, trials)
    if machine.even:
        # What steps do to the trial as a whole is taken out of it.
        steps = steps / steps.mean(axis=-1, keepdims=True)
    return STEP_TIME_S * steps * np.exp(machine.trial_sds(cells) * random.standard_normal((len(cells), trials, 1)))


def slower(random: np.random.Generator, times_s: Array, loss: float, stalls: bool = False) -> Array:
    """Return slower step times: every step loses the share `loss` of its throughput, or one step in ten stalls."""
    if not stalls:
        return times_s / (1 - loss)
    first = random.integers(STALL_EVERY, size=(*times_s.shape[:-1], 1))
    return np.where((np.arange(times_s.shape[-1]) - first) % STALL_EVERY == 0, STALL_FACTOR * times_s, times_s)


@dataclass(frozen=True)
class Truth:
    """How a rule judged cells whose true loss is known: shares of all cells, and of all matrices those in which any
    cell was called a regression. `coverage`: of the 95% intervals, those that hold the true ratio. `trials`: how many
    a side were looked at, on average."""

    loss: float
    regression: float
    passed: float
    matrices_with_regression: float
    coverage: float
    power: float
    trials: float


@dataclass(frozen=True)
class Judgement:
    """A way of judging: the looks, the estimate of a ratio, and the machine."""

    interims: tuple[Interim, ...]
    method: Callable[[Sequence[float], Sequence[float]], Estimate] = APART
    machine: Machine = QUIET


def settle(cells: Sequence[Figures], judgement: Judgement) -> list[Decided | None]:
    """Return the decisions of a gate after all its looks; None for a cell that is still inconclusive."""
    decided: list[Decided | None] = [None] * len(cells)
    for number in range(len(judgement.interims)):
        decided = judge_look(cells, decided, number, judgement)
    return decided


def judge_look(
    cells: Sequence[Figures],
    decided: Sequence[Decided | None],
    number: int,
    judgement: Judgement,
    phases: Sequence[phase_tests.PhaseTrials] | None = None,
) -> list[Decided | None]:
    """Return the decisions after a look at all cells together, as a gate makes them: a cell that is decided keeps its
    decision, and adds to the common noise with the trials that decided it."""
    seen = [judgement.interims[number if decision is None else decision[1]].trials for decision in decided]
    estimates = [judgement.method(current[:n], base[:n]) for (current, base), n in zip(cells, seen, strict=True)]
    rule = judgement.interims[number].rule.among(len(cells))
    judged = [rule.judge(estimate.ratio) for estimate in noise.pooled(estimates)]
    if phases is not None:
        lost = map(phase_tests.lost, phase_tests.judge(phases, rule))
        judged = [
            "regression" if verdict == "inconclusive" and phase else verdict
            for verdict, phase in zip(judged, lost, strict=True)
        ]
    return [
        before or (None if verdict == "inconclusive" else (verdict, number))
        for before, verdict in zip(decided, judged, strict=True)
    ]


def measure(judgement: Judgement, loss: float, matrices: int, seed: int = 0, stalls: bool = False) -> Truth:
    """Judge `matrices` matrices of CELLS cells. With `stalls` the loss is STALLS, of stalls in one step of ten."""
    random = np.random.default_rng(seed)
    loss = STALLS if stalls else loss
    decisions, covered, trials, power = [], [], [], []
    last = judgement.interims[-1]
    for number in range(matrices):
        cells = _matrix(random, judgement, loss, number, stalls)
        decided = settle(cells, judgement)
        seen = [last.trials if decision is None else judgement.interims[decision[1]].trials for decision in decided]
        estimates = noise.pooled(
            [judgement.method(current[:n], base[:n]) for (current, base), n in zip(cells, seen, strict=True)]
        )
        decisions.append([decision and decision[0] for decision in decided])
        covered += [estimate.ratio.interval().holds(1 - loss) for estimate in estimates]
        rule = last.rule.among(CELLS)
        power += [rule.power(e.with_more_trials(last.trials - n)) for e, n in zip(estimates, seen, strict=True)]
        trials += seen
    judged = np.array(decisions)
    return Truth(
        loss=loss,
        regression=float(np.mean(judged == "regression")),
        # A cell that is surely faster is surely not slower.
        passed=float(np.mean((judged == "pass") | (judged == "improved"))),
        matrices_with_regression=float(np.mean(np.any(judged == "regression", axis=1))),
        coverage=float(np.mean(covered)),
        power=float(np.mean(power)),
        trials=float(np.mean(trials)),
    )


def _matrix(random: np.random.Generator, judgement: Judgement, loss: float, number: int, stalls: bool) -> list[Figures]:
    """Return the figures (current, base) of the cells of one matrix."""
    trials, machine = judgement.interims[-1].trials, judgement.machine
    cells = range(number * CELLS, (number + 1) * CELLS)
    base, current = (step_times_s(random, cells, trials, machine) for _ in range(2))
    rounds = np.exp(machine.drift_sd * random.standard_normal((CELLS, trials))) if machine.drift_sd else 1.0
    current = slower(random, current, loss, stalls)
    rates = [(rounds / times_s.mean(axis=-1)).tolist() for times_s in (current, base)]
    return list(zip(*rates, strict=True))


PHASED_RUN = "amd-epyc-2cpu/cpu-20261123-025926.jsonl"
"""30 cells of five trials, in a matrix whose rounds take turns."""

PRIOR_DEGREES = 3
WILD_EVERY, WILD_FACTOR = 10, 5.0


@functools.cache
def real_phases(run: str) -> tuple[tuple[str, ...], Array, Array]:
    """Return the phases of a file of records: names, shares of the step by cell, and residuals by trial.

    A residual is a phase's relative deviation from the cell's mean, divided by the standard deviation of the cell's
    whole step. That deviation is shrunk towards the common one of all cells, because few trials alone would make
    phases look less alike than they are."""
    cells: dict[str, list[list[float]]] = {}
    names: tuple[str, ...] = ()
    for record in store.read([RESULTS / run]).records:
        if record.measurement is not None and record.measurement.phases:
            names = tuple(phase.name for phase in record.measurement.phases)
            times_s = [statistics.median(phase.host_s) for phase in record.measurement.phases]
            cells.setdefault(record.cell.key, []).append(times_s)
    repeated = [trials for trials in map(np.array, cells.values()) if len(trials) > 1]
    variances = np.array([(trials.sum(axis=1) / trials.sum(axis=1).mean()).var(ddof=1) for trials in repeated])
    degrees = np.array([len(trials) - 1 for trials in repeated])
    moderated = (PRIOR_DEGREES * np.median(variances) + degrees * variances) / (PRIOR_DEGREES + degrees)
    shares, residuals = [], []
    for trials, variance in zip(repeated, moderated, strict=True):
        mean_s = trials.mean(axis=0)
        shares.append(mean_s / mean_s.sum())
        residuals += [*(np.sqrt(len(trials) / (len(trials) - 1) / variance) * (trials / mean_s - 1))]
    return names, np.array(shares), np.array(residuals) / (np.array(residuals) @ np.array(shares).T).std()


PhaseChanges = Literal["nothing", "forward", "backward", "update", "all", "moved"]


def phase_times_s(
    random: np.random.Generator, trials: int, machine: PhasedMachine, loss: float, change: PhaseChanges, place: str = ""
) -> Array:
    """Return the seconds of a matrix's phases, shape (2 sides, cells, trials, phases), base first."""
    names, shares, residuals = real_phases(machine.run)
    of_cell = shares[random.integers(len(shares), size=machine.cells)]
    sd = np.full(machine.cells, machine.trial_sd)
    sd[::WILD_EVERY] *= machine.wild
    drawn = residuals[random.integers(len(residuals), size=(2, machine.cells, trials))]
    times = of_cell[None, :, None] * (1 + sd[None, :, None, None] * drawn)
    grown = loss / (1 - loss)
    big = of_cell > 0.08
    for cell in range(machine.cells):
        slower = names.index(place) if place else int(random.choice(np.flatnonzero(big[cell])))
        if change == "all":
            times[1, cell] *= 1 + grown
        elif change != "nothing":
            times[1, cell, :, slower] += grown
        if change == "moved":
            gaining = [n for n in np.flatnonzero(big[cell]) if n != slower]
            times[1, cell, :, int(random.choice(gaining))] -= grown
    rounds = np.exp(machine.drift_sd * random.standard_normal((machine.cells, trials)))
    return np.asarray(STEP_TIME_S * np.maximum(times, 1e-5) * rounds[None, :, :, None])


@dataclass(frozen=True)
class PhasedMachine:
    """Standard deviations from trial to trial, and from round to round; `wild`: one cell in ten varies so many times as
    much. How phases differ is that of the trials of `run`. `cells`: of a matrix."""

    trial_sd: float
    drift_sd: float = 0.0
    wild: float = 1.0
    run: str = PHASED_RUN
    cells: int = CELLS


def measure_phases(
    judgement: Judgement, machine: PhasedMachine, change: PhaseChanges, matrices: int, loss: float = 0.05, seed: int = 0
) -> tuple[float, float, float, float]:
    """Return the shares of cells called a regression by the whole step alone and with phases, then those of matrices
    with any such cell."""
    random = np.random.default_rng(seed)
    names = real_phases(machine.run)[0]
    called = []
    place = change if change in names else ""
    for _ in range(matrices):
        times_s = phase_times_s(random, judgement.interims[-1].trials, machine, loss, change, place)
        rates = (1 / times_s.sum(axis=-1)).tolist()
        cells = [(current, base) for base, current in zip(*rates, strict=True)]
        by_phase = [[dict(zip(names, trials.T.tolist(), strict=True)) for trials in side] for side in times_s]
        by_step: list[Decided | None] = [None] * machine.cells
        both: list[Decided | None] = [None] * machine.cells
        for number in range(len(judgement.interims)):
            by_step = judge_look(cells, by_step, number, judgement)
            phases = []
            for cell, decided in enumerate(both):
                n = judgement.interims[decided[1] if decided else number].trials
                base, current = ({k: v[:n] for k, v in side[cell].items()} for side in by_phase)
                step_s = 1 / statistics.geometric_mean(cells[cell][1][:n])
                by_round = judgement.method(cells[cell][0][:n], cells[cell][1][:n]).by_round
                phases.append(phase_tests.PhaseTrials(step_s, base, current, by_round))
            both = judge_look(cells, both, number, judgement, phases)
        called.append([[d is not None and d[0] == "regression" for d in decisions] for decisions in (by_step, both)])
    judged = np.array(called)
    before, now = judged.mean(axis=(0, 2))
    any_before, any_now = judged.any(axis=2).mean(axis=0)
    return float(before), float(now), float(any_before), float(any_now)


def show_phases(matrices: int, seed: int, only: str, run: str, cells: int) -> None:
    """Print how often a regression is called by the whole step alone, and with phases."""
    machines = {
        "trials differ by 2.5%": PhasedMachine(0.025),
        "trials differ by 5%": PhasedMachine(0.05),
        "2.5%, one cell in ten wild": PhasedMachine(0.025, wild=WILD_FACTOR),
        "2.5%, one cell in ten twice as wild": PhasedMachine(0.025, wild=2.0),
        "2.5%, rounds by 10%": PhasedMachine(0.025, drift_sd=DRIFT_SD),
    }
    looks = {"5 trials": Judgement(FIVE), "8 trials": Judgement(EIGHT), "gate": Judgement(GATE, IN_TURNS)}
    print(f"{matrices} pairs of {cells} cells, phases of {run}, seed {seed}")
    print("cells called (whole, with phases), pairs with any (whole, with phases)")
    for machine, of_machine in machines.items():
        for name, judgement in looks.items():
            for change in get_args(PhaseChanges):
                if only not in f"{machine}, {name}, {change}":
                    continue
                shares = measure_phases(
                    judgement, replace(of_machine, run=run, cells=cells), change, matrices, seed=seed
                )
                print(f"{machine}, {name}, {change}: " + "  ".join(f"{share:.2%}" for share in shares), flush=True)


FIVE, EIGHT, GATE = (Interim(5, Rule()),), (Interim(8, Rule()),), verdict.interims()
_GATE = f"gate, looks at {', '.join(map(str, verdict.DEFAULT_INTERIMS))}"
COMPARISONS = {
    "compare, 3 trials a side, quiet": Judgement((Interim(3, Rule()),)),
    "compare, 5 trials a side, even": Judgement(FIVE, machine=EVEN),
    "compare, 5 trials a side, quiet": Judgement(FIVE),
    "compare, 8 trials a side, even": Judgement(EIGHT, machine=EVEN),
    "compare, 8 trials a side, quiet": Judgement(EIGHT),
    f"{_GATE}, even": Judgement(GATE, IN_TURNS, EVEN),
    f"{_GATE}, quiet": Judgement(GATE, IN_TURNS),
    f"{_GATE}, drifting": Judgement(GATE, IN_TURNS, DRIFTING),
    f"{_GATE}, drifting, without pairing rounds": Judgement(GATE, APART, DRIFTING),
    "compare, 5 trials a side, noisy": Judgement(FIVE, machine=NOISY),
    "compare, 8 trials a side, noisy": Judgement(EIGHT, machine=NOISY),
    f"{_GATE}, noisy": Judgement(GATE, IN_TURNS, NOISY),
    "compare, 5 trials a side, mixed": Judgement(FIVE, machine=MIXED),
    "compare, 8 trials a side, mixed": Judgement(EIGHT, machine=MIXED),
    f"{_GATE}, mixed": Judgement(GATE, IN_TURNS, MIXED),
    "compare, 5 trials a side, with accidents": Judgement(FIVE, machine=ACCIDENTS),
    f"{_GATE}, with accidents": Judgement(GATE, IN_TURNS, ACCIDENTS),
}
LOSSES = (0.0, 0.03, 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--matrices", type=int, default=1000, help=f"of {CELLS} cells each (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phases", action="store_true", help="judge phases beside the whole")
    parser.add_argument("--run", default=PHASED_RUN, help="whose phases, under results/")
    parser.add_argument("--cells", type=int, default=CELLS, help=f"of a matrix with phases (default: {CELLS})")
    parser.add_argument("--only", default="", metavar="WORDS", help="comparisons whose names hold this")
    arguments = parser.parse_args()
    if arguments.phases:
        show_phases(arguments.matrices, arguments.seed, arguments.only, arguments.run, arguments.cells)
        return
    print(f"{arguments.matrices} matrices of {CELLS} cells, threshold {Rule().threshold:.0%}, seed {arguments.seed}")
    print(f"{len(real_trials())} real trials, {sum(map(len, real_trials()))} steps")
    heading = ("loss", "regression", "pass", "matrices with any", "95% interval holds", "power told", "trials a side")
    for name, judgement in COMPARISONS.items():
        if arguments.only not in name:
            continue
        start = time.monotonic()
        print(f"\n{name}\n" + "  ".join(f"{word:>18}" for word in heading))
        for loss, stalls in (*((loss, False) for loss in LOSSES), (STALLS, True)):
            truth = measure(judgement, loss, arguments.matrices, arguments.seed, stalls)
            shares = (truth.regression, truth.passed, truth.matrices_with_regression, truth.coverage, truth.power)
            label = f"stalls, {loss:.1%}" if stalls else f"{loss:.0%}"
            cells = [label, *(f"{share:.2%}" for share in shares), f"{truth.trials:.2f}"]
            print("  ".join(f"{cell:>18}" for cell in cells), flush=True)
        print(f"({time.monotonic() - start:.0f} s)")


if __name__ == "__main__":
    main()
