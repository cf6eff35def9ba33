"""The noise that the cells of one matrix have in common: what few trials of a cell leave open, the others tell.

Five trials a side tell the error of a ratio badly: what looks steady may be luck. Forty cells on one machine tell it
well, since trials of one cell differ about as much as those of another. So each cell's variance is drawn towards the
cells' common one, as far as the cells agree (empirical Bayes: G. Smyth, "Linear models and empirical Bayes methods for
assessing differential expression in microarray experiments", Statistical Applications in Genetics and Molecular Biology
3(1), 2004, sections 3 and 6.2). Some cells may be wild: the variance that a cell is drawn towards is the common one or
4, 16, ... times it, each with the probability that the cell's own variance and the other cells give it (a mixture
fitted by EM: M. Lu and M. Stephens, "Variance adaptive shrinkage (vash): flexible empirical Bayes estimation of
variances", Bioinformatics 32(22), 2016). Intervals allow for all of them: where some cells are wild, few trials that
happen to agree make none steady.

Below `LEAST_CELLS` cells each is judged by its own trials alone: so few do not tell whether they agree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, stdtr, zeta

from tcbench.analysis.welch import Estimate, LogRatio, quantile

LEAST_CELLS = 8

_WILD = 0.5
"""So many more cells are taken to be wild than seem so."""

_STEPS = 20
"""Of EM: from there on the fit moves by less than it is sure of."""

_UNLIKELY = 1e-9
"""Levels that are less probable are left out."""

_AGREE_AT_MOST = 1e-3
"""The least variance of the logarithms of true variances."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Mixed(LogRatio):
    """A ratio whose error is one of `errors`, ascending, each with a probability; `error` is their root mean square."""

    errors: tuple[float, ...]
    probabilities: tuple[float, ...]

    def reach(self, probability: float) -> float:
        tail = min(probability, 1 - probability)
        errors, probabilities = np.array(self.errors), np.array(self.probabilities)
        low, high = (-quantile(tail, self.degrees) * error for error in (self.errors[0], self.errors[-1]))
        while high > 1.0001 * low:
            middle = math.sqrt(low * high)
            beyond = float(stdtr(self.degrees, -middle / errors) @ probabilities)
            low, high = (middle, high) if beyond > tail else (low, middle)
        return math.copysign(high, probability - 0.5)


@dataclass(frozen=True)
class Pooled(Estimate):
    """A cell's ratio by its own trials and the noise of all: `levels` are the variances that it may be drawn towards
    over its own, ascending, each with a probability; `degrees` is the weight of a level in degrees of freedom."""

    levels: tuple[float, ...] = ()
    probabilities: tuple[float, ...] = ()
    degrees: float = 0.0

    def grown(self, more: int) -> LogRatio:
        own, own_degrees = super().grown(more), degrees_of(self, more)
        degrees = own_degrees + self.degrees
        levels, probabilities = np.array(self.levels), self.probabilities
        if more:  # of the same variance tell it better
            told = _fits(levels, own_degrees, self.degrees) - _fits(levels, degrees_of(self), self.degrees)
            odds = np.exp(told - told.max()) * probabilities
            probabilities = tuple((odds / odds.sum()).tolist())
        errors = own.error * np.sqrt((self.degrees * levels + own_degrees) / degrees)
        error = math.sqrt(float(errors**2 @ probabilities))
        return Mixed(own.log, error, degrees, tuple(errors.tolist()), probabilities)


def pooled(estimates: Sequence[Estimate]) -> list[Estimate]:
    """The ratios of the cells of one matrix by one metric, each with the noise that they have in common; those that do
    not vary at all as they are."""
    ratios = [estimate.ratio for estimate in estimates]
    # The variance of one trial: errors shrink with the number of trials, the noise does not.
    variances = np.array([r.error**2 * e.pairs for r, e in zip(ratios, estimates, strict=True)])
    degrees = np.array([degrees_of(estimate) for estimate in estimates])
    varying = np.flatnonzero((variances > 0) & np.isfinite(variances))
    together = list(estimates)
    if len(varying) >= LEAST_CELLS:
        levels, probabilities, weight = _fitted(variances[varying], degrees[varying])
        for n, of_cell in zip(varying.tolist(), probabilities, strict=True):
            likely = of_cell > _UNLIKELY
            own = tuple((levels[likely] / variances[n]).tolist())
            sides = estimates[n].numerator, estimates[n].denominator
            together[n] = Pooled(*sides, own, tuple(of_cell[likely].tolist()), weight)
    return together


def degrees_of(estimate: Estimate, more: int = 0) -> float:
    """Degrees of freedom of the variance of one trial. Cells that vary alike do so on both sides: all trials count."""
    return (1 if estimate.by_round else 2) * (estimate.pairs + more - 1)


def _fitted(variances: Array, degrees: Array) -> tuple[Array, Array, float]:
    """The common variance and its multiples, the probability of each by cell, and their degrees of freedom, by EM: in
    each step the common one by the moments of the logarithms of variances (Smyth 2004, section 6.2), which scatter by
    chance alone as trigamma(degrees / 2) says, of each cell as far as it belongs there."""
    logs = np.log(variances) - digamma(degrees / 2) + np.log(degrees / 2)
    by_chance = zeta(2, degrees / 2)  # trigamma
    common, weight = math.exp(float(np.median(logs))), float(degrees.sum())
    wild = max(1, math.ceil(math.log(float(variances.max()) / common, 4)) + 1)
    multiples: Array = np.power(4.0, np.arange(1 + wild))
    shares = np.full(1 + wild, 1 / (1 + wild))
    for _ in range(_STEPS):
        fits = np.log(shares)[:, None] + _fits(common * multiples[:, None] / variances, degrees, weight)
        likelihoods = np.exp(fits - fits.max(axis=0))
        probabilities = likelihoods / likelihoods.sum(axis=0)
        shares = probabilities.sum(axis=1)
        shares[1:] += _WILD / wild
        shares /= shares.sum()
        belong = probabilities[0] / probabilities[0].sum()
        mean, chance = float(belong @ logs), float(belong @ by_chance)
        cells = max(2.0, float(probabilities[0].sum()))
        scatter = float(belong @ (logs - mean) ** 2) * cells / (cells - 1)
        # A common variance is no better known than by the trials of all cells.
        agreed = 2 * _trigamma_inverse(max(scatter - chance, _AGREE_AT_MOST))
        weight = min(agreed, float(probabilities[0] @ degrees))
        common = math.exp(mean + float(digamma(weight / 2)) - math.log(weight / 2))
    return common * multiples, np.asarray(probabilities.T), weight


def _fits(levels: Array, degrees: Array | float, weight: float) -> Array:
    """The log likelihood of levels, over a cell's own variance: the density of F, less what they have in common."""
    return np.asarray(-(degrees * np.log(levels) + (degrees + weight) * np.log1p(degrees / weight / levels)) / 2)


def _trigamma_inverse(y: float) -> float:
    """The x > 0 whose trigamma is y > 0: Newton's method on 1 / trigamma, nearly linear (Smyth 2004, appendix)."""
    x = 0.5 + 1 / y
    for _ in range(50):
        trigamma = float(zeta(2, x))
        change = trigamma * (1 - trigamma / y) / (-2 * float(zeta(3, x)))
        x += change
        if -change < 1e-8 * x:
            break
    return x
