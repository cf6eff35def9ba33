"""The figure of a trial, and a value with its interval. Pure functions of numbers; knows nothing of records or views.

Why this figure, and what follows from it: docs/method.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A value and the limits of its 95% confidence interval, all in the value's unit. `high` may be infinite."""

    value: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        return (self.high - self.low) / 2 / self.value

    def __truediv__(self, divisor: float) -> Interval:
        """Over a number above 0."""
        return Interval(self.value / divisor, self.low / divisor, self.high / divisor)

    def __rtruediv__(self, numerator: float) -> Interval:
        """A number over it: the limits change places, and one of 0 becomes infinite."""
        return Interval(*(numerator / x if x else math.inf for x in (self.value, self.high, self.low)))

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def images_per_s(images_per_step: int, times_s: Sequence[float]) -> float:
    """A trial's throughput: the images of its counted steps, those of all ranks, over their total time, which is not
    the mean of the steps' rates. Raises ValueError without a step."""
    if not times_s:
        raise ValueError("the throughput of no steps")
    return images_per_step / statistics.fmean(times_s)


def stall_s(times_s: Sequence[float]) -> float | None:
    """Return the longest step where it takes a fifth of the trial's time or more and is twenty times the median of at
    least ten steps; None otherwise. So long a step is not noise: the process was stopped, or waited for something."""
    longest_s = max(times_s, default=0.0)
    long = len(times_s) >= 10 and longest_s >= 0.2 * math.fsum(times_s) and longest_s >= 20 * statistics.median(times_s)
    return longest_s if long else None


def typical(values: Sequence[float]) -> float:
    """The mean without the highest and the lowest tenth, of three values or more at least one each: of real data's
    location it tells more than a median, and as little of accidents (S. Stigler, "Do robust estimators work with real
    data?", Annals of Statistics 5, 1977). Raises StatisticsError without a value."""
    cut = max(1, round(len(values) / 10)) if len(values) > 2 else 0
    return statistics.fmean(sorted(values)[cut : len(values) - cut])
