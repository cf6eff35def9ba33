"""An axis: from values to per cent of the plot's width, and the numbers along it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tcbench.analysis.stats import Interval
from tcbench.show.format import prefix_of
from tcbench.show.page.page import Mark, Tick

_LEAST_DRAWN = 0.15
"""Per cent of the width; whatever is there can be seen."""


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`, in the values' unit."""

    low: float
    high: float

    @staticmethod
    def over(intervals: Iterable[Interval]) -> Scale:
        """From 0 to the highest value or limit; limits out of all proportion are cut off."""
        intervals = list(intervals)
        highest = max((interval.value for interval in intervals), default=1.0)
        return Scale(0.0, max((min(i.high, 1.5 * highest) for i in intervals), default=1.0) or 1.0)

    def place(self, value: float) -> float:
        """Per cent of the width, kept within the plot."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 3)

    def bar(self, begin: float, end: float, look: str, hatch: str = "") -> Mark:
        """A bar between two values, in whichever order they are."""
        first, last = self.place(min(begin, end)), self.place(max(begin, end))
        return Mark("bar", first, round(max(last - first, _LEAST_DRAWN), 3), look, hatch)

    def whisker(self, interval: Interval) -> Mark:
        """An interval; open where its end lies outside."""
        first, last = self.place(interval.low), self.place(interval.high)
        return Mark("whisker", first, round(last - first, 3), open_end=interval.high > self.high * (1 + 1e-9))

    def ticks(self, most: int = 5) -> tuple[Tick, ...]:
        """Round numbers, at most so many steps apart, all with one prefix."""
        step = _round_step((self.high - self.low) / most)
        unit, prefix = prefix_of(max(abs(self.high), abs(self.low)))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [number * step for number in range(first, last + 1)]
        return tuple(Tick(self.place(v), f"{v / unit:.6g}{prefix if v else ''}") for v in values)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is no less."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 and math.isfinite(least) else 1.0
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least * (1 - 1e-9))
