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


def _drifts(one: Sequence[float], other: Sequence[float]) -> bool:
    """By the logarithms of both sides. Never for sides of unequal length, whose rounds are not known."""
    if len(one) != len(other) or len(one) < LEAST_TRIALS:
        return False
    return Group.plain([(x + y) / 2 for x, y in zip(one, other, strict=True)]).variance > DRIFTS**2


def _differences(one: Sequence[float], other: Sequence[float]) -> Group:
    return Group.plain([x - y for x, y in zip(one, other, strict=True)])
