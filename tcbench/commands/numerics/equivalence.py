"""Equivalence tests: whether paired differences are certainly smaller than a margin. Pure functions.

Finding no difference proves nothing, since few seeds find none. Here the verdict is `equivalent` only if the mean
difference is certainly inside the margin, `different` only if it is certainly outside, and `undecided` otherwise. The
test is two one-sided tests (D. Schuirmann, "A comparison of the two one-sided tests procedure and the power approach
for assessing the equivalence of average bioavailability", Journal of Pharmacokinetics and Biopharmaceutics 15,
1987)."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tcbench.analysis.welch import quantile

EquivalenceDecision = Literal["equivalent", "different", "undecided"]

LEVEL = 0.05
"""Significance level of each one-sided test."""


@dataclass(frozen=True)
class Equivalence:
    """The result of an equivalence test.

    `mean` is the mean of the paired differences, `low` and `high` its two-sided interval at 1 - 2 LEVEL (infinite for
    fewer than two pairs). `margin` has the same unit."""

    mean: float
    low: float
    high: float
    margin: float
    decision: EquivalenceDecision
    pairs: int


def equivalence(differences: Sequence[float], margin: float, least_error: float = 0.0) -> Equivalence:
    """Judge paired differences against a margin.

    `different` is tested at LEVEL / 2, since either of two figures (loss, accuracy) can decide a verdict. The standard
    error is at least `least_error`, because readings from a coarse scale agree by chance. Raises ValueError without
    differences, for a margin that is not positive, or a difference that is not finite."""
    if not differences or not margin > 0 or not all(map(math.isfinite, differences)):
        raise ValueError("equivalence: expected finite differences and a margin above 0")
    n, mean = len(differences), statistics.fmean(differences)
    if n < 2:
        return Equivalence(mean, -math.inf, math.inf, margin, "undecided", n)
    error = max(statistics.stdev(differences) / math.sqrt(n), least_error)

    def half(probability: float) -> float:
        return quantile(probability, n - 1) * error if error else 0.0

    inside, outside = half(1 - LEVEL), half(1 - LEVEL / 2)
    decision: EquivalenceDecision = "undecided"
    if abs(mean) + inside < margin:
        decision = "equivalent"
    elif abs(mean) - outside > margin:
        decision = "different"
    return Equivalence(mean, mean - inside, mean + inside, margin, decision, n)
