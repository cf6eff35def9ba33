"""How often the verdicts are right: `python benchmarks/gate_truth.py [--matrices 1000]`.

Simulates matrices of cells whose truth is known and lets the product's own rules judge them. A trial's speed differs
from the next one's by 1% (standard deviation); it has 200 steps, which differ by 2%, are autocorrelated (AR(1), 0.5),
and of which 0.5% take 5 times as long. Nothing here draws a distribution that the rules assume. On a machine that
drifts, rounds differ by 10% on top, and the two trials of a round share that: what a gate's turns are for. On a noisy
machine trials differ by 5%, more than the threshold, which then keeps no false alarm away.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from tcbench.analysis import verdict
from tcbench.analysis.compare import APART, IN_TURNS, Method
from tcbench.analysis.verdict import Look, Rule

CELLS = 40
STEPS = 200
TRIAL_SD, STEP_SD, AUTOCORRELATION = 0.01, 0.02, 0.5
SPIKE_SHARE, SPIKE_FACTOR = 0.005, 5.0
NOISY_SD, DRIFT_SD = 0.05, 0.1
STEP_TIME_S = 0.1

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Machine:
    """Standard deviations: from trial to trial, and from round to round on top, which both sides share."""

    trial_sd: float = TRIAL_SD
    drift_sd: float = 0.0


QUIET, NOISY, DRIFTING = Machine(), Machine(trial_sd=NOISY_SD), Machine(drift_sd=DRIFT_SD)


def step_times_s(
    random: np.random.Generator, shape: tuple[int, ...], loss: float = 0.0, trial_sd: float = TRIAL_SD
) -> Array:
    """Step times of trials, shape (*shape, STEPS), in seconds; `loss` is the share of the throughput that is lost."""
    noise = random.standard_normal((*shape, STEPS), dtype=np.float32)
    noise[..., 1:] *= np.sqrt(1 - AUTOCORRELATION**2)  # the first step has the whole standard deviation
    noise = lfilter([1.0], [1.0, -AUTOCORRELATION], noise, axis=-1)
    logs = STEP_SD * noise + trial_sd * random.standard_normal((*shape, 1))
    logs += np.log(SPIKE_FACTOR) * (random.random(logs.shape, dtype=np.float32) < SPIKE_SHARE)
    return STEP_TIME_S / (1 - loss) * np.exp(logs)


def figures(
    random: np.random.Generator, cells: int, trials: int, loss: float = 0.0, trial_sd: float = TRIAL_SD
) -> Array:
    """Images/s (of one image a step) at each trial's median step: shape (cells, trials)."""
    return 1 / np.median(step_times_s(random, (cells, trials), loss, trial_sd), axis=-1)


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
    trials: float


@dataclass(frozen=True)
class Judgement:
    """What is judged how: by which looks, taken how, on which machine."""

    looks: tuple[Look, ...]
    method: Method = APART
    machine: Machine = QUIET


def measure(of: Judgement, loss: float, matrices: int, seed: int = 0) -> Truth:
    """Judge `matrices` matrices of CELLS cells."""
    random = np.random.default_rng(seed)
    decisions, covered, trials = [], [], []
    for base, current in _cells(random, of.looks[-1].trials, loss, matrices, of.machine):
        decision, number = verdict.settle(current, base, of.looks, of.method.estimate)
        n = of.looks[number].trials
        decisions.append(decision)
        covered.append(of.method.estimate(current[:n], base[:n]).ratio.interval().holds(1 - loss))
        trials.append(n)
    judged = np.array(decisions).reshape(matrices, CELLS)
    return Truth(
        loss=loss,
        regression=float(np.mean(judged == "regression")),
        # What is surely faster is surely not slower.
        passed=float(np.mean((judged == "pass") | (judged == "improved"))),
        matrices_with_regression=float(np.mean(np.any(judged == "regression", axis=1))),
        coverage=float(np.mean(covered)),
        trials=float(np.mean(trials)),
    )


def _cells(
    random: np.random.Generator, trials: int, loss: float, matrices: int, machine: Machine
) -> Iterator[tuple[list[float], list[float]]]:
    """Base and current of every cell of every matrix."""
    for _ in range(matrices):
        base, current = (figures(random, CELLS, trials, lost, machine.trial_sd) for lost in (0.0, loss))
        rounds = np.exp(machine.drift_sd * random.standard_normal((CELLS, trials))) if machine.drift_sd else 1.0
        yield from zip((base * rounds).tolist(), (current * rounds).tolist(), strict=True)


_GATE = f"gate, looks at {', '.join(map(str, verdict.DEFAULT_LOOKS))}"
COMPARISONS = {
    "compare, 3 trials a side": Judgement((Look(3, Rule()),)),
    "compare, 5 trials a side": Judgement((Look(5, Rule()),)),
    "compare, 8 trials a side": Judgement((Look(8, Rule()),)),
    _GATE: Judgement(verdict.looks(), IN_TURNS),
    f"{_GATE}, on a machine that drifts": Judgement(verdict.looks(), IN_TURNS, DRIFTING),
    f"{_GATE}, on a machine that drifts, without pairing rounds": Judgement(verdict.looks(), APART, DRIFTING),
    "compare, 5 trials a side, on a noisy machine": Judgement((Look(5, Rule()),), APART, NOISY),
    "compare, 8 trials a side, on a noisy machine": Judgement((Look(8, Rule()),), APART, NOISY),
    f"{_GATE}, on a noisy machine": Judgement(verdict.looks(), IN_TURNS, NOISY),
}
LOSSES = (0.0, 0.03, 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--matrices", type=int, default=1000, help=f"of {CELLS} cells each (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{arguments.matrices} matrices of {CELLS} cells, threshold {Rule().threshold:.0%}, seed {arguments.seed}")
    heading = ("loss", "regression", "pass", "matrices with any", "95% interval holds", "trials a side")
    for name, of in COMPARISONS.items():
        start = time.monotonic()
        print(f"\n{name}\n" + "  ".join(f"{word:>18}" for word in heading))
        for loss in LOSSES:
            found = measure(of, loss, arguments.matrices, arguments.seed)
            shares = (found.regression, found.passed, found.matrices_with_regression, found.coverage)
            cells = [f"{loss:.0%}", *(f"{share:.2%}" for share in shares), f"{found.trials:.2f}"]
            print("  ".join(f"{cell:>18}" for cell in cells), flush=True)
        print(f"({time.monotonic() - start:.0f} s)")


if __name__ == "__main__":
    main()
