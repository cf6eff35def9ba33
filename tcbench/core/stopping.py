"""Rules that end the warm-up and the timed pass. Imports only the standard library.

The confidence interval of the mean step time is Student's t interval. Because consecutive steps are not independent,
its sample size is corrected for their lag-1 autocorrelation r: n_eff = n (1 - r) / (1 + r) (H. von Storch and F.
Zwiers, "Statistical Analysis in Climate Research", 1999, section 6.6). Without the correction a pass would end too
early."""

import itertools
import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

StopDecision = Literal["continue", "target", "budget"]


@dataclass(frozen=True)
class WarmUpRule:
    """The rule that ends the warm-up: the session has settled and the last three steps (or `min_steps`, if fewer) are
    within `tolerance` of their median. The warm-up takes at least `min_steps`, and ends at `max_steps` or `max_time_s`
    even if it has not settled."""

    min_steps: int
    max_steps: int
    max_time_s: float = math.inf
    tolerance: float = 0.1

    def has_settled(self, times_s: Sequence[float]) -> bool:
        """Return whether the last of these step times are within the tolerance of their median. False for fewer than
        `min_steps`."""
        if len(times_s) < self.min_steps:
            return False
        last = times_s[-min(3, self.min_steps) :]
        middle = statistics.median(last)
        return max(abs(t - middle) for t in last) <= self.tolerance * middle

    def is_over(self, times_s: Sequence[float], session_settled: bool = True) -> bool:
        """Return whether the warm-up ends after steps with these times. `session_settled`: the session has finished its
        own preparations, such as tuning."""
        spent = len(times_s) >= self.max_steps or sum(times_s) >= self.max_time_s
        return len(times_s) >= self.min_steps and (spent or (session_settled and self.has_settled(times_s)))


@dataclass(frozen=True)
class StoppingRule:
    """The rule that ends the timed pass: the 95% confidence interval of the mean step time has a relative half-width of
    at most `target`, or `max_time_s` is spent. It takes at least `min_steps` counted steps."""

    target: float
    max_time_s: float
    min_steps: int

    def decide(self, counted_times_s: Sequence[float], spent_s: float) -> StopDecision:
        """Return "continue", or the reason to stop: "target" if the interval is narrow enough, "budget" if the time is
        spent. `spent_s` is the time of the pass so far in seconds."""
        if len(counted_times_s) < self.min_steps:
            return "continue"
        if relative_half_width(counted_times_s) <= self.target:
            return "target"
        return "budget" if spent_s >= self.max_time_s else "continue"


def sample_size(first: Sequence[float], half_width: float) -> int:
    """Return the number of values whose mean has a 95% confidence interval of this half-width, in the unit of the
    values, estimated from the variance of the `first` values: the second stage of C. Stein, "A two-sample test for a
    linear hypothesis whose power is independent of the variance", Annals of Mathematical Statistics 16, 1945."""
    n = len(first)
    if n < 2:
        return n
    return max(n, math.ceil((t_quantile_975(n - 1) * statistics.stdev(first) / half_width) ** 2))


def effective_size(values: Sequence[float]) -> float:
    """Return the effective sample size of autocorrelated values: between 2 and len(values)."""
    return _effective_size(*_moments(values)[1:])


def relative_half_width(values: Sequence[float]) -> float:
    """Return the half-width of the 95% confidence interval of the mean, relative to the mean. It is infinite for fewer
    than two values."""
    if len(values) < 2:
        return math.inf
    mean, deviations, sum_of_squares = _moments(values)
    n = _effective_size(deviations, sum_of_squares)
    return t_quantile_975(n - 1) * math.sqrt(sum_of_squares / (len(values) - 1)) / math.sqrt(n) / mean


def _moments(values: Sequence[float]) -> tuple[float, list[float], float]:
    """Return the mean, the deviations from it, and the sum of their squares."""
    mean = statistics.fmean(values)
    deviations = [value - mean for value in values]
    return mean, deviations, math.fsum(map(operator.mul, deviations, deviations))


def _effective_size(deviations: Sequence[float], sum_of_squares: float) -> float:
    """Return n (1 - r) / (1 + r) for the lag-1 autocorrelation r of the deviations."""
    n = len(deviations)
    if sum_of_squares == 0.0:
        return float(n)
    r = math.fsum(map(operator.mul, deviations, itertools.islice(deviations, 1, None))) / sum_of_squares
    r = min(max(r, 0.0), 0.99)
    return min(float(n), max(2.0, n * (1 - r) / (1 + r)))


def t_quantile_975(degrees: float) -> float:
    """Return the 0.975 quantile of Student's t distribution.

    From 3 degrees of freedom it is the expansion about the normal quantile (M. Abramowitz and I. Stegun, "Handbook of
    Mathematical Functions", 26.7.5), with an error below 0.2%. Below, it interpolates linearly between the exact values
    at 1, 2 and 3 degrees, which is conservative. A worker cannot afford to import SciPy."""
    z, exact = 1.959963984540054, (12.706204736432095, 4.302652729911275, 3.182446305284263)
    if degrees < 3:
        floor = max(1, int(degrees))
        return exact[floor - 1] + (max(1, degrees) - floor) * (exact[floor] - exact[floor - 1])
    n = degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
