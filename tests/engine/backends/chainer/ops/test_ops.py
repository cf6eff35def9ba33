"""Tests of every operation: its outputs equal those of Chainer's own functions, in both layouts and every dtype, and
its gradients match finite differences. Tests of the accelerators cover how each work is computed."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine.accelerators.cpu.reference.test_operations import kept_values
from reference_accelerator import ReferenceAccelerator

from tcbench.engine import work
from tcbench.engine.accelerators import protocol as accelerators
from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.hardware.gpus import GpuProperties

pytestmark = pytest.mark.usefixtures("on_the_processor")

F = chainer.functions
LAYOUTS = ("NCHW", "NHWC")
BOTH = pytest.mark.parametrize("layout", LAYOUTS)


def to_layout(array: np.ndarray, layout: str) -> np.ndarray:
    """Maps (N, C, H, W) as the layout stores them; anything else as it is."""
    last = layout == "NHWC" and array.ndim == 4
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if last else array


def from_layout(array: np.ndarray, layout: str) -> np.ndarray:
    """The reverse."""
    return array.transpose(0, 3, 1, 2) if layout == "NHWC" and array.ndim == 4 else array


def maps(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def run(operate: Callable[..., Any], *inputs: np.ndarray, layout: str) -> list[np.ndarray]:
    """y and the gradients, in NCHW, of arrays that are given in NCHW; gy is the same for every layout."""
    variables = [chainer.Variable(to_layout(array.copy(), layout)) for array in inputs]
    y = operate(*variables, layout=layout)
    gy = np.random.default_rng(4).standard_normal(from_layout(y.array, layout).shape).astype(y.dtype)
    y.grad = to_layout(gy, layout)
    y.backward()
    return [from_layout(array, layout) for array in (y.array, *(variable.grad for variable in variables))]


# -- every operation ---------------------------------------------------------------------------------------------------


def running_of(channels: int, dtype: Any = np.float32) -> ops.RunningStatistics:
    return ops.RunningStatistics(np.zeros(channels, dtype), np.ones(channels, dtype))


def normalise(relu, x, gamma, beta, residual=None, *, layout):
    return ops.batch_norm(
        x, gamma, beta, running_of(gamma.size, gamma.dtype), layout=layout, relu=relu, residual=residual
    )


def normalised(x, gamma, beta, residual=None):
    y = F.batch_normalization(x, gamma, beta, eps=2e-5)
    return y if residual is None else y + residual


def lrn(x, layout):
    return ops.local_response_normalization(x, size=5, alpha=0.2, beta=0.75, k=1.0, layout=layout)


def dropped(x, layout, ratio=0.4):
    return ops.dropout(x, ratio, np.array([11, 0], np.int64), layout=layout)


def joined(*xs, layout):
    return ops.concatenate(xs, layout=layout)


def added_bias(x, b):
    return x + F.broadcast_to(F.reshape(b, (1, -1, 1, 1)), x.shape)


def distinct(*shape: int) -> np.ndarray:
    """No ties, and none within a step of a difference."""
    return np.random.default_rng(0).permutation(int(np.prod(shape))).reshape(shape) / 10.0


unpadded = functools.partial(ops.convolution_2d, stride=1, pad=0)
SCALARS = 1.5 + maps(6, seed=2) / 3, maps(6, seed=3)
LABELS = np.array([0, 6, 3, 3], np.int32)
OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], Callable[..., Any] | None]] = {
    **{
        f"{name}-{side}x{side}/{stride}-pad{pad}-{height}x{width}": (
            functools.partial(convolve, stride=stride, pad=pad),
            (maps(3, 5, height, width), maps(6, 5, side, side, seed=1)),
            functools.partial(F.convolution_2d, stride=stride, pad=pad),
        )
        for name, convolve in (("conv", ops.convolution_2d), ("im2col", ops.convolution_2d_im2col))
        for side, stride, pad, height, width in (
            *((7, 2, 3, 9, 12), (3, 1, 1, 8, 8), (3, 2, 1, 9, 7), (1, 1, 0, 8, 7), (1, 2, 0, 9, 7)),
            *((3, 1, 0, 8, 7), (2, 1, 1, 8, 8), (5, 3, 2, 9, 7), (1, 1, 1, 5, 4)),
        )
    },
    "bn": (functools.partial(normalise, False), (maps(3, 6, 4, 5), *SCALARS), normalised),
    "bn-relu": (functools.partial(normalise, True), (maps(3, 6, 9, 8), *SCALARS), lambda *a: F.relu(normalised(*a))),
    "bn-add-relu": (
        functools.partial(normalise, True),
        (maps(3, 6, 4, 4), *SCALARS, maps(3, 6, 4, 4, seed=1)),
        lambda *a: F.relu(normalised(*a)),
    ),
    "relu": (lambda x, layout: ops.relu(x), (maps(2, 3, 4, 5),), F.relu),
    "add": (lambda a, b, layout: ops.add(a, b), (maps(2, 3, 4, 5), maps(2, 3, 4, 5, seed=1)), lambda a, b: a + b),
    "max-pool": (functools.partial(ops.max_pooling_2d, ksize=3, stride=2, pad=1), (distinct(2, 3, 7, 8),), None),
    "max-pool-ceil": (
        functools.partial(ops.max_pooling_2d, ksize=3, stride=2, pad=0, ceil=True),
        (distinct(2, 3, 8, 8),),
        functools.partial(F.max_pooling_2d, ksize=3, stride=2, pad=0, cover_all=True),
    ),
    "average": (ops.global_average_pooling_2d, (maps(3, 5, 7, 6) + 30,), lambda x: F.mean(x, axis=(2, 3))),
    "average-tiles": (
        functools.partial(ops.tiled_average_pooling_2d, out=3),
        (maps(2, 3, 6, 6),),
        functools.partial(F.average_pooling_2d, ksize=2),
    ),
    "average-overlapping": (
        functools.partial(ops.tiled_average_pooling_2d, out=4),
        (maps(1, 3, 14, 14),),
        functools.partial(F.average_pooling_2d, ksize=5, stride=3),
    ),
    "average-repeated": (functools.partial(ops.tiled_average_pooling_2d, out=7), (maps(2, 3, 2, 2),), None),
    "linear": (
        lambda x, w, b, layout: ops.linear(x, w, b),
        (maps(4, 64), maps(10, 64, seed=1), maps(10, seed=2)),
        F.linear,
    ),
    "linear-of-maps": (
        lambda x, w, b, layout: ops.linear(x, w, b),
        (maps(2, 3, 4, 4), maps(5, 3, 4, 4, seed=1), maps(5, seed=2)),
        lambda x, w, b: F.linear(x, F.reshape(w, (5, -1)), b),
    ),
    "loss": (
        lambda x, layout: ops.softmax_cross_entropy(x, LABELS),
        (maps(4, 7) * 5,),
        lambda x: F.softmax_cross_entropy(x, LABELS),
    ),
    "bias": (lambda x, b, layout: ops.bias(x + 0, b, layout=layout), (maps(2, 3, 4, 5), maps(3)), added_bias),
    "bias-relu": (
        lambda x, b, layout: ops.bias(x + 0, b, layout=layout, relu=True),
        (maps(2, 3, 4, 5), maps(3)),
        lambda x, b: F.relu(added_bias(x, b)),
    ),
    "concat": (joined, (maps(2, 3, 4, 4), maps(2, 1, 4, 4), maps(2, 6, 4, 4)), lambda *xs: F.concat(xs)),
    "lrn": (lrn, (maps(2, 7, 3, 4),), lambda x: F.local_response_normalization(x, n=5, k=1.0, alpha=0.2, beta=0.75)),
    "lrn-few-channels": (lrn, (maps(2, 2, 3, 3),), None),
    "dropout": (dropped, (maps(2, 3, 4, 5),), None),
}
EACH = pytest.mark.parametrize("name", OPERATIONS)


@BOTH
@pytest.mark.parametrize("name", [name for name, (*_, chainer_function) in OPERATIONS.items() if chainer_function])
def test_output_and_gradients_are_those_of_chainers_function(name, layout):
    operate, inputs, chainer_function = OPERATIONS[name]
    expected = run(lambda *variables, layout: chainer_function(*variables), *inputs, layout="NCHW")
    for output, right in zip(run(operate, *inputs, layout=layout), expected, strict=True):
        assert output.dtype == right.dtype
        np.testing.assert_allclose(output, right, rtol=1e-9, atol=1e-11 * max(1, np.abs(right).max()))


@BOTH
@pytest.mark.parametrize("name", [name for name, (*_, chainer_function) in OPERATIONS.items() if not chainer_function])
def test_gradients_of_what_chainer_has_not_match_finite_differences(name, layout):
    operate, inputs, _ = OPERATIONS[name]
    arrays, rng = [to_layout(array, layout) for array in inputs], np.random.default_rng(3)
    variables = [chainer.Variable(array.copy()) for array in arrays]
    y = operate(*variables, layout=layout)
    gy = np.asarray(rng.standard_normal(y.shape))
    y.grad = gy
    y.backward()
    for place, variable in enumerate(variables):
        line = rng.standard_normal(variable.shape)

        def value(step: float, place: int = place, line: np.ndarray = line) -> float:
            moved = [array + step * line if i == place else array.copy() for i, array in enumerate(arrays)]
            return float((operate(*map(chainer.Variable, moved), layout=layout).array * gy).sum())

        slope = (value(1e-5) - value(-1e-5)) / 2e-5
        np.testing.assert_allclose(slope, (variable.grad * line).sum(), rtol=1e-6, atol=1e-6)


@EACH
@pytest.mark.parametrize(
    ("layout", "dtype", "limit"), [("NHWC", "float32", 3e-6), ("NCHW", "float16", 6e-3), ("NHWC", "bfloat16", 5e-2)]
)
def test_narrower_dtypes_are_near_float64(name, layout, dtype, limit):
    operate, inputs, _ = OPERATIONS[name]
    # Vectors are float32 beside what has 16 bits. Inputs hold what the dtype can: each computes on the same numbers.
    rounded = [array.astype(dtype if array.ndim > 1 else "float32") for array in inputs]
    narrow = run(operate, *rounded, layout=layout)
    assert [array.dtype for array in narrow[1:]] == [array.dtype for array in rounded]
    exact = run(operate, *(array.astype(np.float64) for array in rounded), layout=layout)
    for approximation, reference in zip(narrow, exact, strict=True):
        assert np.linalg.norm(approximation.astype(np.float64) - reference) <= limit * np.linalg.norm(reference)


@pytest.mark.parametrize(
    ("operate", "message"),
    [
        (lambda: ops.bias(maps(1, 2, 3, 3), maps(3), layout="NCHW"), r"add_bias: x \(1, 2, 3, 3\) and b \(3,\)"),
        (lambda: joined(maps(1, 2, 3, 3), maps(1, 2, 4, 3), layout="NCHW"), "concatenate: expected one dtype, and one"),
        (lambda: ops.tiled_average_pooling_2d(maps(1, 2, 3, 4), out=2, layout="NCHW"), "expected square maps, got 3x4"),
        (lambda: work.BiasGradient(5, 3, "float32", slices=2), "5 rows cannot be cut into 2 equal slices"),
        (lambda: ops.max_pooling_2d(maps(1, 1, 4, 4), ksize=2, stride=1, pad=2, layout="NCHW"), "would be empty"),
        (lambda: ops.linear(maps(2, 3), maps(4, 5), maps(4)), "do not fit"),
        (lambda: ops.add(maps(3), maps(3).astype("f4")), "equal shapes and dtypes"),
        (lambda: ops.add(maps(3), maps(1, 3)), "equal shapes and dtypes"),
        (lambda: normalise(False, maps(2, 4, 4, 3), maps(4), maps(4), layout="NHWC"), "do not fit in NHWC"),
        (lambda: normalise(True, maps(2, 3, 4, 4), maps(3), maps(3), maps(1, 3, 4, 4), layout="NCHW"), "residual"),
        (lambda: unpadded(maps(1, 4, 4, 3), maps(2, 1, 1, 4), layout="NHWC"), "as many channels in axis 3"),
        (
            lambda: unpadded(maps(1, 1, 4, 4), maps(1, 1, 1, 1).astype("f4"), layout="NCHW"),
            "x is float64, w is float32",
        ),
        (lambda: unpadded(maps(1, 1, 2, 2), maps(1, 1, 3, 3), layout="NCHW"), "output would be empty"),
    ],
)
def test_what_does_not_fit_is_refused(operate, message):
    with pytest.raises(ValueError, match=message):
        operate()


# -- convolutions ------------------------------------------------------------------------------------------------------


@BOTH
def test_large_half_sums_are_accumulated_in_float32(layout):
    x = np.ones((1, 4096, 2, 2), np.float16)
    w = np.full((1, 4096, 1, 1), 0.125, np.float16)
    w[0, 0] = 2048  # a float16 accumulator would lose every later term
    y = unpadded(to_layout(x, layout), to_layout(w, layout), layout=layout)
    assert (y.array == np.float16(2048 + 4095 * 0.125)).all()


# -- what is not a number, and ties ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "dtype"), [("NCHW", "float32"), ("NHWC", "float16")])
def test_nan_reaches_the_outputs_of_a_convolution_that_see_it_and_no_others(layout, dtype):
    x, w = np.ones((2, 5, 9, 9), dtype), np.ones((6, 5, 3, 3), dtype)
    x[1, 2, 4, 4] = np.nan
    y = ops.convolution_2d(to_layout(x, layout), to_layout(w, layout), stride=1, pad=1, layout=layout)
    expected = np.zeros((2, 6, 9, 9), bool)
    expected[1, :, 3:6, 3:6] = True
    np.testing.assert_array_equal(np.isnan(from_layout(y.array, layout)), expected)


@pytest.mark.parametrize(
    ("layout", "dtype", "ksize", "stride", "pad"),
    [("NCHW", "float64", 3, 1, 1), ("NHWC", "float32", 3, 2, 1), ("NCHW", "float16", 2, 2, 0)],
)
def test_the_first_of_equal_maxima_gets_the_gradient(layout, dtype, ksize, stride, pad):
    x = np.maximum(np.random.default_rng(0).integers(-4, 4, (2, 3, 9, 7)), 0).astype(dtype)  # as after a ReLU
    window = {"ksize": ksize, "stride": stride, "pad": pad}
    expected = run(lambda x, layout: F.max_pooling_2d(x, **window, cover_all=False), x.astype("f8"), layout="NCHW")
    limit = {"float64": 0, "float32": 1e-6, "float16": 3e-3}[dtype]
    for output, right in zip(
        run(functools.partial(ops.max_pooling_2d, **window), x, layout=layout), expected, strict=True
    ):
        np.testing.assert_allclose(output, right, atol=limit)


@BOTH
def test_max_pooling_of_minus_infinity_alone(layout):
    x = np.full((1, 1, 4, 4), -np.inf, np.float32)
    assert (ops.max_pooling_2d(to_layout(x, layout), ksize=3, stride=2, pad=1, layout=layout).array == -np.inf).all()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_over_several_chunks_a_sum_is_rounded_once_and_gradients_that_meet_are_summed(dtype):
    a, b, gy = (maps(3, 301, 401, seed=seed).astype(dtype) for seed in range(3))
    a_var, b_var = chainer.Variable(a), chainer.Variable(b)
    c = ops.add(ops.add(a_var, b_var), ops.relu(b_var))
    c.grad = gy
    c.backward()
    wide = np.float32 if dtype == "float16" else dtype
    total = (a.astype(wide) + b.astype(wide)).astype(dtype)
    np.testing.assert_array_equal(c.array, (total.astype(wide) + np.maximum(b, 0).astype(wide)).astype(dtype))
    np.testing.assert_array_equal(a_var.grad, gy)
    np.testing.assert_array_equal(b_var.grad, np.where(b > 0, 2, 1) * gy)


# -- batch normalisation -----------------------------------------------------------------------------------------------


@BOTH
def test_gradients_survive_a_mean_far_from_zero(layout):
    arrays = [array.astype("f4") for array in (maps(4, 6, 12, 11) * 2 + 300, *SCALARS)]
    operate = functools.partial(normalise, False)
    exact = run(operate, *(array.astype("f8") for array in arrays), layout=layout)
    for output, right in zip(run(operate, *arrays, layout=layout), exact, strict=True):
        np.testing.assert_allclose(output, right, rtol=0, atol=1e-4 * max(1, np.abs(right).max()))


@BOTH
def test_running_statistics_follow_chainers_link_in_the_same_arrays(layout):
    link, running = chainer.links.BatchNormalization(8), running_of(8)
    mean, var = running.mean, running.var
    for step in range(4):
        x = (maps(4, 8, 6, 5, seed=step) * (step + 1) + step).astype(np.float32)
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


@pytest.mark.parametrize(
    ("layout", "dtype", "relu", "add"),
    [("NCHW", "float32", False, False), ("NHWC", "float16", True, False), ("NHWC", "float32", True, True)],
)
def test_evaluation_on_a_device_matches_the_definition_with_running_statistics(layout, dtype, relu, add):
    x, residual = maps(3, 6, 5, 4).astype(dtype), maps(3, 6, 5, 4, seed=1).astype(dtype)
    gamma, beta = (array.astype("f4") for array in SCALARS)
    running = ops.RunningStatistics(maps(6, seed=5).astype("f4"), 1 + maps(6, seed=6).astype("f4") ** 2)
    statistics = running.mean.copy(), running.var.copy()
    accelerator = ReferenceAccelerator(GpuProperties("NumPy", 90, 1, 1 << 40), True)
    *operands, added = (accelerator.upload(a) for a in (to_layout(x, layout), gamma, beta, to_layout(residual, layout)))
    evaluate = functools.partial(
        ops.batch_norm, *operands, running, layout=layout, relu=relu, residual=added if add else None
    )
    with accelerators.use(accelerator), chainer.using_config("train", False):
        with chainer.no_backprop_mode():
            y = evaluate().array
        with pytest.raises(NotImplementedError, match="no_backprop_mode"):
            evaluate()
    mean, var = (array.astype("f8")[:, None, None] for array in statistics)
    expected = (x.astype("f8") - mean) / np.sqrt(var + 2e-5) * gamma[:, None, None] + beta[:, None, None]
    expected = np.maximum(expected + residual * add, 0) if relu else expected
    limit = {"float32": 3e-5, "float16": 3e-3}[dtype] * np.abs(expected).max()
    np.testing.assert_allclose(from_layout(y, layout), expected, rtol=0, atol=limit)
    assert np.array_equal(running.mean, statistics[0]) and np.array_equal(running.var, statistics[1])


# -- biases and dropout ------------------------------------------------------------------------------------------------


def test_a_bias_is_added_in_place():
    x = chainer.Variable(maps(1, 2, 3, 3))
    assert ops.bias(x, maps(2), layout="NCHW").array is x.array


@BOTH
def test_dropout_keeps_the_same_values_in_every_layout_and_others_after_a_gradient(layout):
    counter = np.array([7, 0], np.int64)

    def kept_mask():
        x = chainer.Variable(to_layout(np.ones((2, 3, 4, 4)), layout))
        y = ops.dropout(x, 0.5, counter, layout=layout)
        y.grad = np.ones_like(y.array)
        y.backward()
        return from_layout(y.array, layout) > 0

    described = work.DropoutForward(2, 3, 16, "NCHW", "float64", 0.5)
    for count in range(2):
        assert np.array_equal(kept_mask().reshape(-1), kept_values(described, 7, count))
    assert counter.tolist() == [7, 2]


def test_dropout_keeps_its_share_and_the_mean_and_does_nothing_in_evaluation():
    x = np.ones((50, 200), np.float32)
    y = dropped(x, "NCHW", 0.7).array
    assert (y > 0).mean() == pytest.approx(0.3, abs=0.02)
    assert y.mean() == pytest.approx(1, abs=0.05)
    with chainer.using_config("train", False):
        assert dropped(x, "NCHW") is x
