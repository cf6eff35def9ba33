"""Verdicts on whether something became slower, from ratios and their uncertainty. Pure functions of numbers.

The question is not "is there a difference" (with enough trials there always is) but "is the loss significantly above
the threshold, or significantly below it"; anything else is inconclusive. A regression takes two tests, both of which
must reject (R. Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24, 1982):

- The loss is above the threshold, at `level` for each cell. A loss of exactly the threshold is rarely called a
  regression.
- Anything changed at all, at `change_level` for all cells of one comparison together (Bonferroni's inequality: O. Dunn,
  "Multiple comparisons among means", JASA 56, 1961). If trials vary by less than the threshold, the first test implies
  the second. If they vary by more, the second test prevents a false alarm by one of many unchanged cells.

Cells are judged together, with pooled noise (`tcbench.analysis.noise`). `benchmarks/gate_truth.py` measures the error
rates."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import chdtri, ndtr

from tcbench.analysis.stats import Interval
from tcbench.analysis.welch import Estimate, LogRatio

Decision = Literal["regression", "pass", "improved", "inconclusive"]
"""The verdict of a `Rule` on one ratio."""

MOST_TRIALS = 1000
"""More trials than anyone will run: if even these would not decide, no number of trials is suggested."""


@dataclass(frozen=True)
class HeldBack:
    """The interval that keeps a ratio inconclusive although its 95% interval lies on one side of the threshold.
    `no_change`: it includes 1, so perhaps nothing changed. Otherwise it includes the threshold."""

    confidence: float
    interval: Interval
    no_change: bool

    @property
    def inverse(self) -> HeldBack:
        """The interval for the reciprocal ratio, base / current."""
        return replace(self, interval=1 / self.interval)


@dataclass(frozen=True)
class Rule:
    """The thresholds of a verdict. `threshold` is the loss that matters, as a fraction of the base. `level` is the
    level of each one-sided test against the threshold, `change_level` that of the one-sided test that anything
    changed."""

    threshold: float = 0.03
    level: float = 0.05
    change_level: float = 0.005

    def among(self, cells: int) -> Rule:
        """Return the rule for each of `cells` cells that are judged in one comparison."""
        return replace(self, change_level=self.change_level / max(1, cells))

    def part(self, share: float) -> Rule:
        """Return the rule with this share of each level, for one of several tests of a cell."""
        return replace(self, level=share * self.level, change_level=share * self.change_level)

    def judge(self, ratio: LogRatio) -> Decision:
        """Return the verdict on `ratio`, which is current / base of a figure where more is better.

        - `regression`: significantly below 1 - threshold and different from 1.
        - `improved`: significantly above 1 / (1 - threshold) and different from 1. Swapping the sides makes it a
          regression.
        - `pass`: significantly above 1 - threshold.
        - `inconclusive`: none of these."""
        worst = 1 - self.threshold
        if ratio.value < worst:
            is_slower = ratio.limit(1 - self.level) < worst and ratio.limit(1 - self.change_level) < 1
            return "regression" if is_slower else "inconclusive"
        low = ratio.limit(self.level)
        if low > 1 / worst and ratio.limit(self.change_level) > 1:
            return "improved"
        return "pass" if low > worst else "inconclusive"

    def held_back(self, ratio: LogRatio) -> HeldBack | None:
        """Return the interval that keeps a ratio inconclusive although its 95% interval excludes the threshold, else
        None. A verdict can need a stricter level than 5% two-sided. The interval has the level of the test of change if
        only this test fails, else the level of the test against the threshold."""
        worst, interval_95 = 1 - self.threshold, ratio.interval()
        if self.judge(ratio) != "inconclusive" or interval_95.low <= worst <= interval_95.high:
            return None
        no_change = interval_95.high < worst and ratio.limit(1 - self.level) < worst
        confidence = 1 - 2 * (self.change_level if no_change else self.level)
        return HeldBack(confidence, ratio.interval(confidence), no_change)

    @property
    def slowdown(self) -> float:
        """The loss for which statistical power is computed: 5/3 of the threshold, limited for large thresholds so that
        it stays below 1."""
        return min(self.threshold * 5 / 3, (1 + self.threshold) / 2)

    def power(self, ratio: LogRatio) -> float:
        """Return the probability that a cell with this noise would be called a regression if it were slower by
        `slowdown`, averaged over the chi-squared distribution of the estimated error."""
        loss, worst = math.log(1 - self.slowdown), math.log(1 - self.threshold)
        if ratio.error == 0:
            return 1.0
        if not math.isfinite(ratio.error):
            return 0.0
        error_factors = np.sqrt(chdtri(ratio.degrees, _MIDDLES) / ratio.degrees)
        slower_limits = worst - ratio.reach(1 - self.level) * error_factors
        change_limits = -ratio.reach(1 - self.change_level) * error_factors
        return float(ndtr((np.minimum(slower_limits, change_limits) - loss) / ratio.error).mean())

    def more_trials(self, estimate: Estimate) -> int | None:
        """Return how many more trials per side would decide between pass and regression if means and variances stayed
        the same. None if MOST_TRIALS would not decide, because of noise or because the loss is close to the
        threshold."""
        trials = estimate.n

        def decided(more: int) -> bool:
            return self.judge(estimate.with_more_trials(more)) != "inconclusive"

        most_more = MOST_TRIALS - trials
        return bisect.bisect_left(range(most_more), True, lo=1, key=decided) if decided(most_more) else None


_MIDDLES = (np.arange(128) + 0.5) / 128
"""Midpoints of 128 equal parts of a distribution's probability."""


@dataclass(frozen=True)
class Interim:
    """One interim look of a gate: the number of trials per side at that look, and the rule for its tests."""

    trials: int
    rule: Rule


MOST_INTERIMS = 4
"""The largest number of looks for which `_SPENT` divides the level."""

_SPENT = {1: (1.0,), 2: (0.3, 0.7), 3: (0.1, 0.25, 0.65), 4: (0.05, 0.15, 0.2, 0.6)}
"""The fraction of the level that each look spends, by the number of looks. Most is spent at the last look, which has
the most trials. The fractions add up to 1, so by Bonferroni's inequality all looks together err no more often than one
test at the whole level, however the looks depend on each other (alpha spending: K. Lan and D. DeMets, "Discrete
sequential boundaries for clinical trials", Biometrika 70, 1983)."""

DEFAULT_INTERIMS = (3, 4, 6, 8)
"""Trials per side at each look."""


def interims(trials: Sequence[int] = DEFAULT_INTERIMS, rule: Rule | None = None) -> tuple[Interim, ...]:
    """Return the looks of a gate, each with a rule that has its part of the levels of `rule` (default: `Rule()`).
    `trials` holds the trials per side at each look. Raises ValueError unless they are one to four ascending numbers
    of at least 2."""
    rule = rule or Rule()
    if not 1 <= len(trials) <= MOST_INTERIMS:
        raise ValueError(f"expected one to {MOST_INTERIMS} looks, got {len(trials)}")
    if list(trials) != sorted(set(trials)) or trials[0] < 2:
        raise ValueError("expected ascending numbers of trials, each at least 2")
    return tuple(
        Interim(n, Rule(rule.threshold, rule.level * share, rule.change_level * share))
        for n, share in zip(trials, _SPENT[len(trials)], strict=True)
    )


Decided = tuple[Decision, int]
"""A decision, and the index of the look that made it, from 0."""
