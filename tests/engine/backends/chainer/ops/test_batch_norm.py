import numpy as np
import pytest
from engine.backends.chainer.ops.gradients import check_gradients, to_layout
from reference_accelerator import ReferenceAccelerator

from tcbench.engine.accelerators import protocol as accelerators
from tcbench.engine.accelerators.cpu.reference import batch_norm as kernels
from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.hardware.gpus import GpuProperties

SHAPES = [(3, 5, 4, 4), (4, 8, 12, 11), (2, 64, 16, 16), (1, 3, 3, 3), (8, 256, 20, 20)]
TOLERANCE = {"float64": 1e-11, "float32": 3e-5, "float16": 3e-3}


def reference(x, gamma, beta, residual, gy, relu, eps=2e-5):
    """y, gx, ggamma, gbeta, gresidual in float64, by the chain rule through mean and variance; NCHW."""
    x, gamma, beta, gy = (array.astype(np.float64) for array in (x, gamma, beta, gy))
    axes, m = (0, 2, 3), x.size // x.shape[1]
    mean = x.mean(axis=axes, keepdims=True)
    difference = x - mean
    var = (difference**2).mean(axis=axes, keepdims=True)
    xhat = difference / np.sqrt(var + eps)
    y = gamma[:, None, None] * xhat + beta[:, None, None] + (0 if residual is None else residual.astype(np.float64))
    if relu:
        gy = np.where(y > 0, gy, 0)
        y = np.maximum(y, 0)
    gxhat = gy * gamma[:, None, None]
    gvar = (gxhat * difference).sum(axis=axes, keepdims=True) * -0.5 * (var + eps) ** -1.5
    gmean = -(gxhat / np.sqrt(var + eps)).sum(axis=axes, keepdims=True)
    gx = gxhat / np.sqrt(var + eps) + gvar * 2 * difference / m + gmean / m
    return y, gx, (gy * xhat).sum(axis=axes), gy.sum(axis=axes), gy


def problem(dtype, shape, offset=0.0):
    rng = np.random.default_rng(0)
    scalars = np.float64 if dtype == "float64" else np.float32
    x = (rng.standard_normal(shape) * 2 + offset).astype(dtype)
    gamma = rng.uniform(0.5, 1.5, shape[1]).astype(scalars)
    beta = rng.standard_normal(shape[1]).astype(scalars)
    residual, gy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    return x, gamma, beta, residual, gy


def running_of(channels, dtype=np.float32):
    return ops.RunningStatistics(np.zeros(channels, dtype), np.ones(channels, dtype))


def batch_norm(kind, x, gamma, beta, residual, running, layout):
    added = {"residual": residual} if "add" in kind else {}
    return ops.batch_norm(x, gamma, beta, running, layout=layout, relu="relu" in kind, **added)


def run(kind, x, gamma, beta, residual, gy, layout, running=None):
    running = running or running_of(len(gamma))
    x, residual = (chainer.Variable(to_layout(array, layout)) for array in (x, residual))
    gamma, beta = chainer.Variable(gamma), chainer.Variable(beta)
    if kind in ("bn", "bn relu", "bn add relu"):
        y = batch_norm(kind, x, gamma, beta, residual, running, layout)
    elif kind == "bn, relu":
        y = ops.relu(ops.batch_norm(x, gamma, beta, running, layout=layout))
    else:
        assert kind == "bn, add, relu"
        y = ops.relu(ops.add(ops.batch_norm(x, gamma, beta, running, layout=layout), residual))
    y.grad = to_layout(gy, layout)
    y.backward()
    result = [y.array, x.grad, gamma.grad, beta.grad]
    return result + ([residual.grad] if "add" in kind else [])


def assert_close(got, expected, dtype, tolerance=None):
    for name, a, b in zip(("y", "gx", "ggamma", "gbeta", "gresidual"), got, expected, strict=False):
        limit = tolerance or TOLERANCE[dtype]
        np.testing.assert_allclose(a, b, rtol=0, atol=limit * max(1, np.abs(b).max()), err_msg=name)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("kind", ["bn", "bn relu", "bn add relu"])
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients_match_the_definition(layout, dtype, kind, shape):
    x, gamma, beta, residual, gy = problem(dtype, shape)
    y, gx, ggamma, gbeta, gr = reference(x, gamma, beta, residual if "add" in kind else None, gy, "relu" in kind)
    expected = [to_layout(y, layout), to_layout(gx, layout), ggamma, gbeta, to_layout(gr, layout)]
    got = run(kind, x, gamma, beta, residual, gy, layout)
    assert [array.dtype for array in got[:4]] == [dtype, dtype, gamma.dtype, gamma.dtype]
    assert_close(got, expected, dtype)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", [("bn relu", "bn, relu"), ("bn add relu", "bn, add, relu")])
def test_fused_equals_unfused(layout, dtype, kind):
    arguments = problem(dtype, (4, 8, 12, 11))
    fused, unfused = (run(one, *arguments, layout) for one in kind)
    for a, b in zip(fused, unfused, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_fused_half_rounds_once_and_is_no_farther_from_the_truth_than_unfused(layout):
    x, gamma, beta, residual, gy = problem("float16", (4, 8, 12, 11))
    truth = to_layout(reference(x, gamma, beta, residual, gy, True)[0], layout)
    fused, unfused = (run(kind, x, gamma, beta, residual, gy, layout)[0] for kind in ("bn add relu", "bn, add, relu"))
    assert np.abs(fused - truth).mean() < 0.8 * np.abs(unfused - truth).mean()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["bn", "bn add relu"])
def test_layouts_agree(kind, shape):
    arguments = problem("float32", shape)
    nchw, nhwc = (run(kind, *arguments, layout) for layout in ("NCHW", "NHWC"))
    nchw = [to_layout(array, "NHWC") if array.ndim == 4 else array for array in nchw]
    assert_close(nhwc, nchw, "float32", 1e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", ["bn", "bn relu", "bn add relu"])
def test_gradients_match_finite_differences(layout, kind):
    x, gamma, beta, residual, _ = problem("float64", (3, 4, 3, 5))
    inputs = [to_layout(x, layout), gamma, beta, *([to_layout(residual, layout)] if "add" in kind else [])]
    running = running_of(4, np.float64)
    running.mean += [0.3, -0.2, 0.1, 0.5]
    running.var *= 1.7

    def function(x, gamma, beta, residual=None):
        return batch_norm(kind, x, gamma, beta, residual, running, layout)

    check_gradients(function, *inputs, step=1e-6)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", [(4, 8, 12, 11), (4, 8, 4, 4), (16, 64, 30, 30)])
@pytest.mark.parametrize("offset", [3.0, 30.0, 1000.0])
def test_variance_survives_a_mean_far_from_zero(layout, shape, offset):
    x = problem("float32", shape, offset)[0]
    statistics = kernels.statistics(to_layout(x, layout), layout)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(statistics.mean, exact.mean(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(statistics.var, exact.var(axis=(0, 2, 3)), rtol=2e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gradients_survive_a_mean_far_from_zero(layout):
    x, gamma, beta, residual, gy = problem("float32", (4, 8, 12, 11), 300.0)
    y, gx, ggamma, gbeta, _ = reference(x, gamma, beta, residual, gy, False)
    expected = [to_layout(y - residual, layout), to_layout(gx, layout), ggamma, gbeta]
    assert_close(run("bn", x, gamma, beta, residual, gy, layout), expected, "float32", 1e-4)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_running_statistics_follow_chainers_link_in_the_same_arrays(layout):
    shape = (4, 8, 6, 5)
    link = chainer.links.BatchNormalization(8)
    running = running_of(8)
    mean, var = running.mean, running.var
    for step in range(4):
        x = (np.random.default_rng(step).standard_normal(shape) * (step + 1) + step).astype(np.float32)
        expected = link(x).array
        y = ops.batch_norm(to_layout(x, layout), link.gamma, link.beta, running, layout=layout).array
        np.testing.assert_allclose(y, to_layout(expected, layout), atol=1e-5)
    assert running.mean is mean
    assert running.var is var
    np.testing.assert_allclose(mean, link.avg_mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var, link.avg_var, rtol=1e-5)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        y = ops.batch_norm(to_layout(x, layout), link.gamma, link.beta, running, layout=layout).array
        np.testing.assert_allclose(y, to_layout(link(x).array, layout), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, link.avg_mean, rtol=1e-5, atol=1e-6)  # evaluation changes nothing


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nan_spreads_over_its_channel_and_no_other_whatever_is_fused(layout, dtype):
    x, gamma, beta, residual, gy = problem(dtype, (4, 8, 12, 11))
    x[1, 3, 4, 5] = -np.float32(np.nan)
    for kind in ("bn", "bn relu", "bn add relu", "bn, relu"):
        y, _, ggamma, *_ = run(kind, x, gamma, beta, residual, gy, layout)
        channels_last = y if layout == "NHWC" else y.transpose(0, 2, 3, 1)
        assert np.isnan(channels_last[..., 3]).all(), kind
        assert not np.isnan(np.delete(channels_last, 3, axis=-1)).any(), kind
        assert np.isnan(ggamma[3])
        assert np.isfinite(np.delete(ggamma, 3)).all()


def test_a_constant_channel_gives_beta():
    x = np.full((2, 3, 4, 4), 7.0, np.float32)
    beta = np.array([1, 2, 3], np.float32)
    y = ops.batch_norm(x, np.ones(3, np.float32), beta, running_of(3), layout="NCHW").array
    np.testing.assert_allclose(y, np.broadcast_to(beta[:, None, None], x.shape), atol=1e-4)


def test_shapes_that_do_not_fit_are_refused():
    x, ones = np.ones((2, 4, 4, 3), np.float32), np.ones(4, np.float32)
    with pytest.raises(ValueError, match="do not fit in NHWC"):
        ops.batch_norm(x, ones, ones, running_of(4), layout="NHWC")
    with pytest.raises(ValueError, match="residual"):
        ops.batch_norm(x, ones[:3], ones[:3], running_of(3), layout="NHWC", residual=x[:1])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["bn", "bn relu", "bn add relu"])
def test_evaluation_on_a_device_matches_the_definition_with_running_statistics(layout, dtype, kind):
    x, gamma, beta, residual, _ = problem(dtype, (3, 8, 5, 4))
    rng = np.random.default_rng(1)
    running = running_of(8)
    running.mean[...], running.var[...] = rng.standard_normal(8), rng.uniform(0.5, 2.0, 8)
    kept = running.mean.copy(), running.var.copy()
    accelerator = ReferenceAccelerator(GpuProperties("NumPy", 90, 1, 1 << 40), True)
    site_arrays = [accelerator.upload(a) for a in (to_layout(x, layout), gamma, beta, to_layout(residual, layout))]
    with accelerators.use(accelerator), chainer.using_config("train", False):
        with chainer.no_backprop_mode():
            y = batch_norm(kind, *site_arrays, running, layout).array
        with pytest.raises(NotImplementedError, match="no_backprop_mode"):
            batch_norm(kind, *site_arrays, running, layout)
    wide = x.astype(np.float64)
    expected = (wide - kept[0][:, None, None]) / np.sqrt(kept[1].astype(np.float64) + 2e-5)[:, None, None]
    expected = expected * gamma[:, None, None] + beta[:, None, None] + (residual if "add" in kind else 0.0)
    expected = np.maximum(expected, 0) if "relu" in kind else expected
    assert_close([y], [to_layout(expected, layout)], dtype)
    assert np.array_equal(running.mean, kept[0]) and np.array_equal(running.var, kept[1])
