"""Counting by power of two against an independent count: multiply, convert to float16, look."""

import ml_dtypes
import numpy as np
import pytest

from tcbench.commands.numerics.loss_scales import Shares, safe_scales, shares, zero_in_bfloat16
from tcbench.core.numerics import total_magnitudes
from tcbench.engine.numerics.gradients import count


def independent(values: np.ndarray, log2_scale: int) -> Shares:
    """Float16's own rounding of the values."""
    non_zero = values[(values != 0) & np.isfinite(values)].astype(np.float64)
    with np.errstate(over="ignore"):
        half = np.abs((non_zero * 2.0**log2_scale).astype(np.float16))
    n = max(1, non_zero.size)
    subnormal = (half > 0) & (half < np.finfo(np.float16).smallest_normal)
    return Shares(
        np.count_nonzero(half == 0) / n, np.count_nonzero(subnormal) / n, np.count_nonzero(np.isinf(half)) / n
    )


def spread(seed: int) -> np.ndarray:
    """Values over all of float16's range and beyond, both signs, with zeros among them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(20_000) * 2.0 ** rng.uniform(-40, 24, 20_000)
    values[::97] = 0
    return values.astype(np.float32)


def borders() -> np.ndarray:
    """Each place where rounding changes its answer, and its neighbours."""
    borders = np.array([2.0**-25, 2.0**-24, 2.0**-14, 2.0**-14 - 2.0**-25, 65504, 65520, 65536, 2.0**-149], np.float32)
    return np.concatenate(
        [borders, np.nextafter(borders, np.float32(0)), np.nextafter(borders, np.float32(np.inf)), -borders]
    )


@pytest.mark.parametrize("log2_scale", [-12, -3, 0, 1, 7, 11, 15, 24, 37])
@pytest.mark.parametrize("values", [spread(0), spread(1), borders()], ids=["spread", "more", "borders"])
def test_shares_equal_an_independent_count(values, log2_scale):
    assert shares(count(values), log2_scale) == independent(values, log2_scale)


@pytest.mark.parametrize("log2_scale", [-9, -1, 0, 1, 2, 9])
def test_borders_are_exact_after_scaling_too(log2_scale):
    values = (borders()[:-10].astype(np.float64) * 2.0**-log2_scale).astype(np.float32)
    assert shares(count(values), log2_scale) == independent(values, log2_scale)


def test_what_bfloat16_makes_zero_is_counted_as_its_own_rounding_does():
    numbers = 2.0 ** np.array([-149, -135, -134, -133, -126, -30, 0], np.float64)
    values = np.concatenate([numbers, -numbers, np.nextafter(numbers[1:].astype(np.float32), np.float32(1))]).astype(
        np.float32
    )
    rounded = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert zero_in_bfloat16(count(values)) == np.count_nonzero(rounded == 0) / values.size
    assert 0 < zero_in_bfloat16(count(values)) < 1


@pytest.mark.parametrize(
    ("values", "smallest", "largest"),
    [
        ([2.0**-26], 2, 41),  # at 2^-25, half of float16's smallest number, all of them become 0
        ([-70_000.0], -41, -1),  # above its largest
        ([2.0**-30, 2.0**15], 6, 0),  # which leaves none
    ],
)
def test_the_safe_scales_are_those_at_which_nothing_is_lost_at_either_end(values, smallest, largest):
    scales = safe_scales([count(np.repeat(np.float32(values), 500))])
    assert (scales.smallest, scales.largest) == (smallest, largest)


def test_the_safe_scales_are_the_first_and_the_last_that_are_safe():
    values = spread(2)
    values = values[np.abs(values) < 2.0**4]
    counted = count(values)
    scales = safe_scales([counted])
    assert shares(counted, scales.smallest).zero <= 0.01 < shares(counted, scales.smallest - 1).zero
    assert shares(counted, scales.largest).infinite == 0 < shares(counted, scales.largest + 1).infinite


def test_what_is_not_finite_and_what_is_zero_is_counted_apart():
    values = np.array([0, 0, np.inf, np.nan, 1.0], np.float32)
    counted = count(values)
    assert (counted.zeros, counted.not_finite, counted.non_zero) == (2, 2, 1)
    assert safe_scales([count(np.zeros(3, np.float32))]).smallest is None


def test_counts_add_up_whatever_their_ranges():
    wide, small = spread(3), (spread(4) * np.float32(2**-30)).astype(np.float32)
    both = total_magnitudes([count(wide), count(np.zeros(2, np.float32)), count(small)])
    at_once = count(np.concatenate([wide, np.zeros(2, np.float32), small]))
    assert both.zeros == at_once.zeros
    for k in (-5, 0, 9):
        assert shares(both, k) == shares(at_once, k)
