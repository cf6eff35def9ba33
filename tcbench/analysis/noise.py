"""The noise that the cells of one matrix have in common: what few trials of a cell leave open, the others tell.

Five trials a side tell the error of a ratio badly: what looks steady may be luck. Forty cells on one machine tell it
well, since trials of one cell differ about as much as those of another. So each cell's variance is drawn towards the
cells' common one, as far as the cells agree (empirical Bayes: G. Smyth, "Linear models and empirical Bayes methods for
assessing differential expression in microarray experiments", Statistical Applications in Genetics and Molecular Biology
3(1), 2004, sections 3 and 6.2). Two guards keep a noisy cell from borrowing the steadiness of quiet ones: a cell whose
variance does not belong to the others' stands alone (the idea of B. Phipson et al., "Robust hyperparameter estimation
protects against hypervariable genes", Annals of Applied Statistics 10(2), 2016), and the cells are taken to agree one
standard error less than they seem to.

Below `LEAST_CELLS` cells each is judged by its own trials alone: so few do not tell whether they agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, fdtri, polygamma

from tcbench.analysis.welch import Estimate, LogRatio

LEAST_CELLS = 8

_BELONGS, _BELONGS_OF_FEW, _FEW_DEGREES = 0.99, 0.95, 6
"""A cell whose variance exceeds the common one by more than this share of cells would stands alone; below so many
degrees of freedom, where a wild cell may seem tame, the second."""

_AGREE_AT_MOST = 1e-3
"""The least variance of the logarithms of true variances: 2,000 degrees of freedom for the common one."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pooled(Estimate):
    """A cell's ratio by its own trials and the common noise: `common` is the common variance over the cell's own,
    `degrees` the weight of the common one in degrees of freedom."""

    own: Estimate
    common: float
    degrees: float

    @property
    def n(self) -> int:
        return self.own.n

    @property
    def pairs(self) -> float:
        return self.own.pairs

    @property
    def by_round(self) -> bool:
        return self.own.by_round

    @property
    def inverse(self) -> Pooled:
        return replace(self, own=self.own.inverse)

    def grown(self, more: int) -> LogRatio:
        own, own_degrees = self.own.grown(more), _degrees(self.own, more)
        degrees = own_degrees + self.degrees
        error = own.error * math.sqrt((self.degrees * self.common + own_degrees) / degrees)
        return LogRatio(own.log, error, degrees)


def pooled(estimates: Sequence[Estimate]) -> list[Estimate]:
    """The ratios of the cells of one matrix by one metric, each with the noise that they have in common; those that do
    not vary at all, or not like the others, as they are."""
    ratios = [estimate.ratio for estimate in estimates]
    # The variance of one trial: errors shrink with the number of trials, the noise does not.
    variances = np.array([r.error**2 * e.pairs for r, e in zip(ratios, estimates, strict=True)])
    degrees = np.array([_degrees(estimate) for estimate in estimates])
    inside = (variances > 0) & np.isfinite(variances)
    while np.count_nonzero(inside) >= LEAST_CELLS:
        common, weight = _fitted(variances[inside], degrees[inside])
        outside = inside & (
            variances > common * fdtri(degrees, weight, np.where(degrees < _FEW_DEGREES, _BELONGS_OF_FEW, _BELONGS))
        )
        if not outside.any():
            return [
                Pooled(estimate, common / variance, weight) if of_them else estimate
                for estimate, variance, of_them in zip(estimates, variances.tolist(), inside, strict=True)
            ]
        inside &= ~outside
    return list(estimates)


def _degrees(estimate: Estimate, more: int = 0) -> float:
    """Degrees of freedom of the variance of one trial. Cells that vary alike do so on both sides: all trials count."""
    return (1 if estimate.by_round else 2) * (estimate.pairs + more - 1)


def _fitted(variances: Array, degrees: Array) -> tuple[float, float]:
    """The common variance and its degrees of freedom, by the moments of the logarithms of variances (Smyth 2004,
    section 6.2), which scatter by chance alone as trigamma(degrees / 2) says."""
    logs = np.log(variances) - digamma(degrees / 2) + np.log(degrees / 2)
    by_chance = float(polygamma(1, degrees / 2).mean())
    scatter = max(float(logs.var(ddof=1)), by_chance) * (1 + math.sqrt(2 / (len(logs) - 1)))
    weight = 2 * _trigamma_inverse(max(scatter - by_chance, _AGREE_AT_MOST))
    return math.exp(float(logs.mean()) + float(digamma(weight / 2)) - math.log(weight / 2)), weight


def _trigamma_inverse(y: float) -> float:
    """The x > 0 whose trigamma is y > 0: Newton's method on 1 / trigamma, which is nearly linear (Smyth 2004,
    appendix)."""
    x = 0.5 + 1 / y
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        change = trigamma * (1 - trigamma / y) / float(polygamma(2, x))
        x += change
        if -change < 1e-8 * x:
            break
    return x
