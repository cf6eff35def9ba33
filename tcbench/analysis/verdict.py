"""Whether something got slower: a ratio and its uncertainty become a verdict. Pure functions of numbers.

The question is never "is there a difference" (with enough trials there always is) but "is the loss surely above the
threshold, or surely below it"; what is neither is inconclusive. Each answer is wrong with probability `level` at most
when the true loss is the threshold itself. Cells are judged one by one without a correction: what did not change lies
a whole threshold away from a regression, so that the chance of any false alarm among many cells stays small
(`benchmarks/gate_truth.py` measures it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tcbench.analysis import rounds
from tcbench.analysis.welch import Estimate, LogRatio

Decision = Literal["regression", "pass", "improved", "inconclusive"]

MOST_TRIALS = 1000
"""More trials than anyone will run: from there on the answer to "how many" is "no number"."""


@dataclass(frozen=True)
class Rule:
    """`threshold`: the share of the base's figure whose loss matters. `level`: of each one-sided test."""

    threshold: float = 0.03
    level: float = 0.05

    def judge(self, ratio: LogRatio) -> Decision:
        """`ratio` is current over base, of a figure of which more is better.

        `regression`: surely below 1 - threshold. `improved`: surely above 1 / (1 - threshold), so that exchanging the
        sides exchanges the two. `pass`: surely above 1 - threshold.
        """
        worst = 1 - self.threshold
        low, high = ratio.limit(self.level), ratio.limit(1 - self.level)
        if high < worst:
            return "regression"
        if low > 1 / worst:
            return "improved"
        return "pass" if low > worst else "inconclusive"

    def more_trials(self, of: Estimate) -> int | None:
        """The number of trials that each side lacks to decide between pass and regression, if means and variances
        stayed what they are; None where no sensible number would, since the loss is about the threshold itself."""
        have = of.n

        def decided(more: int) -> bool:
            return self.judge(of.grown(more)) != "inconclusive"

        if not decided(MOST_TRIALS - have):
            return None
        few, enough = 0, MOST_TRIALS - have
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if decided(middle) else (middle, enough)
        return enough


@dataclass(frozen=True)
class Interim:
    """One look at the trials so far: how many there are a side by then, and the level of its tests."""

    trials: int
    rule: Rule


MOST_INTERIMS = 4

_SPENT = {1: (1.0,), 2: (0.4, 0.6), 3: (0.1, 0.3, 0.6), 4: (0.1, 0.2, 0.2, 0.5)}
"""The share of the level that each look may spend, most of it at the last, where most trials are. The shares sum up
to 1, so that by Bonferroni's inequality the looks together are wrong no more often than one test of the whole level,
however the looks depend on each other (K. Lan and D. DeMets, "Discrete sequential boundaries for clinical trials",
Biometrika 70, 1983, is the idea of spending)."""

DEFAULT_INTERIMS = (3, 4, 6, 8)
"""Trials a side at each look."""


def interims(trials: Sequence[int] = DEFAULT_INTERIMS, rule: Rule | None = None) -> tuple[Interim, ...]:
    """The looks of a gate, the level split over them.

    Raises ValueError unless `trials` are one to four numbers from 2 up, ascending.
    """
    rule = rule or Rule()
    if not 1 <= len(trials) <= MOST_INTERIMS:
        raise ValueError(f"expected one to {MOST_INTERIMS} looks, got {len(trials)}")
    if list(trials) != sorted(set(trials)) or trials[0] < 2:
        raise ValueError("expected ascending numbers of trials from 2 up")
    return tuple(
        Interim(n, Rule(rule.threshold, rule.level * share))
        for n, share in zip(trials, _SPENT[len(trials)], strict=True)
    )


def settle(
    current: Sequence[float],
    base: Sequence[float],
    of: Sequence[Interim],
    estimate: Callable[[Sequence[float], Sequence[float]], Estimate] = rounds.estimate,
) -> tuple[Decision, int]:
    """The decision of a gate from figures of which more is better, taken in turns, and at which look (from 0); it
    sees no more trials than it needs. Inconclusive after the last look, or where the figures end before."""
    for number, interim in enumerate(of):
        if min(len(current), len(base)) < interim.trials:
            return "inconclusive", number
        decision = interim.rule.judge(estimate(current[: interim.trials], base[: interim.trials]).ratio)
        if decision != "inconclusive":
            return decision, number
    return "inconclusive", len(of) - 1
