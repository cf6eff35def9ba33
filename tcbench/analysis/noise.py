"""Pool the noise of all cells of one matrix, so that few trials of a cell are judged with the help of the other cells.

Five trials a side estimate the error of a ratio poorly: trials that agree may do so by luck. Forty cells on one machine
estimate it well, since the trials of all cells vary about equally. Each cell's variance is therefore shrunk towards the
common variance, the more so the better the cells agree (empirical Bayes: G. Smyth, "Linear models and empirical Bayes
methods for assessing differential expression in microarray experiments", Statistical Applications in Genetics and
Molecular Biology 3(1), 2004, sections 3 and 6.2).

Some cells may be wild. The prior variance of a cell is therefore the common variance or 4, 16, ... times that, each
level with a posterior probability (a mixture fitted by EM: M. Lu and M. Stephens, "Variance adaptive shrinkage (vash):
flexible empirical Bayes estimation of variances", Bioinformatics 32(22), 2016). Confidence intervals take all levels
into account: if some cells are wild, a few trials that happen to agree do not make a cell look steady.

Below `LEAST_CELLS` cells, each cell is judged by its own trials alone: so few cannot show whether they agree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, stdtr, zeta

from tcbench.analysis.welch import Estimate, LogRatio, quantile

LEAST_CELLS = 8
"""The number of varying cells from which on their noise is pooled."""

_WILD = 0.5
"""Number of pseudo-observations added to the wild levels, so that more cells are taken to be wild than appear so."""

_STEPS = 20
"""Number of EM iterations. Further iterations change the fit by less than its own uncertainty."""

_UNLIKELY = 1e-9
"""Variance levels with a lower probability than this are dropped."""

_AGREE_AT_MOST = 1e-3
"""Lower bound for the variance of the log true variances, since cells never agree perfectly."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Mixed(LogRatio):
    """A log ratio whose standard error is a mixture: one of `errors` (ascending), each with a probability. `error` is
    their root mean square."""

    errors: tuple[float, ...]
    probabilities: tuple[float, ...]

    def reach(self, probability: float) -> float:
        """Return the distance from the log ratio to its limit at this probability, by bisection over the mixture."""
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
    """A cell's ratio with a pooled variance. `levels` are the prior variances relative to the cell's own variance,
    ascending, each with a probability; `degrees` is the weight of the prior in degrees of freedom."""

    levels: tuple[float, ...] = ()
    probabilities: tuple[float, ...] = ()
    degrees: float = 0.0

    def with_more_trials(self, more: int) -> LogRatio:
        """Return the ratio with `more` additional trials a side, assuming that means and variances stay the same."""
        unpooled, trial_degrees = super().with_more_trials(more), degrees_of(self, more)
        degrees = trial_degrees + self.degrees
        levels, probabilities = np.array(self.levels), self.probabilities
        if more:  # more trials of the same variance sharpen the probabilities
            log_gains = _fits(levels, trial_degrees, self.degrees) - _fits(levels, degrees_of(self), self.degrees)
            odds = np.exp(log_gains - log_gains.max()) * probabilities
            probabilities = tuple((odds / odds.sum()).tolist())
        errors = unpooled.error * np.sqrt((self.degrees * levels + trial_degrees) / degrees)
        error = math.sqrt(float(errors**2 @ probabilities))
        return Mixed(unpooled.log, error, degrees, tuple(errors.tolist()), probabilities)


def pooled(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Return the ratios of all cells of a matrix with pooled variances, in order. All `estimates` must be of one
    metric. Cells whose trials do not vary are returned unchanged, as are all cells if fewer than `LEAST_CELLS` vary."""
    ratios = [estimate.ratio for estimate in estimates]
    # The variance of one trial: errors shrink with the number of trials, the noise does not.
    variances = np.array([r.error**2 * e.pairs for r, e in zip(ratios, estimates, strict=True)])
    degrees = np.array([degrees_of(estimate) for estimate in estimates])
    varying = np.flatnonzero((variances > 0) & np.isfinite(variances))
    shrunk = list(estimates)
    if len(varying) >= LEAST_CELLS:
        levels, probabilities, weight = _fitted(variances[varying], degrees[varying])
        for n, cell_probabilities in zip(varying.tolist(), probabilities, strict=True):
            likely = cell_probabilities > _UNLIKELY
            relative_levels = tuple((levels[likely] / variances[n]).tolist())
            sides = estimates[n].numerator, estimates[n].denominator
            shrunk[n] = Pooled(*sides, relative_levels, tuple(cell_probabilities[likely].tolist()), weight)
    return shrunk


def degrees_of(estimate: Estimate, more: int = 0) -> float:
    """Return the degrees of freedom of the variance of one trial, with `more` additional trials per side. Both sides
    are assumed to vary equally, so that all trials count."""
    return (1 if estimate.by_round else 2) * (estimate.pairs + more - 1)


def _fitted(variances: Array, degrees: Array) -> tuple[Array, Array, float]:
    """Fit the prior by EM. Return the variance levels (the common variance and its multiples, ascending), the posterior
    probability of each level (one row per cell), and the prior's degrees of freedom. `variances` and `degrees` are the
    cells' own.

    Each iteration fits the common level to the moments of the log variances (Smyth 2004, section 6.2), weighting each
    cell by its probability to belong to that level. By chance alone a log variance has the variance trigamma(degrees /
    2)."""
    logs = np.log(variances) - digamma(degrees / 2) + np.log(degrees / 2)
    chance_variances = zeta(2, degrees / 2)  # trigamma
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
        memberships = probabilities[0] / probabilities[0].sum()
        mean, chance = float(memberships @ logs), float(memberships @ chance_variances)
        cells = max(2.0, float(probabilities[0].sum()))
        scatter = float(memberships @ (logs - mean) ** 2) * cells / (cells - 1)
        # The common variance cannot have more degrees of freedom than the trials of all cells.
        agreed = 2 * _trigamma_inverse(max(scatter - chance, _AGREE_AT_MOST))
        weight = min(agreed, float(probabilities[0] @ degrees))
        common = math.exp(mean + float(digamma(weight / 2)) - math.log(weight / 2))
    return common * multiples, np.asarray(probabilities.T), weight


def _fits(levels: Array, degrees: Array | float, weight: float) -> Array:
    """Return the log likelihood of each variance level, up to a constant: the log density of the F distribution.
    `levels` are relative to the cell's own variance, which has `degrees` degrees of freedom; the prior has `weight`."""
    return np.asarray(-(degrees * np.log(levels) + (degrees + weight) * np.log1p(degrees / weight / levels)) / 2)


def _trigamma_inverse(y: float) -> float:
    """Return the x > 0 with trigamma(x) = y > 0, by Newton's method on 1 / trigamma, which is nearly linear (Smyth
    2004, appendix)."""
    x = 0.5 + 1 / y
    for _ in range(50):
        trigamma = float(zeta(2, x))
        change = trigamma * (1 - trigamma / y) / (-2 * float(zeta(3, x)))
        x += change
        if -change < 1e-8 * x:
            break
    return x
