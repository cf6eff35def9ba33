"""Check whether a machine stayed the same during a gate, from the trials that the gate ran anyway.

If the code alone decides, the ratio current / base of a round does not depend on when the round ran. Two splits of the
rounds test this: the first half of the gate against the last, and odd rounds against even ones, in which the other side
goes first. Within each cell, Student's t-test compares the means of the two halves. The cells may vary by different
amounts, so their tests are combined as normal scores, in two ways: the weighted sum of the scores finds a change with
the same sign in all cells (S. Stouffer et al., "The American Soldier", volume 1, 1949; T. Liptak, Magyar Tud. Akad.
Mat. Kutato Int. Kozl. 3, 1958), and the sum of their squares finds changes of any signs (chi-squared distribution).

A change of at most `MARGIN` of the gate's threshold counts as none. It hardly moves a verdict, and the rounds of
unchanged code seem to change by about as much: the cells that are measured on are those whose first rounds were by
chance slow. Without the margin, the check of 20 cells failed in up to 4% of such gates.

The level of `LEVEL` is divided among these tests (O. Dunn, "Multiple comparisons among means", JASA 56, 1961).
`benchmarks/machine_check.py` measures how often the check fails."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

import msgspec

LEVEL = 0.01
"""Probability that the check of a gate fails although only chance distinguishes its rounds."""

MARGIN = 0.25
"""The largest change of the ratio that does not matter, as a fraction of the threshold of the gate."""

LEAST_ROUNDS = 4
"""Rounds that each half of a split needs, over all cells."""

_LEAST_ERROR = 1e-9
"""Lower bound of a standard error: figures of a simulated device do not vary."""

_LEAST_TAIL = 1e-300
"""Lower bound of a probability whose normal score is finite."""

Halves = Literal["first and last", "odd and even"]
"""The two ways to split the rounds of a gate."""


class PairedRound(NamedTuple):
    """The logarithm of current / base in one round of a cell. `began_at` is the start of base's trial (UTC, ISO)."""

    began_at: str
    log_ratio: float


class Split(msgspec.Struct, frozen=True):
    """The rounds of a gate in two halves. `change` is the ratio current / base in the second half relative to that in
    the first, as a factor, averaged over the cells. `p` is the p-value of the null hypothesis that no cell changed by
    more than the margin."""

    halves: Halves
    change: float
    p: float

    @property
    def significant(self) -> bool:
        """Whether the halves differ. The level is divided between the two splits."""
        return self.p < LEVEL / 2


class MachineCheck(msgspec.Struct, frozen=True):
    """The result of the check. `splits` are those that have enough rounds; without any, `unstable` is None."""

    unstable: bool | None
    splits: tuple[Split, ...] = ()


class _Contrast(NamedTuple):
    """The second half of a cell's rounds minus the first: the difference of the means, its weight, the number of rounds
    in each half, and normal scores: positive if the cell's ratio rose or fell by more than the margin."""

    change: float
    weight: float
    rounds: tuple[int, int]
    rise: float
    fall: float


def check(cells: Sequence[Sequence[PairedRound]], threshold: float) -> MachineCheck:
    """Return the check of a gate with this threshold, given the rounds of each cell in order."""
    margin = MARGIN * threshold
    times = sorted((each.began_at, n, cell) for cell, rounds in enumerate(cells) for n, each in enumerate(rounds))
    early = {(cell, n) for _, n, cell in times[: len(times) // 2]}
    splits = (
        _split("first and last", cells, margin, lambda cell, n: (cell, n) in early),
        _split("odd and even", cells, margin, lambda _, n: n % 2 == 0),
    )
    tested = tuple(split for split in splits if split is not None)
    return MachineCheck(any(split.significant for split in tested) if tested else None, tested)


def _split(
    halves: Halves, cells: Sequence[Sequence[PairedRound]], margin: float, is_first: Callable[[int, int], bool]
) -> Split | None:
    """Return the comparison of two halves, or None if one of them has too few rounds. `is_first` tells, by the numbers
    of the cell and the round, whether a round belongs to the first half."""
    from scipy.special import chdtrc, ndtr

    contrasts = []
    for cell, rounds in enumerate(cells):
        first, second = (
            [each.log_ratio for n, each in enumerate(rounds) if is_first(cell, n) is side] for side in (True, False)
        )
        if len(rounds) > 2 and first and second:
            contrasts.append(_contrast(first, second, margin))
    if not contrasts or min(map(sum, zip(*(contrast.rounds for contrast in contrasts), strict=True))) < LEAST_ROUNDS:
        return None
    shares = [contrast.weight / sum(contrast.weight for contrast in contrasts) for contrast in contrasts]
    change = sum(share * contrast.change for share, contrast in zip(shares, contrasts, strict=True))
    rise = sum(math.sqrt(share) * contrast.rise for share, contrast in zip(shares, contrasts, strict=True))
    fall = sum(math.sqrt(share) * contrast.fall for share, contrast in zip(shares, contrasts, strict=True))
    p = min(1.0, float(2 * ndtr(-max(rise, fall))))
    if len(contrasts) > 1:
        squares = sum(max(contrast.rise, contrast.fall, 0.0) ** 2 for contrast in contrasts)
        p = min(1.0, 2 * min(p, float(chdtrc(len(contrasts), squares))))
    return Split(halves, math.exp(change), p)


def _contrast(first: Sequence[float], second: Sequence[float], margin: float) -> _Contrast:
    """Return the contrast of the two halves of a cell's rounds, of which there are at least three."""
    change, degrees = fmean(second) - fmean(first), len(first) + len(second) - 2
    squares = math.fsum((log - fmean(side)) ** 2 for side in (first, second) for log in side)
    weight = len(first) * len(second) / (degrees + 2)
    error = max(math.sqrt(squares / degrees / weight), _LEAST_ERROR)
    rise, fall = (_normal_score((sign * change + math.log1p(-margin)) / error, degrees) for sign in (1, -1))
    return _Contrast(change, weight, (len(first), len(second)), rise, fall)


def _normal_score(t: float, degrees: float) -> float:
    """Return the standard normal quantile at the probability of a value of Student's t."""
    from scipy.special import ndtri, stdtr

    return math.copysign(float(ndtri(max(float(stdtr(degrees, -abs(t))), _LEAST_TAIL))), t)
