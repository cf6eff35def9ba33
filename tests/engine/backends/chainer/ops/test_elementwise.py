import numpy as np
import pytest

from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer

SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 6e-8, -6e-8]


def every_half():
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_relu_keeps_nan_and_positive_numbers_only(dtype):
    x = np.array(SPECIAL, dtype)
    np.testing.assert_array_equal(ops.relu(x).array, np.array([0, 0, 1, 0, np.inf, 0, np.nan, np.nan, 6e-8, 0], dtype))


def test_relu_of_every_half():
    x = every_half()
    wide = x.astype(np.float32)
    np.testing.assert_array_equal(ops.relu(x).array, np.where(np.isnan(wide), wide, np.maximum(wide, 0)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_relu_gradient_passes_where_the_output_is_positive(dtype):
    x = chainer.Variable(np.array([0.0, -0.0, 1.0, -1.0, 6e-8, 2.0], dtype))
    y = ops.relu(x)
    y.grad = np.array([3, np.nan, 4, np.inf, -5, np.nan], dtype)
    y.backward()
    assert x.grad.dtype == dtype
    np.testing.assert_array_equal(x.grad, np.array([0, 0, 4, 0, -5, np.nan], dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_relu_over_several_chunks(dtype):
    x = chainer.Variable(np.random.default_rng(0).standard_normal((3, 301, 401)).astype(dtype))
    gy = np.random.default_rng(1).standard_normal(x.shape).astype(dtype)
    y = ops.relu(x)
    y.grad = gy
    y.backward()
    np.testing.assert_array_equal(y.array, np.where(x.array > 0, x.array, 0))
    np.testing.assert_array_equal(x.grad, np.where(x.array > 0, gy, 0))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_add_rounds_the_exact_sum_once_and_hands_its_gradient_to_both(dtype):
    rng = np.random.default_rng(0)
    a, b, gy = (rng.standard_normal((3, 301, 401)).astype(dtype) for _ in range(3))
    a_var, b_var = chainer.Variable(a), chainer.Variable(b)
    c = ops.add(a_var, b_var)
    c.grad = gy
    c.backward()
    wide = np.float32 if dtype == "float16" else dtype
    np.testing.assert_array_equal(c.array, (a.astype(wide) + b.astype(wide)).astype(dtype))
    np.testing.assert_array_equal(a_var.grad, gy)
    np.testing.assert_array_equal(b_var.grad, gy)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_gradients_that_meet_at_one_array_are_summed(dtype):
    x = chainer.Variable(np.array([1.0, -2.0, 3.0], dtype))
    y = ops.add(ops.relu(x), ops.relu(ops.relu(x)))
    y.grad = np.array([0.5, 0.25, 4], dtype)
    y.backward()
    assert x.grad.dtype == dtype
    np.testing.assert_array_equal(x.grad, [1, 0, 8])


def test_add_of_different_dtypes_or_shapes_is_refused():
    with pytest.raises(ValueError, match="equal shapes and dtypes"):
        ops.add(np.ones(3, np.float32), np.ones(3, np.float16))
    with pytest.raises(ValueError, match="equal shapes and dtypes"):
        ops.add(np.ones(3, np.float32), np.ones((1, 3), np.float32))
