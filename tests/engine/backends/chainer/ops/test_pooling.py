import numpy as np
import pytest

from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer


def to_layout(array, layout):
    return array if layout == "NCHW" else np.ascontiguousarray(array.transpose(0, 2, 3, 1))


def reference(x, gy, ksize, stride, pad):
    """y and gx, window by window; the first maximum of a window gets its gradient. NCHW, float64."""
    n, c, height, width = x.shape
    p, q = ((size + 2 * pad - ksize) // stride + 1 for size in (height, width))
    y, gx = np.empty((n, c, p, q)), np.zeros(x.shape)
    for a, b, i, j in np.ndindex(n, c, p, q):
        places = [
            (h, w)
            for h in range(i * stride - pad, i * stride - pad + ksize)
            for w in range(j * stride - pad, j * stride - pad + ksize)
            if 0 <= h < height and 0 <= w < width
        ]
        best = max(places, key=lambda place: x[a, b, place[0], place[1]])
        y[a, b, i, j] = x[(a, b, *best)]
        if gy is not None:
            gx[(a, b, *best)] += gy[a, b, i, j]
    return y, gx


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("ksize", "stride", "pad"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (3, 3, 0)])
@pytest.mark.parametrize("size", [(8, 8), (9, 7)])
def test_max_pooling_and_its_gradient_match_the_definition(layout, dtype, ksize, stride, pad, size):
    rng = np.random.default_rng(0)
    x = np.maximum(rng.integers(-4, 4, (2, 3, *size)), 0).astype(dtype)  # many ties, as after a ReLU
    y, _ = reference(x, None, ksize, stride, pad)
    gy = rng.integers(-8, 9, y.shape).astype(dtype)
    _, gx = reference(x, gy, ksize, stride, pad)
    v = chainer.Variable(to_layout(x, layout))
    result = ops.max_pooling_2d(v, ksize=ksize, stride=stride, pad=pad, layout=layout)
    result.grad = to_layout(gy, layout)
    result.backward()
    assert result.dtype == v.grad.dtype == dtype
    np.testing.assert_array_equal(result.array, to_layout(y, layout))
    np.testing.assert_array_equal(v.grad, to_layout(gx, layout))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_max_pooling_gradient_matches_finite_differences(layout):
    rng = np.random.default_rng(0)
    x = to_layout(rng.permutation(2 * 3 * 7 * 8).reshape(2, 3, 7, 8) / 10.0, layout)  # no ties within a step
    v = chainer.Variable(x)
    y = ops.max_pooling_2d(v, ksize=3, stride=2, pad=1, layout=layout)
    gy, direction = rng.standard_normal(y.shape), rng.standard_normal(x.shape)
    y.grad = gy
    y.backward()
    ahead, behind = (
        ops.max_pooling_2d(x + eps * direction, ksize=3, stride=2, pad=1, layout=layout).array for eps in (1e-4, -1e-4)
    )
    np.testing.assert_allclose(((ahead - behind) / 2e-4 * gy).sum(), (v.grad * direction).sum(), rtol=1e-8)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("sign", [1, -1])
def test_nan_fills_the_windows_that_see_it(layout, dtype, sign):
    x = np.ones((1, 2, 7, 7), dtype)
    x[0, 1, 2, 2] = np.copysign(np.nan, sign)
    v = chainer.Variable(to_layout(x, layout))
    y = ops.max_pooling_2d(v, ksize=3, stride=2, pad=1, layout=layout)
    y.grad = np.ones_like(y.array)
    y.backward()
    nan = np.isnan(y.array if layout == "NCHW" else y.array.transpose(0, 3, 1, 2))
    expected = np.zeros((1, 2, 4, 4), bool)
    expected[0, 1, 1, 1] = True
    np.testing.assert_array_equal(nan, expected)
    assert v.grad.sum() == y.array.size


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_max_pooling_of_minus_infinity_alone(layout):
    x = np.full((1, 1, 4, 4), -np.inf, np.float32)
    y = ops.max_pooling_2d(to_layout(x, layout), ksize=3, stride=2, pad=1, layout=layout)
    assert (y.array == -np.inf).all()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_global_average_and_its_gradient(layout, dtype):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((3, 5, 7, 6)) + 30).astype(dtype)
    gy = rng.standard_normal((3, 5)).astype(dtype)
    v = chainer.Variable(to_layout(x, layout))
    y = ops.global_average_pooling_2d(v, layout=layout)
    y.grad = gy
    y.backward()
    tolerance = {"float64": 1e-14, "float32": 1e-6, "float16": 6e-4}[dtype]
    assert y.shape == (3, 5)
    assert y.dtype == v.grad.dtype == dtype
    np.testing.assert_allclose(y.array, x.astype(np.float64).mean(axis=(2, 3)), rtol=tolerance)
    expected = to_layout(np.broadcast_to(gy.astype(np.float64)[:, :, None, None] / 42, x.shape), layout)
    np.testing.assert_allclose(v.grad, expected, rtol=2 * tolerance)


def test_windows_that_would_be_empty_are_refused():
    with pytest.raises(ValueError, match="windows would be empty"):
        ops.max_pooling_2d(np.ones((1, 1, 4, 4)), ksize=2, stride=1, pad=2, layout="NCHW")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_gradient_that_is_not_finite_reaches_its_own_pixel_alone(layout, value):
    x = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    v = chainer.Variable(to_layout(x, layout))
    y = ops.max_pooling_2d(v, ksize=3, stride=2, pad=1, layout=layout)
    gy = np.ones((1, 1, 3, 3), np.float32)
    gy[0, 0, 1, 1] = value
    y.grad = to_layout(gy, layout)
    y.backward()
    gx = v.grad.reshape(5, 5)
    assert [tuple(place) for place in np.argwhere(~np.isfinite(gx))] == [(3, 3)]
