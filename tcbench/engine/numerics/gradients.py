"""Gradients in float16: counts by power of two, and from them the share that is lost at any loss scale.

One pass over the values is enough for every scale 2^k, and exact: float16 rounds to nearest even, so that |g| 2^k <=
2^-25 becomes zero, below 2^-14 - 2^-25 what is not zero becomes subnormal, and from 65520 on infinity (IEEE 754-2008,
binary16). Each border is a power of two or lies at a fixed place within one, and values at those places are counted
apart. Pure: arrays in, numbers out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tcbench.core.numerics import Magnitudes

SMALLEST = -24
"""2^-24 is float16's smallest number; half of it rounds to zero."""
SMALLEST_NORMAL = -14
_LARGEST = 15
"""The binary exponent of float16's largest number, 65504."""
_ALMOST, _NEARLY = 1 - 2.0**-11, 1 - 2.0**-12
"""(2 - 2^-10) / 2 and (2 - 2^-11) / 2: mantissas as frexp has them, from which on the last subnormal rounds up to the
smallest normal number, and the largest number to infinity."""

_SMALLEST_BFLOAT16 = -133
"""2^-133 is bfloat16's smallest number."""

LOST_AT_MOST = 0.01
"""A loss scale is safe when it leaves at most this share of the non-zero gradients zero, and none infinite."""


def count(values: npt.NDArray[np.floating]) -> Magnitudes:
    """Magnitudes of an array of any shape, float16 or float32, by power of two."""
    magnitude = np.abs(np.asarray(values, np.float32)).ravel()
    finite = np.isfinite(magnitude)
    zeros = int(np.count_nonzero(magnitude == 0))
    not_finite = int(magnitude.size - np.count_nonzero(finite))
    mantissa, exponent = np.frexp(magnitude[finite & (magnitude > 0)])
    if not mantissa.size:
        return Magnitudes(lowest=0, counts=(), powers=(), almost=(), nearly=(), zeros=zeros, not_finite=not_finite)
    lowest, bins = int(exponent.min()) - 1, int(exponent.max() - exponent.min()) + 1

    def in_bins(chosen: npt.NDArray[np.bool_] | slice) -> tuple[int, ...]:
        return tuple(np.bincount(exponent[chosen] - 1 - lowest, minlength=bins).tolist())

    return Magnitudes(
        lowest=lowest,
        counts=in_bins(slice(None)),
        powers=in_bins(mantissa == 0.5),
        almost=in_bins(mantissa >= _ALMOST),
        nearly=in_bins(mantissa >= _NEARLY),
        zeros=zeros,
        not_finite=not_finite,
    )


def total(of: Iterable[Magnitudes]) -> Magnitudes:
    """All of them together."""
    parts = list(of)
    filled = [part for part in parts if part.counts]
    zeros, not_finite = sum(p.zeros for p in parts), sum(p.not_finite for p in parts)
    lowest = min((part.lowest for part in filled), default=0)
    bins = max((part.lowest + len(part.counts) for part in filled), default=0) - lowest

    def added(name: str) -> tuple[int, ...]:
        sums = [0] * bins
        for part in filled:
            for i, n in enumerate(getattr(part, name)):
                sums[part.lowest - lowest + i] += n
        return tuple(sums)

    columns = {name: added(name) for name in ("counts", "powers", "almost", "nearly")}
    return Magnitudes(lowest=lowest, zeros=zeros, not_finite=not_finite, **columns)


@dataclass(frozen=True)
class Shares:
    """Of the finite gradients that are not zero in float32, the shares that float16 makes zero, subnormal, infinite."""

    zero: float
    subnormal: float
    infinite: float


def shares(magnitudes: Magnitudes, log2_scale: int) -> Shares:
    """After multiplication by 2^log2_scale. All 0 where there is no gradient."""
    zero, below_normal, infinite = _become_zero(magnitudes, log2_scale, SMALLEST), 0, 0
    rows = zip(magnitudes.counts, magnitudes.almost, magnitudes.nearly, strict=True)
    for exponent, (n, almost, nearly) in enumerate(rows, start=magnitudes.lowest + log2_scale):
        if exponent < SMALLEST_NORMAL - 1:
            below_normal += n
        elif exponent == SMALLEST_NORMAL - 1:
            below_normal += n - almost
        if exponent > _LARGEST:
            infinite += n
        elif exponent == _LARGEST:
            infinite += nearly
    n = max(1, magnitudes.non_zero)
    return Shares(zero / n, (below_normal - zero) / n, infinite / n)


def _become_zero(magnitudes: Magnitudes, log2_scale: int, smallest: int) -> int:
    """The number of those that are rounded to zero where 2^smallest is the smallest number: up to half of it."""
    rows = zip(magnitudes.counts, magnitudes.powers, strict=True)
    return sum(
        n if exponent < smallest - 1 else powers if exponent == smallest - 1 else 0
        for exponent, (n, powers) in enumerate(rows, start=magnitudes.lowest + log2_scale)
    )


def zero_in_bfloat16(magnitudes: Magnitudes) -> float:
    """Of the finite gradients that are not zero in float32, the share that bfloat16 makes zero, without a scale."""
    return _become_zero(magnitudes, 0, _SMALLEST_BFLOAT16) / max(1, magnitudes.non_zero)


@dataclass(frozen=True)
class SafeScales:
    """log2 of the smallest and the largest loss scale that keep all but LOST_AT_MOST from zero, and all from infinity.
    `smallest` is None without gradients. Smallest above largest: no scale does both."""

    smallest: int | None
    largest: int | None

    @property
    def middle(self) -> int | None:
        """As far from the one as from the other; the largest where no scale is safe."""
        if self.smallest is None or self.largest is None:
            return None
        return min(self.largest, (self.smallest + self.largest) // 2)


def safe_scales(parts: Sequence[Magnitudes]) -> SafeScales:
    """Scales that are safe for each of the parts."""
    filled = [part for part in parts if part.counts]
    if not filled:
        return SafeScales(None, None)
    highest = max(part.lowest + len(part.counts) for part in filled)
    lowest = min(part.lowest for part in filled)
    candidates = range(SMALLEST - highest - 1, _LARGEST - lowest + 2)
    smallest = next(k for k in candidates if all(shares(part, k).zero <= LOST_AT_MOST for part in filled))
    largest = next(k for k in reversed(candidates) if all(shares(part, k).infinite == 0 for part in filled))
    return SafeScales(smallest, largest)
