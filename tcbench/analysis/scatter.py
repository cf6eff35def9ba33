"""How much the trials of one run vary: a cell with few trials takes its uncertainty from the other cells.

The logarithm of a trial's rate is modelled as the cell's level, plus the effect of its round on all cells (the machine
drifts), plus noise: a two-way layout without interaction, fitted by least squares (H. Scheffé, "The Analysis of
Variance", 1959, chapter 4). The residual variance over all cells is the run's scatter. A cell's own variance is shrunk
towards it with a prior of `WEIGHT` degrees of freedom (G. Smyth, "Linear models and empirical Bayes methods for
assessing differential expression in microarray experiments", Statistical Applications in Genetics and Molecular Biology
3(1), 2004, section 3); a cell with one trial uses the run's scatter unchanged.

In contrast to `tcbench.analysis.noise`, which needs two trials a side, the weight of the prior is fixed and variances
are averaged directly, not by their logarithms. Few cells cannot show how much cells differ, and an interval that is too
narrow for noisy cells would settle open questions wrongly. `benchmarks/scatter_truth.py` measures the coverage.

This is for factors within a run. Verdicts between two sides (`compare`, `gate`, `history`) never rest on one trial a
side."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from tcbench.analysis.welch import SampleStats

WEIGHT = 3.0
"""Largest weight of the run's scatter as a prior, in degrees of freedom. A cell with one trial has this many."""

Trials = Sequence[tuple[Hashable, float]]
"""A cell's trials: the round and the logarithm of the rate of each."""


@dataclass(frozen=True)
class Scatter:
    """The variances of noise and of round effects on the log scale, with their degrees of freedom. `round_effects`
    holds the effect of each round, if two or more cells show it. `pool` names the runs."""

    variance: float
    degrees: float
    drift: float
    drift_degrees: float
    round_effects: Mapping[Hashable, float]
    pool: tuple[str, ...]

    def group(self, trials: Trials) -> SampleStats:
        """Return the statistics of a cell's log rates. The variance, without round effects, is shrunk towards the run's
        scatter."""
        logs = [log for _, log in trials]
        n, mean = len(logs), math.fsum(logs) / len(logs)
        adjusted_logs = [log - self.round_effects.get(round_id, 0.0) for round_id, log in trials]
        adjusted_mean = math.fsum(adjusted_logs) / n
        weight = min(WEIGHT, self.degrees)
        squares = math.fsum((log - adjusted_mean) ** 2 for log in adjusted_logs)
        variance = (weight * self.variance + squares) / (weight + n - 1)
        # With hardly any other cells, the run's scatter is this cell's own variance: it does not count twice.
        degrees = min(weight + n - 1, self.degrees)
        rounds = frozenset(round_id for round_id, _ in trials)
        return SampleStats(n, mean, variance, degrees, weight, self.drift, self.drift_degrees, self.pool, rounds)


def scatter(cells: Sequence[Trials], pool: tuple[str, ...] = ("run",)) -> Scatter | None:
    """Return the variance model fitted to the trials of `cells`, or None if no cell has two trials. The cells must have
    been measured on one machine in the same rounds. `pool` names the runs that measured them."""
    import numpy as np

    several = [trials for trials in cells if len(trials) > 1]
    if not several:
        return None
    rounds = {round_id: n for n, round_id in enumerate(dict.fromkeys(r for trials in several for r, _ in trials))}
    # Subtracting the cell means eliminates the cells: the normal equations keep one row per round.
    normal, right, total = np.zeros((len(rounds), len(rounds))), np.zeros(len(rounds)), 0.0
    for trials in several:
        rows, logs = [rounds[round_id] for round_id, _ in trials], np.array([log for _, log in trials])
        logs = logs - logs.mean()
        normal[np.ix_(rows, rows)] += np.eye(len(rows)) - 1 / len(rows)
        right[rows] += logs
        total += float(logs @ logs)
    degrees = sum(len(trials) - 1 for trials in several)
    effects, _, rank, _ = np.linalg.lstsq(normal, right, rcond=1e-9)
    explained, residual_degrees = float(right @ effects), degrees - int(rank)
    if residual_degrees < rank:  # with little more than one cell, round effects cannot be separated from noise
        return Scatter(total / degrees, degrees, 0.0, 1.0, {}, pool)
    variance = max(total - explained, 0.0) / residual_degrees
    drift = max(explained - variance * rank, 0.0) / degrees
    round_effects = dict(zip(rounds, effects.tolist(), strict=True))
    return Scatter(variance, residual_degrees, drift, float(rank), round_effects, pool)
