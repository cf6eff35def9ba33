"""The share of float16 gradients that is lost at a loss scale, from counts by power of two.

float16 rounds to nearest even. So |g| 2^k <= 2^-25 becomes zero, a smaller value than 2^-14 - 2^-25 becomes subnormal,
and 65520 or more becomes infinite (IEEE 754-2008, binary16). `Magnitudes` counts the values on these borders
separately, so the shares are exact for every scale 2^k."""

from collections.abc import Sequence
from dataclasses import dataclass

from tcbench.core.numerics import Magnitudes

SMALLEST = -24
"""2^-24 is float16's smallest number; half of it rounds to zero."""
SMALLEST_NORMAL = -14
"""2^-14 is float16's smallest normal number."""
_LARGEST = 15
"""The binary exponent of float16's largest number, 65504."""
_SMALLEST_BFLOAT16 = -133
"""2^-133 is bfloat16's smallest number."""

LOST_AT_MOST = 0.01
"""A loss scale is safe if at most this share of the non-zero gradients becomes zero, and none infinite."""


@dataclass(frozen=True)
class Shares:
    """The shares of the finite, non-zero float32 gradients that float16 makes zero, subnormal and infinite."""

    zero: float
    subnormal: float
    infinite: float


def shares(magnitudes: Magnitudes, log2_scale: int) -> Shares:
    """Return the shares after multiplication by 2^log2_scale; all 0 without gradients."""
    zero, below_normal, infinite = _become_zero(magnitudes, log2_scale, SMALLEST), 0, 0
    rows = zip(magnitudes.counts, magnitudes.almost, magnitudes.nearly, strict=True)
    for exponent, (n, almost, nearly) in enumerate(rows, start=magnitudes.lowest + log2_scale):
        if exponent < SMALLEST_NORMAL - 1:
            below_normal += n
        elif exponent == SMALLEST_NORMAL - 1:
            below_normal += n - almost  # which round up to a normal number
        if exponent > _LARGEST:
            infinite += n
        elif exponent == _LARGEST:
            infinite += nearly  # which round up to infinity
    n = max(1, magnitudes.non_zero)
    return Shares(zero / n, (below_normal - zero) / n, infinite / n)


def _become_zero(magnitudes: Magnitudes, log2_scale: int, smallest: int) -> int:
    """Return how many values round to zero in a format with the smallest number 2^smallest: those up to half of it."""
    rows = zip(magnitudes.counts, magnitudes.powers, strict=True)
    return sum(
        n if exponent < smallest - 1 else powers if exponent == smallest - 1 else 0
        for exponent, (n, powers) in enumerate(rows, start=magnitudes.lowest + log2_scale)
    )


def zero_in_bfloat16(magnitudes: Magnitudes) -> float:
    """Return the share of the finite, non-zero float32 gradients that bfloat16 makes zero, without a loss scale."""
    return _become_zero(magnitudes, 0, _SMALLEST_BFLOAT16) / max(1, magnitudes.non_zero)


@dataclass(frozen=True)
class SafeScales:
    """log2 of the smallest and the largest safe loss scale (`LOST_AT_MOST`).

    `smallest` is None without gradients. If it is above `largest`, no scale is safe."""

    smallest: int | None
    largest: int | None

    @property
    def middle(self) -> int | None:
        """The middle of the safe range, or the largest scale if none is safe."""
        if self.smallest is None or self.largest is None:
            return None
        return min(self.largest, (self.smallest + self.largest) // 2)


def safe_scales(parts: Sequence[Magnitudes]) -> SafeScales:
    """Return the loss scales that are safe for every part."""
    filled = [part for part in parts if part.counts]
    if not filled:
        return SafeScales(None, None)
    highest = max(part.lowest + len(part.counts) for part in filled)
    lowest = min(part.lowest for part in filled)
    # At the smallest candidate everything becomes zero, at the largest everything infinite.
    candidates = range(SMALLEST - highest - 1, _LARGEST - lowest + 2)
    smallest = next(k for k in candidates if all(shares(part, k).zero <= LOST_AT_MOST for part in filled))
    largest = next(k for k in reversed(candidates) if all(shares(part, k).infinite == 0 for part in filled))
    return SafeScales(smallest, largest)
