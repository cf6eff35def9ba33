"""Whether two things are the same but for a stated margin: two one-sided tests on paired differences. Pure.

That no difference was found says nothing: few seeds find none. Here the answer is `equivalent` only where the mean
difference is surely inside the margin, `different` only where it is surely outside, else `undecided` (D. Schuirmann, "A
comparison of the two one-sided tests procedure and the power approach for assessing the equivalence of average
bioavailability", Journal of Pharmacokinetics and Biopharmaceutics 15, 1987).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tcbench.analysis.welch import quantile

EquivalenceDecision = Literal["equivalent", "different", "undecided"]

LEVEL = 0.05
"""Of each one-sided test."""


@dataclass(frozen=True)
class Equivalence:
    """The mean of paired differences with its two-sided interval at 1 - 2 LEVEL (infinite below two pairs), the margin
    it was held against, in the same unit, and what follows."""

    mean: float
    low: float
    high: float
    margin: float
    decision: EquivalenceDecision
    pairs: int


def equivalence(differences: Sequence[float], margin: float, least_error: float = 0.0) -> Equivalence:
    """Judge differences, one per pair. `different` takes level LEVEL / 2, since a verdict asks two questions. The
    standard error of the mean is never taken for less than `least_error`: what is read off a coarse scale repeats.
    Raises ValueError without a pair, for a margin that is not positive, or a difference that is not finite."""
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
