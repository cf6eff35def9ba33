"""Throughput and ratios of throughput with their uncertainty: Welch's t on logarithms. Pure functions of numbers.

The unit is the trial, a process of its own. Steps of one process are autocorrelated and share its memory layout and
tuning, so that no number of steps stands for a second process (T. Kalibera and R. Jones, "Rigorous Benchmarking in
Reasonable Time", ISMM 2013, sections 5 and 6). Each trial counts as one number, the logarithm of its figure: figures
are positive and differ by factors, and a ratio is a difference of logarithms. The two sides may vary unequally (B. L.
Welch, "The generalization of 'Student's' problem when several different population variances are involved",
Biometrika 34, 1947). A percentile bootstrap would cover no more than 88% at five trials.

Of a single trial only its steps are known: `Group.of_steps` stands in for trials then, and whoever shows it says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from tcbench.analysis.stats import Interval, images_per_s
from tcbench.core.stopping import effective_size

LEAST_TRIALS = 2
"""On each side: one number tells nothing of how numbers differ."""


@dataclass(frozen=True)
class Group:
    """Numbers of one side: the mean and the variance of the logarithms of their figures, or of the plain figures. `n`
    is how many there are, or how many independent ones carry as much. `degrees`: of the variance, n - 1 where it is
    None. Sides of one `pool` have `shared` of these in common, and those `rounds` that are in both, whose variance is
    `drift` (`tcbench.analysis.scatter`)."""

    n: float
    mean: float
    variance: float
    degrees: float | None = None
    shared: float = 0.0
    drift: float = 0.0
    drift_degrees: float = 1.0
    pool: tuple[str, ...] = ()
    rounds: frozenset[Hashable] = frozenset()

    @staticmethod
    def of(figures: Sequence[float]) -> Group:
        """Of trials. Raises ValueError below two figures, or for one that is not positive and finite."""
        if not all(0 < figure < math.inf for figure in figures):
            raise ValueError("a figure that is not positive and finite has no logarithm")
        return Group.plain([math.log(figure) for figure in figures])

    @staticmethod
    def plain(values: Sequence[float]) -> Group:
        """The same without the logarithm. Raises ValueError below two values."""
        if len(values) < LEAST_TRIALS:
            raise ValueError("a group needs at least two trials")
        mean = math.fsum(values) / len(values)
        return Group(len(values), mean, math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))

    @staticmethod
    def of_steps(rate: float, times_s: Sequence[float]) -> Group:
        """Of one trial: its figure, with the variance of its steps about their mean (the delta method: a small relative
        change is a change of the logarithm) and the sample size that their lag-1 autocorrelation leaves (source:
        `tcbench.core.stopping`). Of a single step nothing is known: the variance is infinite."""
        if len(times_s) < 2:
            return Group(1, math.log(rate), math.inf)
        mean_s = statistics.fmean(times_s)
        variance = math.fsum((t / mean_s - 1) ** 2 for t in times_s) / (len(times_s) - 1)
        return Group(effective_size(times_s), math.log(rate), variance)

    @property
    def inverse(self) -> Group:
        return replace(self, mean=-self.mean)

    def grown(self, more: int) -> Group:
        """With so many more numbers, if mean and variance stayed what they are."""
        if not more:
            return self
        return replace(self, n=self.n + more, degrees=None if self.degrees is None else self.degrees + more)

    @property
    def part(self) -> tuple[float, float]:
        """The squared error of the mean, drift aside, and its degrees of freedom."""
        return self.variance / self.n, self.n - 1 if self.degrees is None else self.degrees

    @property
    def mean_interval(self) -> Interval:
        """The mean with Student's 95% interval, in the unit of plain figures."""
        return _around(self.mean, math.sqrt(self.variance / self.n), self.n - 1)

    @property
    def geometric_mean(self) -> LogRatio:
        """Of the figures, with its error: Student's t on the logarithms."""
        return LogRatio(self.mean, *_combined([self.part, (self.drift / self.n, self.drift_degrees)]))


def throughput(images_per_step: int, trials_s: Sequence[Sequence[float]]) -> Group:
    """A cell's images/s, from the counted step times of its trials: the figures of trials; with a single one, its
    steps. Raises ValueError without a trial, or for one without a step."""
    rates = [images_per_s(images_per_step, times_s) for times_s in trials_s]
    return Group.of_steps(rates[0], trials_s[0]) if len(rates) == 1 else Group.of(rates)


@dataclass(frozen=True)
class LogRatio:
    """The logarithm of a ratio or another positive value, its standard error, and the degrees of freedom of that."""

    log: float
    error: float
    degrees: float

    @property
    def value(self) -> float:
        """The ratio of the two geometric means."""
        return exp(self.log)

    def reach(self, probability: float) -> float:
        """The distance of that limit from the logarithm."""
        return quantile(probability, self.degrees) * self.error if self.error else 0.0

    def limit(self, probability: float) -> float:
        """The ratio below which the truth lies with this probability: a one-sided confidence limit."""
        return exp(self.log + self.reach(probability))

    def interval(self, level: float = 0.95) -> Interval:
        return Interval(self.value, self.limit((1 - level) / 2), self.limit((1 + level) / 2))


@dataclass(frozen=True)
class Estimate:
    """numerator / denominator as trials so far tell it, and how sure more of the same trials would make it: Welch's of
    trials that have nothing to do with each other. Of trials that belong together two by two the numerator holds the
    differences of their logarithms, there is no denominator, and the test is Student's t on those."""

    numerator: Group
    denominator: Group | None = None

    @property
    def by_round(self) -> bool:
        """Whether rounds were compared, not averages: what moves the machine moves both trials of a round."""
        return self.denominator is None

    @property
    def n(self) -> int:
        """Trials a side; the fewer."""
        return int(min(self.numerator.n, (self.denominator or self.numerator).n))

    @property
    def pairs(self) -> float:
        """The trials a side that would tell as much if both had as many: the harmonic mean."""
        return 2 / (1 / self.numerator.n + 1 / (self.denominator or self.numerator).n)

    @property
    def inverse(self) -> Self:
        denominator = self.denominator and self.denominator.inverse
        return replace(self, numerator=self.numerator.inverse, denominator=denominator)

    def grown(self, more: int) -> LogRatio:
        """With so many more trials a side, if means and variances stayed what they are."""
        if self.denominator is not None:
            return log_ratio(self.numerator.grown(more), self.denominator.grown(more))
        n = self.n + more
        return LogRatio(self.numerator.mean, math.sqrt(self.numerator.variance / n), n - 1)

    @property
    def ratio(self) -> LogRatio:
        return self.grown(0)


def estimate(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """The ratio of two sides' figures. Raises ValueError below two a side, or for one not positive and finite."""
    return Estimate(Group.of(numerator), Group.of(denominator))


def log_ratio(numerator: Group, denominator: Group) -> LogRatio:
    """numerator / denominator; degrees of freedom after Welch (1947) and Satterthwaite (Biometrics Bulletin 2, 1946).
    Where neither side varies at all the error is 0."""
    return LogRatio(numerator.mean - denominator.mean, *_of_difference(numerator, denominator))


def difference(one: Sequence[float], other: Sequence[float]) -> Interval:
    """one - other, of plain values, with its 95% interval."""
    sides = Group.plain(one), Group.plain(other)
    return _around(sides[0].mean - sides[1].mean, *_of_difference(*sides))


def _around(value: float, error: float, degrees: float) -> Interval:
    half = quantile(0.975, degrees) * error
    return Interval(value, value - half, value + half)


def geometric_mean(ratios: Sequence[LogRatio]) -> LogRatio:
    """The geometric mean of ratios that were measured independently of each other. Raises ValueError without one."""
    n = len(ratios)
    parts = [(ratio.error**2 / n**2, ratio.degrees) for ratio in ratios]
    return LogRatio(statistics.fmean(ratio.log for ratio in ratios), *_combined(parts))


def quantile(probability: float, degrees: float) -> float:
    """Of Student's t."""
    from scipy.special import stdtrit  # half of the time in which a command that asks for no quantile starts

    return float(stdtrit(degrees, probability))


def _of_difference(one: Group, other: Group) -> tuple[float, float]:
    parts = [one.part, other.part]
    if not one.pool or one.pool != other.pool:
        return _combined([*parts, *((side.drift / side.n, side.drift_degrees) for side in (one, other))])
    # Rounds that both sides have cancel. Those to come would be of both.
    to_come = min(side.n - len(side.rounds) for side in (one, other))
    both = len(one.rounds & other.rounds) + to_come
    apart = max(0.0, 1 / one.n + 1 / other.n - 2 * both / (one.n * other.n))
    error, degrees = _combined([*parts, (one.drift * apart, one.drift_degrees)])
    return error, min(degrees, one.part[1] + other.part[1] - one.shared)


def _combined(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum, from the squared error and the degrees of each part."""
    power = math.fsum(squared for squared, _ in parts)
    if power == 0.0:
        return 0.0, min(degrees for _, degrees in parts)
    if math.isinf(power):
        return math.inf, 1.0
    # Shares before squares: the square of a tiny variance is 0.
    return math.sqrt(power), 1 / math.fsum((squared / power) ** 2 / degrees for squared, degrees in parts if squared)


def exp(x: float) -> float:
    """Infinite beyond a float."""
    return math.exp(x) if x < 700 else math.inf
