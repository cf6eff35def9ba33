"""Whether something got slower: ratios and their uncertainty become verdicts. Pure functions of numbers.

The question is never "is there a difference" (with enough trials there always is) but "is the loss surely above the
threshold, or surely below it"; what is neither is inconclusive. A regression takes two tests (both must reject: R.
Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24, 1982):

- that the loss is above the threshold, at `level` for each cell: a loss of just the threshold is rarely called one;
- that anything changed at all, at `change_level` for all cells of one comparison together (Bonferroni's inequality: O.
  Dunn, "Multiple comparisons among means", JASA 56, 1961). Where trials differ by less than the threshold the first
  test says so already, and this one costs nothing; where they differ by more, the threshold is no distance, and this
  one keeps a matrix of cells that did not change from being called red by one of them.

Cells are judged together, with the noise that they have in common (`tcbench.analysis.noise`).
`benchmarks/gate_truth.py` measures how often all this is right.
"""

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

MOST_TRIALS = 1000
"""More trials than anyone will run: from there on the answer to "how many" is "no number"."""


@dataclass(frozen=True)
class HeldBack:
    """The interval that keeps a ratio inconclusive though its 95% interval lies on one side of the threshold: it
    includes 1, `no_change`, or else the threshold."""

    confidence: float
    interval: Interval
    no_change: bool

    @property
    def inverse(self) -> HeldBack:
        return replace(self, interval=1 / self.interval)


@dataclass(frozen=True)
class Rule:
    """`threshold`: the share of the base's figure whose loss matters. `level`: of each one-sided test against it.
    `change_level`: of the one-sided test that anything changed, of one cell."""

    threshold: float = 0.03
    level: float = 0.05
    change_level: float = 0.005

    def among(self, cells: int) -> Rule:
        """The rule of each of so many cells that are judged in one comparison."""
        return replace(self, change_level=self.change_level / max(1, cells))

    def judge(self, ratio: LogRatio) -> Decision:
        """`ratio` is current over base, of a figure of which more is better. `regression`: surely below 1 - threshold,
        and surely changed. `improved`: surely above 1 / (1 - threshold), and surely changed, so that exchanging the
        sides exchanges the two. `pass`: surely above 1 - threshold."""
        worst = 1 - self.threshold
        if ratio.value < worst:
            more = ratio.limit(1 - self.level) < worst and ratio.limit(1 - self.change_level) < 1
            return "regression" if more else "inconclusive"
        low = ratio.limit(self.level)
        if low > 1 / worst and ratio.limit(self.change_level) > 1:
            return "improved"
        return "pass" if low > worst else "inconclusive"

    def held_back(self, ratio: LogRatio) -> HeldBack | None:
        """Why a ratio is inconclusive though its 95% interval seems to decide; None where it does not seem so."""
        worst, seen = 1 - self.threshold, ratio.interval()
        if self.judge(ratio) != "inconclusive" or seen.low <= worst <= seen.high:
            return None
        no_change = seen.high < worst and ratio.limit(1 - self.level) < worst
        confidence = 1 - 2 * (self.change_level if no_change else self.level)
        return HeldBack(confidence, ratio.interval(confidence), no_change)

    @property
    def slowdown(self) -> float:
        """The loss whose power is told: five for each three of the threshold; never all that there is."""
        return min(self.threshold * 5 / 3, (1 + self.threshold) / 2)

    def power(self, ratio: LogRatio) -> float:
        """The probability that a cell which varies as this one does would be called a regression if it were slower by
        `slowdown`: over the estimates of the error that trials of such a cell would give (chi-squared)."""
        loss, worst = math.log(1 - self.slowdown), math.log(1 - self.threshold)
        if ratio.error == 0:
            return 1.0
        if not math.isfinite(ratio.error):
            return 0.0
        estimated = np.sqrt(chdtri(ratio.degrees, _MIDDLES) / ratio.degrees)
        surely_more = worst - ratio.reach(1 - self.level) * estimated
        surely_changed = -ratio.reach(1 - self.change_level) * estimated
        return float(ndtr((np.minimum(surely_more, surely_changed) - loss) / ratio.error).mean())

    def more_trials(self, estimate: Estimate) -> int | None:
        """The number of trials that each side lacks to decide between pass and regression, if means and variances
        stayed what they are; None where MOST_TRIALS would not, for the trials' noise or a loss about the threshold."""
        have = estimate.n

        def decided(more: int) -> bool:
            return self.judge(estimate.grown(more)) != "inconclusive"

        most = MOST_TRIALS - have
        return bisect.bisect_left(range(most), True, lo=1, key=decided) if decided(most) else None


_MIDDLES = (np.arange(128) + 0.5) / 128
"""Of equal parts of a distribution's probability."""


@dataclass(frozen=True)
class Interim:
    """One look at the trials so far: how many there are a side by then, and the level of its tests."""

    trials: int
    rule: Rule


MOST_INTERIMS = 4

_SPENT = {1: (1.0,), 2: (0.3, 0.7), 3: (0.1, 0.25, 0.65), 4: (0.05, 0.15, 0.2, 0.6)}
"""The share of the level that each look may spend, most of it at the last, where most trials are. The shares sum up
to 1, so that by Bonferroni's inequality the looks together are wrong no more often than one test of the whole level,
however the looks depend on each other (K. Lan and D. DeMets, "Discrete sequential boundaries for clinical trials",
Biometrika 70, 1983, is the idea of spending)."""

DEFAULT_INTERIMS = (3, 4, 6, 8)
"""Trials a side at each look."""


def interims(trials: Sequence[int] = DEFAULT_INTERIMS, rule: Rule | None = None) -> tuple[Interim, ...]:
    """The looks of a gate, the level split over them. Raises ValueError unless `trials` are one to four numbers from 2
    up, ascending."""
    rule = rule or Rule()
    if not 1 <= len(trials) <= MOST_INTERIMS:
        raise ValueError(f"expected one to {MOST_INTERIMS} looks, got {len(trials)}")
    if list(trials) != sorted(set(trials)) or trials[0] < 2:
        raise ValueError("expected ascending numbers of trials from 2 up")
    return tuple(
        Interim(n, Rule(rule.threshold, rule.level * share, rule.change_level * share))
        for n, share in zip(trials, _SPENT[len(trials)], strict=True)
    )


Decided = tuple[Decision, int]
"""A decision, and the look that made it (from 0)."""
