"""Two sides that were measured in turns: where the machine's drift moves both, rounds are compared and not averages.

A gate runs base and current beside each other, round after round. What the machine does meanwhile (a neighbour on the
same host, heat, clocks) is then common to the two trials of a round and cancels in the difference of their logarithms:
each round is a block of a randomized block design, and the paired t-test is its analysis (G. Box, J. Hunter and W.
Hunter, "Statistics for Experimenters", 2nd edition 2005, section 3.2). On a machine that holds still pairing only
throws away degrees of freedom, so rounds are paired where their trials surely go up and down together.

That choice may look at the data: of normal figures the sample covariances are independent of the means, so that it
cannot favour either side, only mistake the error by a little, and seldom. `benchmarks/gate_truth.py` measures what is
left of it on machines that drift and machines that do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tcbench.analysis import welch
from tcbench.analysis.stats import Interval
from tcbench.analysis.welch import Estimate, Group, Paired, Unpaired

LEAST_ROUNDS = 4
"""Below that no correlation is sure enough."""

LEVEL = 0.002
"""Of the test that the trials of a round go together: so seldom is it believed where they do not."""


def estimate(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """The ratio of two sides' figures, one of each per round, in order: paired where `together` says so.

    Raises ValueError below two figures a side, or for one that is not positive and finite.
    """
    sides = Unpaired(Group.of(numerator), Group.of(denominator))
    logs = [[math.log(figure) for figure in figures] for figures in (numerator, denominator)]
    return Paired(_differences(*logs)) if together(*logs) else sides


def difference(one: Sequence[float], other: Sequence[float], level: float = 0.95) -> Interval:
    """one - other of plain values, as `welch.difference`, paired where `together` says so."""
    if not together(one, other):
        return welch.difference(Group.plain(one), Group.plain(other), level)
    of = _differences(one, other)
    half = welch.quantile((1 + level) / 2, of.n - 1) * math.sqrt(of.variance / of.n)
    return Interval(of.mean, of.mean - half, of.mean + half)


def together(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether values of the same round surely go up and down together: Pearson's correlation is above 0, by a one-sided
    t-test (R. A. Fisher, Biometrika 10, 1915). Never for sides of unequal length, whose rounds are not known."""
    n = len(one)
    if n != len(other) or n < LEAST_ROUNDS:
        return False
    means = math.fsum(one) / n, math.fsum(other) / n
    pairs = [(x - means[0], y - means[1]) for x, y in zip(one, other, strict=True)]
    squares = math.fsum(x * x for x, _ in pairs) * math.fsum(y * y for _, y in pairs)
    if not squares:
        return False
    r = math.fsum(x * y for x, y in pairs) / math.sqrt(squares)
    # r / sqrt((1 - r^2) / (n - 2)) above t, without dividing by what may be 0.
    return r > 0 and r * r * (n - 2) > welch.quantile(1 - LEVEL, n - 2) ** 2 * (1 - r * r)


def _differences(one: Sequence[float], other: Sequence[float]) -> Group:
    return Group.plain([x - y for x, y in zip(one, other, strict=True)])
