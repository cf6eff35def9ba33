import functools

import numpy as np
import pytest
from engine.backends.chainer.ops.gradients import check_gradients, to_layout

from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer

RESNET = [(7, 2, 3), (3, 1, 1), (3, 2, 1), (1, 1, 0), (1, 2, 0)]
OTHERS = [(3, 1, 0), (2, 1, 1), (5, 3, 2), (1, 1, 1)]
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3}


def reference(x, w, gy, stride, pad):
    """y, gx, gw in float64 by the definition: NCHW arrays, one product per filter tap."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    r, s = w.shape[2:]
    p, q = ((size + 2 * pad - k) // stride + 1 for size, k in zip(x.shape[2:], (r, s), strict=True))
    y, gpadded, gw = np.zeros((len(x), len(w), p, q)), np.zeros_like(padded), np.zeros_like(w)
    gy = np.ones_like(y) if gy is None else gy.astype(np.float64)
    for i in range(r):
        for j in range(s):
            tap = (..., slice(i, i + stride * (p - 1) + 1, stride), slice(j, j + stride * (q - 1) + 1, stride))
            y += np.einsum("nchw,kc->nkhw", padded[tap], w[:, :, i, j], optimize=True)
            gpadded[tap] += np.einsum("nkhw,kc->nchw", gy, w[:, :, i, j], optimize=True)
            gw[:, :, i, j] = np.einsum("nkhw,nchw->kc", gy, padded[tap], optimize=True)
    height, width = x.shape[2:]
    return y, gpadded[:, :, pad : pad + height, pad : pad + width], gw


def run(x, w, gy, stride, pad, layout, convolve=ops.convolution_2d):
    x, w = (chainer.Variable(to_layout(array, layout)) for array in (x, w))
    y = convolve(x, w, stride=stride, pad=pad, layout=layout)
    y.grad = to_layout(gy, layout)
    y.backward()
    return y.array, x.grad, w.grad


def problem(dtype, kernel, stride, pad, size, n=3, c=5, k=6):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, c, *size)).astype(dtype)
    w = rng.standard_normal((k, c, kernel, kernel)).astype(dtype)
    y, _, _ = reference(x, w, None, stride, pad)
    return x, w, rng.standard_normal(y.shape).astype(dtype)


def assert_close(got, expected, dtype):
    """Within the tolerance, relative to the largest number: sums of many products cancel."""
    for name, a, b in zip(("y", "gx", "gw"), got, expected, strict=True):
        assert a.dtype == dtype
        assert a.flags.c_contiguous
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[dtype] * np.abs(b).max(), err_msg=name)


@pytest.mark.parametrize("convolve", [ops.convolution_2d, ops.convolution_2d_im2col])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("kernel", "stride", "pad"), RESNET + OTHERS)
@pytest.mark.parametrize("size", [(8, 8), (9, 7), (33, 30)])
def test_output_and_gradients_match_the_definition(convolve, layout, dtype, kernel, stride, pad, size):
    x, w, gy = problem(dtype, kernel, stride, pad, size)
    expected = [to_layout(array, layout) for array in reference(x, w, gy, stride, pad)]
    assert_close(run(x, w, gy, stride, pad, layout, convolve), expected, dtype)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("kernel", "stride", "pad"), RESNET)
@pytest.mark.parametrize(("n", "c", "k", "size"), [(2, 3, 64, (64, 64)), (5, 40, 264, (7, 7)), (2, 64, 128, (29, 28))])
def test_shapes_that_are_cut_into_several_blocks_and_channel_groups(layout, dtype, kernel, stride, pad, n, c, k, size):
    x, w, gy = problem(dtype, kernel, stride, pad, size, n, c, k)
    expected = [to_layout(array, layout) for array in reference(x, w, gy, stride, pad)]
    assert_close(run(x, w, gy, stride, pad, layout), expected, dtype)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("kernel", "stride", "pad"), RESNET)
def test_gradients_match_finite_differences(layout, kernel, stride, pad):
    x, w, _ = (to_layout(array, layout) for array in problem("float64", kernel, stride, pad, (8, 7), n=2, c=2, k=3))
    check_gradients(functools.partial(ops.convolution_2d, stride=stride, pad=pad, layout=layout), x, w)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("kernel", "stride", "pad"), RESNET)
@pytest.mark.parametrize("convolve", [ops.convolution_2d, ops.convolution_2d_im2col])
def test_a_second_gradient_of_the_input_is_added(layout, dtype, kernel, stride, pad, convolve):
    x, w, gy = problem(dtype, kernel, stride, pad, (16, 15))
    xv = chainer.Variable(to_layout(x, layout))
    conv = convolve(xv, to_layout(w, layout), stride=stride, pad=pad, layout=layout)
    bypass = chainer.functions.identity(xv)
    more = np.random.default_rng(1).standard_normal(x.shape).astype(dtype)
    conv.grad, bypass.grad = to_layout(gy, layout), to_layout(more, layout)
    chainer.backward([bypass, conv])  # the convolution finds the other gradient there
    expected = to_layout(reference(x, w, gy, stride, pad)[1] + more, layout)
    np.testing.assert_allclose(xv.grad, expected, rtol=0, atol=TOLERANCE[dtype] * np.abs(expected).max())


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_large_half_sums_are_accumulated_in_float32(layout):
    x = np.ones((1, 4096, 2, 2), np.float16)
    w = np.full((1, 4096, 1, 1), 0.125, np.float16)
    w[0, 0] = 2048  # a float16 accumulator would lose every later term
    y = ops.convolution_2d(to_layout(x, layout), to_layout(w, layout), stride=1, pad=0, layout=layout)
    assert (y.array == np.float16(2048 + 4095 * 0.125)).all()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nan_reaches_the_outputs_that_see_it_and_no_others(layout, dtype):
    x, w, _ = problem(dtype, 3, 1, 1, (9, 9), n=2)
    x[1, 2, 4, 4] = np.nan
    y = ops.convolution_2d(to_layout(x, layout), to_layout(w, layout), stride=1, pad=1, layout=layout).array
    y = y if layout == "NCHW" else y.transpose(0, 3, 1, 2)
    expected = np.zeros(y.shape, bool)
    expected[1, :, 3:6, 3:6] = True
    np.testing.assert_array_equal(np.isnan(y), expected)


def test_filters_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"as many channels in axis 3"):
        ops.convolution_2d(np.ones((1, 4, 4, 3)), np.ones((2, 1, 1, 4)), stride=1, pad=0, layout="NHWC")
    with pytest.raises(ValueError, match="x is float64, w is float32"):
        ops.convolution_2d(np.ones((1, 1, 4, 4)), np.ones((1, 1, 1, 1), np.float32), stride=1, pad=0, layout="NCHW")
    with pytest.raises(ValueError, match="output would be empty"):
        ops.convolution_2d(np.ones((1, 1, 2, 2)), np.ones((1, 1, 3, 3)), stride=1, pad=0, layout="NCHW")
