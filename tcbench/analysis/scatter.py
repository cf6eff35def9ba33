"""How much trials of one run differ: what a cell with few trials leaves open, the others tell.

The logarithm of a trial's rate is taken as its cell's level, plus what its round has in common with the other cells
(the machine drifts), plus noise: a two-way layout without interaction, fitted by least squares (H. Scheffé, "The
Analysis of Variance", 1959, chapter 4). The noise about that fit, of all cells together, is the run's scatter; a cell's
own variance is drawn towards it with a weight of `WEIGHT` degrees of freedom, as the prior of G. Smyth ("Linear models
and empirical Bayes methods for assessing differential expression in microarray experiments", Statistical Applications
in Genetics and Molecular Biology 3(1), 2004, section 3), and a cell with one trial takes it as it is. Unlike
`tcbench.analysis.noise`, which needs two trials a side, the weight is held and not fitted and the variances enter by
their mean and not by the mean of their logarithms: few cells do not tell how much cells differ, and an interval that is
too narrow for noisy ones would decide what is open. `benchmarks/scatter_truth.py` measures what comes of it.

For factors within a run. Verdicts between two sides (`compare`, `gate`, `history`) never rest on one trial a side.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from tcbench.analysis.welch import Group

WEIGHT = 3.0
"""Of the run's scatter, in degrees of freedom, at most: the t of a cell with one trial has so many."""

Trials = Sequence[tuple[Hashable, float]]
"""A cell's trials: the round of each, and the logarithm of its rate."""


@dataclass(frozen=True)
class Scatter:
    """The variances of noise and of rounds, as logarithms, with their degrees of freedom. `of_rounds`: what each round
    has in common, as far as any two cells tell. `pool`: the runs."""

    variance: float
    degrees: float
    drift: float
    drift_degrees: float
    of_rounds: Mapping[Hashable, float]
    pool: tuple[str, ...]

    def group(self, trials: Trials) -> Group:
        """A cell's rate over its trials, judged by them and by the run."""
        logs = [log for _, log in trials]
        n, mean = len(logs), math.fsum(logs) / len(logs)
        left = [log - self.of_rounds.get(of_round, 0.0) for of_round, log in trials]
        about = math.fsum(left) / n
        weight = min(WEIGHT, self.degrees)
        own = math.fsum((log - about) ** 2 for log in left)
        variance = (weight * self.variance + own) / (weight + n - 1)
        # Where there are hardly other cells, the scatter is the cell's own variance.
        degrees = min(weight + n - 1, self.degrees)
        rounds = frozenset(of_round for of_round, _ in trials)
        return Group(n, mean, variance, degrees, weight, self.drift, self.drift_degrees, self.pool, rounds)


def scatter(cells: Sequence[Trials], pool: tuple[str, ...] = ("run",)) -> Scatter | None:
    """How the trials of these cells differ, measured on one machine in the same rounds; None where no cell has two."""
    import numpy as np

    several = [trials for trials in cells if len(trials) > 1]
    if not several:
        return None
    rounds = {of_round: n for n, of_round in enumerate(dict.fromkeys(r for trials in several for r, _ in trials))}
    # Cells are taken out by their means; what is left of the normal equations is one row for each round.
    normal, right, total = np.zeros((len(rounds), len(rounds))), np.zeros(len(rounds)), 0.0
    for trials in several:
        at, logs = [rounds[of_round] for of_round, _ in trials], np.array([log for _, log in trials])
        logs = logs - logs.mean()
        normal[np.ix_(at, at)] += np.eye(len(at)) - 1 / len(at)
        right[at] += logs
        total += float(logs @ logs)
    degrees = sum(len(trials) - 1 for trials in several)
    of_rounds, _, rank, _ = np.linalg.lstsq(normal, right, rcond=1e-9)
    explained, left = float(right @ of_rounds), degrees - int(rank)
    if left < rank:  # hardly more cells than one: rounds cannot be told from noise
        return Scatter(total / degrees, degrees, 0.0, 1.0, {}, pool)
    variance = max(total - explained, 0.0) / left
    drift = max(explained - variance * rank, 0.0) / degrees
    return Scatter(variance, left, drift, float(rank), dict(zip(rounds, of_rounds.tolist(), strict=True)), pool)
