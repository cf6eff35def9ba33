"""When to stop: pure objects that are asked between blocks of steps. Standard library only.

Sources: the interval is Student's t on the mean step time with the sample size corrected for the lag-1
autocorrelation r of the steps, n_eff = n (1 - r) / (1 + r) (H. von Storch and F. Zwiers, "Statistical Analysis in
Climate Research", 1999, section 6.6): steps of one process are not independent, and an uncorrected interval would
stop too early.
"""

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
    """Warm-up is over when the session has done what it does once and the last three steps, or as many as `min_steps`
    where that is less, lie within `tolerance` of their median (one alone does); never before `min_steps`, and at
    `max_steps` or `max_time_s` at the latest (then it has not settled)."""

    min_steps: int
    max_steps: int
    max_time_s: float = math.inf
    tolerance: float = 0.1

    def settled(self, times_s: Sequence[float]) -> bool:
        if len(times_s) < self.min_steps:
            return False
        last = times_s[-min(3, self.min_steps) :]
        middle = statistics.median(last)
        return max(abs(t - middle) for t in last) <= self.tolerance * middle

    def over(self, times_s: Sequence[float], session_settled: bool = True) -> bool:
        spent = len(times_s) >= self.max_steps or sum(times_s) >= self.max_time_s
        return len(times_s) >= self.min_steps and (spent or (session_settled and self.settled(times_s)))


@dataclass(frozen=True)
class StoppingRule:
    """Enough when the relative half-width of the 95% interval of the mean step time is at most `target`, or when
    `max_time_s` is spent; never before `min_steps` counted steps."""

    target: float
    max_time_s: float
    min_steps: int

    def ask(self, counted_times_s: Sequence[float], spent_s: float) -> StopDecision:
        if len(counted_times_s) < self.min_steps:
            return "continue"
        if relative_half_width(counted_times_s) <= self.target:
            return "target"
        return "budget" if spent_s >= self.max_time_s else "continue"


def sample_size(first: Sequence[float], half_width: float) -> int:
    """How many values give their mean a 95% interval of that half-width, by how much the first ones differ: the second
    of two stages (C. Stein, "A two-sample test for a linear hypothesis whose power is independent of the variance",
    Annals of Mathematical Statistics 16, 1945)."""
    n = len(first)
    if n < 2:
        return n
    return max(n, math.ceil((t_quantile_975(n - 1) * statistics.stdev(first) / half_width) ** 2))


def effective_size(values: Sequence[float]) -> float:
    """Number of independent values that carry as much as these; between 2 and len(values)."""
    return _effective_size(*_moments(values)[1:])


def relative_half_width(values: Sequence[float]) -> float:
    """Half-width of the 95% interval of the mean, over the mean. Infinite below two values."""
    if len(values) < 2:
        return math.inf
    mean, deviations, power = _moments(values)
    n = _effective_size(deviations, power)
    return t_quantile_975(n - 1) * math.sqrt(power / (len(values) - 1)) / math.sqrt(n) / mean


def _moments(values: Sequence[float]) -> tuple[float, list[float], float]:
    """The mean, each value's deviation from it, and the sum of their squares."""
    mean = statistics.fmean(values)
    deviations = [value - mean for value in values]
    return mean, deviations, math.fsum(map(operator.mul, deviations, deviations))


def _effective_size(deviations: Sequence[float], power: float) -> float:
    n = len(deviations)
    if power == 0.0:
        return float(n)
    r = math.fsum(map(operator.mul, deviations, itertools.islice(deviations, 1, None))) / power
    r = min(max(r, 0.0), 0.99)
    return min(float(n), max(2.0, n * (1 - r) / (1 + r)))


def t_quantile_975(degrees: float) -> float:
    """The 0.975 quantile of Student's t: the expansion about the normal quantile (M. Abramowitz and I. Stegun,
    "Handbook of Mathematical Functions", 26.7.5), within 0.2% from 3 degrees on; below, chords between the exact
    values at 1, 2 and 3 degrees, which lie above the curve. SciPy's would cost the worker its import."""
    z, exact = 1.959963984540054, (12.706204736432095, 4.302652729911275, 3.182446305284263)
    if degrees < 3:
        whole = max(1, int(degrees))
        return exact[whole - 1] + (max(1, degrees) - whole) * (exact[whole] - exact[whole - 1])
    n = degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
