"""Throughput and its ratios with their uncertainty: Welch's t-test on logarithms. Pure functions of numbers.

The unit is the trial, which is a separate process. Steps of one process are autocorrelated and share its memory layout
and tuning, so no number of steps replaces a second process (T. Kalibera and R. Jones, "Rigorous Benchmarking in
Reasonable Time", ISMM 2013, sections 5 and 6). Each trial counts as one number, the logarithm of its figure, since
figures are positive and differ by factors: a ratio becomes a difference of logarithms. The two sides may have different
variances (B. L. Welch, "The generalization of 'Student's' problem when several different population variances are
involved", Biometrika 34, 1947). A percentile bootstrap would cover no more than 88% with five trials.

A single trial has only its steps: `SampleStats.from_steps` then stands in for trials, and reports must say so."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from tcbench.analysis.stats import Interval, images_per_s
from tcbench.core.stopping import effective_size

LEAST_TRIALS = 2
"""Trials needed on each side: one number does not show how numbers vary."""


@dataclass(frozen=True)
class SampleStats:
    """The mean and variance of one side's numbers, which are logarithms of figures or plain values.

    - `n`: the number of trials, or the effective sample size.
    - `degrees`: degrees of freedom of the variance (None: n - 1).
    - `pool`: two sides with the same pool share `shared` degrees of freedom and the drift of their common rounds.
    - `pool_degrees`: the degrees of freedom of all sides of the pool together.
    - `rounds`, `drift`: the rounds of the trials, and the variance of their effect (`tcbench.analysis.scatter`)."""

    n: float
    mean: float
    variance: float
    degrees: float | None = None
    shared: float = 0.0
    pool_degrees: float = math.inf
    drift: float = 0.0
    drift_degrees: float = 1.0
    pool: tuple[str, ...] = ()
    rounds: frozenset[Hashable] = frozenset()

    @staticmethod
    def from_figures(figures: Sequence[float]) -> SampleStats:
        """Return the statistics of the logarithms of `figures`, one figure per trial. Raises ValueError with fewer than
        two figures, or for a figure that is not positive and finite."""
        if not all(0 < figure < math.inf for figure in figures):
            raise ValueError("a figure that is not positive and finite has no logarithm")
        return SampleStats.from_values([math.log(figure) for figure in figures])

    @staticmethod
    def from_values(values: Sequence[float]) -> SampleStats:
        """Return the statistics of `values` without taking logarithms. Raises ValueError with fewer than two values."""
        if len(values) < LEAST_TRIALS:
            raise ValueError("a group needs at least two trials")
        mean = math.fsum(values) / len(values)
        return SampleStats(len(values), mean, math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))

    @staticmethod
    def from_steps(rate: float, times_s: Sequence[float]) -> SampleStats:
        """Return the statistics of a single trial: the logarithm of its `rate`, with a variance from its step times.

        The variance is that of the relative step times (delta method: a small relative change is a change of the
        logarithm), and `n` is the effective sample size after lag-1 autocorrelation (`tcbench.core.stopping`). With a
        single step the variance is infinite."""
        if len(times_s) < 2:
            return SampleStats(1, math.log(rate), math.inf)
        mean_s = statistics.fmean(times_s)
        variance = math.fsum((t / mean_s - 1) ** 2 for t in times_s) / (len(times_s) - 1)
        return SampleStats(effective_size(times_s), math.log(rate), variance)

    @property
    def inverse(self) -> SampleStats:
        """The statistics of the reciprocal figures."""
        return replace(self, mean=-self.mean)

    def with_more_trials(self, more: int) -> SampleStats:
        """Return the statistics with `more` additional trials, assuming that mean and variance stay the same."""
        if not more:
            return self
        degrees = None if self.degrees is None else self.degrees + more
        return replace(self, n=self.n + more, degrees=degrees, pool_degrees=self.pool_degrees + more)

    @property
    def squared_error(self) -> tuple[float, float]:
        """The squared standard error of the mean without drift, and its degrees of freedom."""
        return self.variance / self.n, self.n - 1 if self.degrees is None else self.degrees

    @property
    def mean_interval(self) -> Interval:
        """The mean with Student's 95% confidence interval. Only for plain values, not for logarithms."""
        return _interval_around(self.mean, math.sqrt(self.variance / self.n), self.n - 1)

    @property
    def geometric_mean(self) -> LogRatio:
        """The geometric mean of the figures with its standard error: Student's t on the logarithms."""
        return LogRatio(self.mean, *_combine_errors([self.squared_error, (self.drift / self.n, self.drift_degrees)]))


def throughput(images_per_step: float, trials_s: Sequence[Sequence[float]]) -> SampleStats:
    """Return the statistics of a cell's images/s on the log scale. `trials_s` holds the counted step times of each
    trial; with a single trial, the variance comes from its steps. Raises ValueError without trials, or for a trial
    without steps."""
    rates = [images_per_s(images_per_step, times_s) for times_s in trials_s]
    return SampleStats.from_steps(rates[0], trials_s[0]) if len(rates) == 1 else SampleStats.from_figures(rates)


@dataclass(frozen=True)
class LogRatio:
    """The logarithm of a ratio or another positive quantity, with its standard error and that error's degrees of
    freedom."""

    log: float
    error: float
    degrees: float

    @property
    def value(self) -> float:
        """The ratio itself."""
        return exp(self.log)

    def reach(self, probability: float) -> float:
        """Return the distance on the log scale from the estimate to its one-sided limit at this probability. It is
        negative below 0.5, and 0 if the error is 0."""
        return quantile(probability, self.degrees) * self.error if self.error else 0.0

    def limit(self, probability: float) -> float:
        """Return the one-sided confidence limit: the true ratio lies below it with this probability."""
        return exp(self.log + self.reach(probability))

    def interval(self, level: float = 0.95) -> Interval:
        """Return the ratio with its two-sided confidence interval."""
        return Interval(self.value, self.limit((1 - level) / 2), self.limit((1 + level) / 2))


@dataclass(frozen=True)
class Estimate:
    """A ratio numerator / denominator, estimated from trials; it can be extrapolated to more trials.

    Independent sides are compared by Welch's t-test. If trials are paired, the numerator holds the differences of their
    logarithms, there is no denominator, and the test is Student's t on the differences."""

    numerator: SampleStats
    denominator: SampleStats | None = None

    @property
    def by_round(self) -> bool:
        """Whether the trials are paired by round, so that drift of the machine cancels."""
        return self.denominator is None

    @property
    def n(self) -> int:
        """Trials per side, the smaller number of the two."""
        return int(min(self.numerator.n, (self.denominator or self.numerator).n))

    @property
    def pairs(self) -> float:
        """Equivalent number of trials per side if both had the same number: the harmonic mean."""
        return 2 / (1 / self.numerator.n + 1 / (self.denominator or self.numerator).n)

    @property
    def inverse(self) -> Self:
        """The estimate of denominator / numerator."""
        denominator = self.denominator and self.denominator.inverse
        return replace(self, numerator=self.numerator.inverse, denominator=denominator)

    def with_more_trials(self, more: int) -> LogRatio:
        """Return the ratio with `more` additional trials a side, assuming that means and variances stay the same."""
        if self.denominator is not None:
            return log_ratio(self.numerator.with_more_trials(more), self.denominator.with_more_trials(more))
        n = self.n + more
        return LogRatio(self.numerator.mean, math.sqrt(self.numerator.variance / n), n - 1)

    @property
    def ratio(self) -> LogRatio:
        """The ratio from the trials so far."""
        return self.with_more_trials(0)


def estimate(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """Return the ratio numerator / denominator of two sides of independent trials, given one figure per trial. Raises
    ValueError with fewer than two figures a side, or for a figure that is not positive and finite."""
    return Estimate(SampleStats.from_figures(numerator), SampleStats.from_figures(denominator))


def log_ratio(numerator: SampleStats, denominator: SampleStats) -> LogRatio:
    """Return the log of numerator / denominator. Degrees of freedom follow Welch (1947) and Satterthwaite (Biometrics
    Bulletin 2, 1946). The error is 0 if neither side varies."""
    return LogRatio(numerator.mean - denominator.mean, *_error_of_difference(numerator, denominator))


def difference(minuend: Sequence[float], subtrahend: Sequence[float]) -> Interval:
    """Return mean(minuend) - mean(subtrahend) with its 95% interval. Raises ValueError with fewer than two values a
    side."""
    sides = SampleStats.from_values(minuend), SampleStats.from_values(subtrahend)
    return _interval_around(sides[0].mean - sides[1].mean, *_error_of_difference(*sides))


def _interval_around(value: float, error: float, degrees: float) -> Interval:
    """Return Student's 95% confidence interval around `value`."""
    half = quantile(0.975, degrees) * error
    return Interval(value, value - half, value + half)


def geometric_mean(ratios: Sequence[LogRatio]) -> LogRatio:
    """Return the geometric mean of independently measured ratios. Raises ValueError for no ratios."""
    n = len(ratios)
    parts = [(ratio.error**2 / n**2, ratio.degrees) for ratio in ratios]
    return LogRatio(statistics.fmean(ratio.log for ratio in ratios), *_combine_errors(parts))


def quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t distribution at this probability."""
    from scipy.special import stdtrit  # imported here, since it would double the start-up time of most commands

    return float(stdtrit(degrees, probability))


def _error_of_difference(first: SampleStats, second: SampleStats) -> tuple[float, float]:
    """Return the standard error of the difference of two means, and its degrees of freedom."""
    sides = (first, second)
    parts = [side.squared_error for side in sides]
    if not first.pool or first.pool != second.pool:
        return _combine_errors([*parts, *((side.drift / side.n, side.drift_degrees) for side in sides)])
    # The effects of common rounds cancel. Hypothetical further rounds are common to both sides.
    further_rounds = min(side.n - len(side.rounds) for side in sides)
    common_rounds = len(first.rounds & second.rounds) + further_rounds
    drift_factor = max(0.0, 1 / first.n + 1 / second.n - 2 * common_rounds / (first.n * second.n))
    error, degrees = _combine_errors([*parts, (first.drift * drift_factor, first.drift_degrees)])
    of_both = parts[0][1] + parts[1][1] - min(first.shared, second.shared)
    return error, min(degrees, of_both, first.pool_degrees)


def _combine_errors(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the standard error of a sum and its degrees of freedom. `parts` holds the squared standard error and the
    degrees of freedom of each independent term."""
    total = math.fsum(squared for squared, _ in parts)
    if total == 0.0:
        return 0.0, min(degrees for _, degrees in parts)
    if math.isinf(total):
        return math.inf, 1.0
    # Divide before squaring: the square of a tiny variance would underflow to 0.
    return math.sqrt(total), 1 / math.fsum((squared / total) ** 2 / degrees for squared, degrees in parts if squared)


def exp(x: float) -> float:
    """Return e to the x, or infinity if that overflows a float."""
    return math.exp(x) if x < 700 else math.inf
