"""Compare two sides that took turns: if the machine drifts, the trials of each round are paired.

A gate runs base and current in turns, round after round. Whatever the machine does meanwhile (a neighbour on the same
host, heat, clocks) affects both trials of a round and cancels in the difference of their logarithms. Each round is a
block of a randomized block design, and the paired t-test is its analysis (G. Box, J. Hunter and W. Hunter, "Statistics
for Experimenters", 2nd edition 2005, section 3.2). On a steady machine, pairing only costs degrees of freedom, so
rounds are paired only if they drift.

The decision to pair must not depend on the differences within rounds, on which the paired test rests: choosing by the
correlation of the sides would raise false alarms. It therefore depends on the means of the rounds alone, which are
independent of those differences (the sum and the difference of two normal variables of equal variance are independent).
`benchmarks/gate_truth.py` measures the error rates on machines with and without drift."""

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import NormalDist
from typing import Literal

from tcbench.analysis import welch
from tcbench.analysis.stats import Interval
from tcbench.analysis.welch import LEAST_TRIALS, Estimate, SampleStats

DRIFTS = 0.02
"""Rounds are paired if the standard deviation of their means exceeds this fraction. A machine that is fit for measuring
stays far below: where trials differ by 1%, rounds differ by 0.7%."""


def estimate(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """Return the ratio numerator / denominator of two sides, each with one figure per round in order. The figures are
    paired by round if the rounds drift. Raises ValueError with fewer than two figures a side, or for a figure that is
    not positive and finite."""
    logs = [[math.log(figure) for figure in figures] for figures in (numerator, denominator)]
    return Estimate(_differences(*logs)) if _drifts(*logs) else Estimate(*map(SampleStats.from_values, logs))


def difference(minuend: Sequence[float], subtrahend: Sequence[float]) -> Interval:
    """Return the mean of minuend - subtrahend with its 95% interval. Each side has one value per round, in order. The
    values are paired by round if the rounds drift; otherwise `welch.difference` compares them."""
    sides = (minuend, subtrahend)
    if min(*minuend, *subtrahend) <= 0 or not _drifts(*([*map(math.log, side)] for side in sides)):
        return welch.difference(*sides)
    return _differences(*sides).mean_interval


_TREND_LEVEL = 0.01
"""Level of the two-sided test for a common trend, over all cells of a comparison together."""


def trend(*sides: Sequence[float], tests: int = 1) -> Literal[-1, 0, 1]:
    """Return 1 if the figures of every side rise from trial to trial, -1 if those of every side fall, and 0 if neither
    is significant. `tests` is the number of tests that share the level.

    Uses Kendall's S summed over the sides, with its continuity-corrected normal approximation (R. Hirsch and J. Slack,
    "A nonparametric trend test for seasonal data with serial dependence", Water Resources Research 20, 1984). In
    addition, each side must reach half of its largest possible S."""
    scores = [sum((y > x) - (y < x) for x, y in combinations(figures, 2)) for figures in sides]
    counts = [len(figures) for figures in sides]
    error = math.sqrt(sum(n * (n - 1) * (2 * n + 5) / 18 for n in counts))
    beyond = NormalDist().inv_cdf(1 - _TREND_LEVEL / 2 / tests) * error
    for sign in (1, -1):
        clear = all(4 * sign * score >= n * (n - 1) > 0 for score, n in zip(scores, counts, strict=True))
        if clear and sign * sum(scores) - 1 > beyond:
            return 1 if sign > 0 else -1
    return 0


def _drifts(base_logs: Sequence[float], current_logs: Sequence[float]) -> bool:
    """Return whether the means of the rounds vary by more than `DRIFTS`. Arguments are the logarithms of both sides.
    False if the sides have different lengths, since it is then unknown which trials shared a round."""
    if len(base_logs) != len(current_logs) or len(base_logs) < LEAST_TRIALS:
        return False
    return (
        SampleStats.from_values([(x + y) / 2 for x, y in zip(base_logs, current_logs, strict=True)]).variance
        > DRIFTS**2
    )


def _differences(minuend: Sequence[float], subtrahend: Sequence[float]) -> SampleStats:
    return SampleStats.from_values([x - y for x, y in zip(minuend, subtrahend, strict=True)])
