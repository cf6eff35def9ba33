import ml_dtypes
import numpy as np
import pytest

from tcbench.engine.accelerators.cpu.reference import elementwise, half

EVERY_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def assert_cast_as_in_numpy(array, dtype):
    """Equal bit for bit, except that one NaN is as good as another of the same sign."""
    got = half.cast(array, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = array.astype(dtype)
    assert got.dtype == expected.dtype
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    integer = {2: np.uint16, 4: np.uint32}[got.dtype.itemsize]
    np.testing.assert_array_equal(got.view(integer)[~nan], expected.view(integer)[~nan])
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


def test_every_half_widens_as_in_numpy():
    assert_cast_as_in_numpy(EVERY_HALF, np.float32)


def test_every_rounding_boundary_and_its_neighbours_round_as_in_numpy():
    finite = np.sort(EVERY_HALF[np.isfinite(EVERY_HALF)].astype(np.float64))
    midpoints = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    numbers = np.concatenate([finite.astype(np.float32), midpoints])
    around = np.concatenate(
        [numbers, np.nextafter(numbers, np.float32(np.inf)), np.nextafter(numbers, -np.float32(np.inf))]
    )
    assert_cast_as_in_numpy(around, np.float16)


def test_numbers_out_of_range_round_as_in_numpy():
    positive = [65504, 65519.99, 65520, 65536, 1e6, 3e38, np.inf, np.nan, 1e-45, 1e-38, 2.0**-25, 2.0**-24, 6.1e-5, 0.0]
    numbers = np.array([*positive, *[-x for x in positive]], np.float32)
    assert_cast_as_in_numpy(numbers, np.float16)


def test_every_bfloat16_survives_a_round_trip():
    bits = np.arange(1 << 16, dtype=np.uint16)
    nan = (bits & 0x7FFF) > 0x7F80
    every = np.where(nan, bits | 0x40, bits).view(ml_dtypes.bfloat16)  # no NaN signals
    wide = half.cast(every, np.float32)
    np.testing.assert_array_equal(np.isnan(wide), nan)
    np.testing.assert_array_equal(wide[~nan].view(np.uint32) >> 16, every.view(np.uint16)[~nan])
    np.testing.assert_array_equal(
        half.cast(wide, ml_dtypes.bfloat16).view(np.uint16)[~nan], every.view(np.uint16)[~nan]
    )
    assert np.isnan(half.cast(wide, ml_dtypes.bfloat16)[nan].astype(np.float32)).all()


def test_bfloat16_is_rounded_to_nearest_even():
    bits = np.random.default_rng(0).integers(0, 0x7F7F_0000, 1_000_003, dtype=np.uint32)
    bits[::3] = bits[::3] & 0xFFFF_0000 | 0x8000  # half way between two
    up = (bits & 0xFFFF) > 0x8000 - (bits >> 16 & 1)
    rounded = half.cast(bits.view(np.float32), ml_dtypes.bfloat16)
    np.testing.assert_array_equal(rounded.view(np.uint16), (bits >> 16) + up)


@pytest.mark.parametrize("size", [0, 1, half.CHUNK - 1, half.CHUNK, 2 * half.CHUNK + 1])
def test_any_length(size):
    numbers = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    assert_cast_as_in_numpy(numbers, np.float16)
    assert_cast_as_in_numpy(numbers.astype(np.float16), np.float32)


def test_load_gathers_what_is_not_contiguous():
    numbers = np.random.default_rng(2).standard_normal((6, 8)).astype(np.float16)
    np.testing.assert_array_equal(half.load(numbers[::2, 1::3], "test"), numbers[::2, 1::3].astype(np.float32))


def test_cast_to_the_same_dtype_is_the_array_itself():
    numbers = np.ones(3, np.float16)
    assert half.cast(numbers, np.float16) is numbers


@pytest.mark.parametrize("dtype", [np.longdouble, np.int16])
def test_a_dtype_that_no_op_is_written_for_is_refused_not_taken_for_single_precision(dtype):
    x = np.ones((1, 2, 3, 3), dtype)
    uses = [lambda: half.compute_dtype(dtype), lambda: half.load(x, "test"), lambda: elementwise.relu_into(x, x)]
    for use in uses:
        with pytest.raises(ValueError, match=f"expected float16, bfloat16, float32 or float64, got {np.dtype(dtype)}"):
            use()
