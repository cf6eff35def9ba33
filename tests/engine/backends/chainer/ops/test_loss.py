import numpy as np
import pytest

from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer


def loss_and_gradient(x, t):
    x = x.astype(np.float64)
    p = np.exp(x - x.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return -np.log(p[np.arange(len(t)), t]).mean(), (p - np.eye(x.shape[1])[t]) / len(t)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("scale", [1, 30])
def test_loss_and_gradient_match_the_definition(dtype, scale):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((6, 11)) * scale).astype(dtype)
    t = rng.integers(0, 11, 6).astype(np.int32)
    v = chainer.Variable(x)
    loss = ops.softmax_cross_entropy(v, t)
    assert loss.shape == ()
    assert loss.dtype == ("float64" if dtype == "float64" else "float32")
    loss.grad = np.asarray(8.0, loss.dtype)  # a loss scale
    loss.backward()
    expected, gradient = loss_and_gradient(x, t)
    np.testing.assert_allclose(loss.array, expected, rtol={"float64": 1e-12}.get(dtype, 1e-5))
    assert v.grad.dtype == dtype
    np.testing.assert_allclose(
        v.grad, 8 * gradient, rtol=0, atol={"float64": 1e-14, "float32": 1e-6, "float16": 1e-3}[dtype]
    )


def test_gradient_matches_finite_differences():
    rng = np.random.default_rng(0)
    x, direction = rng.standard_normal((2, 4, 7))
    t = np.array([0, 6, 3, 3], np.int32)
    v = chainer.Variable(x)
    ops.softmax_cross_entropy(v, t).backward()
    ahead, behind = (float(ops.softmax_cross_entropy(x + eps * direction, t).array) for eps in (1e-5, -1e-5))
    np.testing.assert_allclose((ahead - behind) / 2e-5, (v.grad * direction).sum(), rtol=1e-8)


def test_nan_in_the_logits_makes_the_loss_nan():
    x = np.zeros((2, 3), np.float16)
    x[0, 1] = np.nan
    assert np.isnan(ops.softmax_cross_entropy(x, np.array([0, 0], np.int32)).array)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_out_of_range_makes_the_loss_nan(label):
    loss = ops.softmax_cross_entropy(np.zeros((2, 3), np.float32), np.array([0, label], np.int32))
    assert np.isnan(loss.array)
