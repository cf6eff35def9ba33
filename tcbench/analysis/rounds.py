"""Two sides that were measured in turns: where the machine's drift moves both, rounds are compared and not averages.

A gate runs base and current beside each other, round after round. What the machine does meanwhile (a neighbour on the
same host, heat, clocks) is then common to the two trials of a round and cancels in the difference of their logarithms:
each round is a block of a randomized block design, and the paired t-test is its analysis (G. Box, J. Hunter and W.
Hunter, "Statistics for Experimenters", 2nd edition 2005, section 3.2). On a machine that holds still pairing only
throws away degrees of freedom, so rounds are paired where they drift.

The choice must not look at what the paired test then rests on: sides that seem to go together by chance have an error
that seems small, and choosing by their correlation would raise false alarms. So it looks at the rounds' means alone,
which say nothing of the differences within rounds: of two normal figures of equal variance the sum and the difference
are independent. `benchmarks/gate_truth.py` measures what comes of it on machines that drift and machines that do not.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import NormalDist
from typing import Literal

from tcbench.analysis import welch
from tcbench.analysis.stats import Interval
from tcbench.analysis.welch import LEAST_TRIALS, Estimate, Group

DRIFTS = 0.02
"""Rounds are paired when the standard deviation of their means is more than this share. A machine that is fit for
measuring stays far below it: where trials differ by 1%, rounds do by 0.7%."""


def estimate(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """The ratio of two sides' figures, one of each per round, in order: paired where the rounds drift. Raises
    ValueError below two figures a side, or for one that is not positive and finite."""
    logs = [[math.log(figure) for figure in figures] for figures in (numerator, denominator)]
    return Estimate(_differences(*logs)) if _drifts(*logs) else Estimate(*map(Group.plain, logs))


def difference(one: Sequence[float], other: Sequence[float]) -> Interval:
    """one - other of plain values, as `welch.difference`, paired where the rounds drift."""
    if min(*one, *other) <= 0 or not _drifts(*([math.log(value) for value in values] for values in (one, other))):
        return welch.difference(one, other)
    return _differences(one, other).mean_interval


_TREND_LEVEL = 0.01
"""Level of the two-sided test for a common trend, for all cells of a comparison together."""


def trend(*sides: Sequence[float], tests: int = 1) -> Literal[-1, 0, 1]:
    """Return 1 if the figures of every side rise from trial to trial, -1 if they fall, and 0 if chance may explain it.

    Kendall's S summed over the sides, by its normal approximation (R. Hirsch and J. Slack, "A nonparametric trend test
    for seasonal data with serial dependence", Water Resources Research 20, 1984). Each side has to show half of it.
    """
    scores = [sum((y > x) - (y < x) for x, y in combinations(figures, 2)) for figures in sides]
    counts = [len(figures) for figures in sides]
    error = math.sqrt(sum(n * (n - 1) * (2 * n + 5) / 18 for n in counts))
    beyond = NormalDist().inv_cdf(1 - _TREND_LEVEL / 2 / tests) * error
    for sign in (1, -1):
        clear = all(4 * sign * score >= n * (n - 1) > 0 for score, n in zip(scores, counts, strict=True))
        if clear and sign * sum(scores) - 1 > beyond:
            return 1 if sign > 0 else -1
    return 0


def _drifts(one: Sequence[float], other: Sequence[float]) -> bool:
    """By the logarithms of both sides. Never for sides of unequal length, whose rounds are not known."""
    if len(one) != len(other) or len(one) < LEAST_TRIALS:
        return False
    return Group.plain([(x + y) / 2 for x, y in zip(one, other, strict=True)]).variance > DRIFTS**2


def _differences(one: Sequence[float], other: Sequence[float]) -> Group:
    return Group.plain([x - y for x, y in zip(one, other, strict=True)])
