"""How much the trials of one run vary: a cell with few trials takes its uncertainty from the other cells.

The logarithm of a trial's rate is modelled as the cell's level, plus the effect of its round on all cells (the machine
drifts), plus noise: a two-way layout without interaction, fitted by least squares (H. Scheffé, "The Analysis of
Variance", 1959, chapter 4). The residual variance over all cells is the run's scatter. A cell's own variance is shrunk
towards it with a prior of a few degrees of freedom (G. Smyth, "Linear models and empirical Bayes methods for assessing
differential expression in microarray experiments", Statistical Applications in Genetics and Molecular Biology 3(1),
2004, section 3); a cell with one trial uses the run's scatter unchanged.

Round effects are fitted to the trials of all cells, which makes residuals smaller than the noise: a residual has the
variance 1 - h of the noise, where h is its leverage (D. Hoaglin and R. Welsch, "The hat matrix in regression and
ANOVA", The American Statistician 32, 1978). A cell's squares therefore have the sum of 1 - h as their degrees of
freedom. The residuals of two cells even mirror each other, so no factor has more degrees of freedom than the run's
scatter: with two cells, its interval is that of the paired t-test.

In contrast to `tcbench.analysis.noise`, which needs two trials a side, the weight of the prior is fixed and variances
are averaged directly, not by their logarithms. Few cells cannot show how much cells differ, and an interval that is too
narrow for noisy cells would settle open questions wrongly. The prior of few cells therefore has a small weight, chosen
by simulation: `benchmarks/scatter_truth.py` measures the coverage.

This is for factors within a run. Verdicts between two sides (`compare`, `gate`, `history`) never rest on one trial a
side."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tcbench.analysis.welch import SampleStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WEIGHT = 3.0
"""Largest weight of the run's scatter as a prior, in degrees of freedom. A cell with one trial has this many."""

LEAST_WEIGHT, WEIGHT_PER_CELL = 0.3, 0.05
"""Weight of the prior for a cell with three or more trials: the larger of the first number and the second times the
number of cells."""

Trials = Sequence[tuple[Hashable, float]]
"""A cell's trials: the round and the logarithm of the rate of each."""


@dataclass(frozen=True)
class Scatter:
    """The variances of noise and of round effects on the log scale, with their degrees of freedom.

    - `cells`: the number of cells with several trials.
    - `round_effects`: the effect of each round, if two or more cells show it.
    - `covariance`: the covariances of these effects in the same order, as multiples of `variance`.
    - `pool`: the names of the runs."""

    variance: float
    degrees: float
    drift: float
    drift_degrees: float
    pool: tuple[str, ...]
    cells: int
    round_effects: Mapping[Hashable, float] = field(default_factory=dict)
    covariance: NDArray[np.floating] | None = field(default=None, compare=False)

    def group(self, trials: Trials) -> SampleStats:
        """Return the statistics of a cell's log rates. The variance, without round effects, is shrunk towards the run's
        scatter."""
        logs = [log for _, log in trials]
        n, mean = len(logs), math.fsum(logs) / len(logs)
        adjusted_logs = [log - self.round_effects.get(round_id, 0.0) for round_id, log in trials]
        adjusted_mean = math.fsum(adjusted_logs) / n
        own_degrees = self._own_degrees([round_id for round_id, _ in trials])
        # The fewer degrees of freedom a cell has, the more it needs the prior: a second trial must not widen intervals.
        weight = max(LEAST_WEIGHT, WEIGHT_PER_CELL * self.cells, WEIGHT - 2.25 * own_degrees)
        weight = min(weight, WEIGHT, self.degrees)
        squares = math.fsum((log - adjusted_mean) ** 2 for log in adjusted_logs)
        variance = (weight * self.variance + squares) / (weight + own_degrees)
        # F. Satterthwaite, Biometrics Bulletin 2, 1946: the degrees of freedom of a weighted sum of two variances.
        degrees = (weight + own_degrees) ** 2 / (weight**2 / self.degrees + own_degrees)
        return SampleStats(
            n,
            mean,
            variance,
            degrees=min(degrees, WEIGHT + own_degrees, self.degrees),
            shared=weight,
            pool_degrees=self.degrees,
            drift=self.drift,
            drift_degrees=self.drift_degrees,
            pool=self.pool,
            rounds=frozenset(round_id for round_id, _ in trials),
        )

    def _own_degrees(self, rounds: Sequence[Hashable]) -> float:
        """Return the degrees of freedom of the residuals of a cell that was measured in these rounds."""
        n = len(rounds)
        if self.covariance is None:
            return n - 1
        places = {round_id: place for place, round_id in enumerate(self.round_effects)}
        rows = [places[round_id] for round_id in rounds if round_id in places]
        shared = self.covariance[rows][:, rows]
        return max(0.0, n - 1 - float(shared.trace() - shared.sum() / n))


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
        return Scatter(total / degrees, degrees, 0.0, 1.0, pool, len(several))
    variance = max(total - explained, 0.0) / residual_degrees
    drift = max(explained - variance * rank, 0.0) / degrees
    round_effects = dict(zip(rounds, effects.tolist(), strict=True))
    covariance = np.linalg.pinv(normal, rcond=1e-9, hermitian=True)
    return Scatter(variance, residual_degrees, drift, float(rank), pool, len(several), round_effects, covariance)
