"""Throughput of one trial, robust means, and values with confidence intervals. Pure functions of numbers.
docs/method.md explains why throughput is the figure of a trial and what follows from it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A value with the limits of its 95% confidence interval, all in the same unit. `high` may be infinite."""

    value: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        """Half the width of the interval as a fraction of the value."""
        return (self.high - self.low) / 2 / self.value

    def __truediv__(self, divisor: float) -> Interval:
        """Divide the value and both limits by a positive number."""
        return Interval(self.value / divisor, self.low / divisor, self.high / divisor)

    def __rtruediv__(self, numerator: float) -> Interval:
        """Divide a number by this interval: the limits swap places, and a limit of 0 becomes infinite."""
        return Interval(*(numerator / bound if bound else math.inf for bound in (self.value, self.high, self.low)))

    def holds(self, value: float) -> bool:
        """Return whether `value` lies within the limits."""
        return self.low <= value <= self.high


def images_per_s(images_per_step: float, times_s: Sequence[float]) -> float:
    """Return a trial's throughput: the images of its counted steps (on all ranks) divided by their total time. This is
    not the mean of the steps' rates. Raises ValueError without a step."""
    if not times_s:
        raise ValueError("the throughput of no steps")
    return images_per_step / statistics.fmean(times_s)


def stall_s(times_s: Sequence[float]) -> float | None:
    """Return the longest step if it counts as a stall, and None otherwise. A stall takes at least a fifth of the
    trial's time and twenty times the median of at least ten steps: the process was stopped or waited for something."""
    if len(times_s) < 10:
        return None
    longest_s = max(times_s)
    return longest_s if longest_s >= max(0.2 * math.fsum(times_s), 20 * statistics.median(times_s)) else None


def typical(values: Sequence[float]) -> float:
    """Return the mean of `values` without the highest and lowest tenth (at least one of each if there are three).

    With real data a trimmed mean is more efficient than the median and about as robust (S. Stigler, "Do robust
    estimators work with real data?", Annals of Statistics 5, 1977). Raises StatisticsError without a value."""
    cut = max(1, round(len(values) / 10)) if len(values) > 2 else 0
    return statistics.fmean(sorted(values)[cut : len(values) - cut])
