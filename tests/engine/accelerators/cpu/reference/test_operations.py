"""Every plain operation is what Chainer's own function, or a definition written here, says in float64; and every
gradient is the slope of its forward operation by central differences. Nothing is compared with the operations
themselves, which other tests take for the reference."""

import itertools
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator
from tcbench.engine.accelerators.cpu.reference.operands import OPERATIONS
from tcbench.engine.backends.chainer.compat import chainer

F = chainer.functions
Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
LAYOUTS: tuple[w.Layout, ...] = ("NCHW", "NHWC")
EPS, MOMENTUM = 2e-5, 0.1


def do(work: w.Work, inputs_by_name: Arrays) -> Arrays:
    """Return all arrays of a piece of work by name once it is done. Those that are not given begin as garbage."""
    arrays = {}
    for operand in work.operands:
        garbage = np.full(operand.bytes, 0xFF, np.uint8).view(operand.dtype).reshape(operand.shape)
        arrays[operand.name] = (
            np.array(inputs_by_name[operand.name], operand.dtype) if operand.name in inputs_by_name else garbage
        )
    accelerator = NumpyAccelerator(threads=2)
    with accelerator.enter():
        accelerator.launch(work, *arrays.values())
    return arrays


def inputs(work: w.Work) -> Arrays:
    """Return random values for whatever a piece of work reads: distinct ones, and positive ones where they must be."""
    rng, arrays = np.random.default_rng(0), {}
    for operand in work.operands:
        values: Any = rng.permutation(operand.size).reshape(operand.shape) / max(1, operand.size) * 4 - 1.9
        if operand.name in ("gamma", "inv_std", "running_var", "gloss", "square_sum", "sums"):
            values = values + 3
        if operand.name == "t":
            values = rng.integers(0, work.k, operand.shape)  # type: ignore[attr-defined]
        if operand.name == "counter":
            values = [7, 5]
        if operand.name == "state":
            values = [8, 2, 0, 0]
        if operand.role != "out":
            arrays[operand.name] = np.asarray(values, operand.dtype)
    return arrays


def nchw(layout: w.Layout, array: Array) -> Array:
    """Return maps, or rows of channels (N, pixels, C), with channels second."""
    return np.moveaxis(array, -1, 1) if layout == "NHWC" else array


def as_stored(layout: w.Layout, array: Array) -> Array:
    return np.moveaxis(array, 1, -1) if layout == "NHWC" else array


# -- the works, and what they are by definition ------------------------------------------------------------------------

CONVS = [
    w.Conv2d(*sizes, layout, "float64")  # type: ignore[arg-type]
    for layout in LAYOUTS
    for sizes in (
        *((2, 3, 6, 7, 4, 3, 3, 2, 1), (5, 2, 5, 4, 3, 2, 3, 1, 2), (2, 3, 4, 5, 6, 1, 1, 1, 0)),
        *((3, 2, 8, 7, 2, 1, 1, 3, 0), (9, 4, 1, 1, 5, 1, 1, 1, 0), (1, 2, 9, 8, 3, 7, 7, 2, 3)),
    )
]
NORMS = [
    w.Norm(*sizes, layout, "float64", after)
    for layout, after in itertools.product(LAYOUTS, ("none", "relu", "add_relu"))
    for sizes in ((3, 4, 5, 2), (1, 2, 40, 50))
]
POOLS = [
    w.Pool(2, 3, 9, 7, ksize, stride, pad, layout, "float64", ceil)
    for layout in LAYOUTS
    for ksize, stride, pad, ceil in ((3, 2, 1, False), (2, 2, 0, False), (3, 2, 0, True), (2, 3, 1, False))
]
LRN = [(2, 7, 6, layout, "float64", 5, 0.2, beta, 1.0) for layout in LAYOUTS for beta in (0.75, 0.5)]
DROPOUTS = [(2, 3, 5, layout, "float64", 0.4) for layout in LAYOUTS]
TILES = [(2, 3, side, out, layout, "float64") for layout in LAYOUTS for side, out in ((6, 3), (14, 4), (2, 7))]
AVERAGES = [(3, 4, 5, 2, layout, "float64") for layout in LAYOUTS]
PARAMETERS = w.Parameters((5, w.CHUNK + 3, 7), (True, False, False))


def convolved(work: Any, a: Arrays) -> Arrays:
    conv = work.conv
    x, weights = (nchw(conv.layout, a[name]) for name in "xw")
    y = F.convolution_2d(x, weights, stride=conv.stride, pad=conv.pad).array
    return {"y": as_stored(conv.layout, y), "sum": y.sum((0, 2, 3)), "square_sum": (y * y).sum((0, 2, 3))}


def lowered(work: w.Im2col, a: Arrays) -> Arrays:
    conv = work.conv
    windows = F.im2col(nchw(conv.layout, a["x"]), (conv.r, conv.s), conv.stride, conv.pad).array
    windows = windows.reshape(conv.n, conv.c, conv.r, conv.s, conv.p, conv.q)
    axes = (1, 2, 3, 0, 4, 5) if conv.layout == "NCHW" else (0, 4, 5, 2, 3, 1)
    return {"columns": windows.transpose(axes)}


def followed(work: Any, a: Arrays, mean: Array, var: Array, count: int) -> Arrays:
    unbiased = var * count / max(1, count - 1)
    running = {"running_mean": mean, "running_var": unbiased}
    running = {name: 0.9 * a[name] + 0.1 * batch for name, batch in running.items()}
    return {**running, "mean": mean, "inv_std": (var + EPS) ** -0.5}


def normalised(work: w.BatchNormForward, a: Arrays) -> Arrays:
    norm, x = work.norm, nchw(work.norm.layout, a["x"])
    y = F.batch_normalization(x, a["gamma"], a["beta"], eps=EPS)
    if norm.add:
        y += nchw(norm.layout, a["residual"])
    y = as_stored(norm.layout, (F.relu(y) if norm.relu else y).array)
    return {"y": y, "mask": y > 0, **followed(work, a, x.mean((0, 2, 3)), x.var((0, 2, 3)), norm.count)}


def finalized(work: w.BatchNormFinalize, a: Arrays) -> Arrays:
    mean = a["sum"] / work.count
    var = np.maximum(a["square_sum"] / work.count - mean**2, 0)
    scale = a["gamma"] / np.sqrt(var + EPS)
    return {"scale": scale, "bias": a["beta"] - mean * scale, **followed(work, a, mean, var, work.count)}


def applied(work: w.BatchNormApply, a: Arrays) -> Arrays:
    y = F.bias(F.scale(nchw(work.norm.layout, a["x"]), a["scale"], axis=1), a["bias"], axis=1).array
    y = as_stored(work.norm.layout, y) + a.get("residual", 0)
    return {"y": F.relu(y).array if work.norm.relu else y}


def pooled(work: w.MaxPoolForward, a: Arrays) -> Arrays:
    pool = work.pool
    window = {"ksize": pool.ksize, "stride": pool.stride, "pad": pool.pad, "cover_all": pool.ceil}
    y, place = F.max_pooling_2d(nchw(pool.layout, a["x"]), **window, return_indices=True)
    return {"y": as_stored(pool.layout, y.array), "place": as_stored(pool.layout, place)}


def tiled(work: w.TiledAverageForward, a: Arrays) -> Arrays:
    x = nchw(work.layout, a["x"])
    return {"y": as_stored(work.layout, F.average_pooling_2d(x, work.ksize, work.stride).array)}


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 in plain integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def kept_values(work: Any, seed: int, count: int) -> Array:
    """1 or 0 for every value as it is stored."""
    blocks = [philox((i, 0, count, 0), (seed, 0)) for i in range(-(-work.size // 4))]
    mask = (np.array(blocks).reshape(-1)[: work.size] >= round(work.ratio * 2**32)).reshape(work.n, work.c, -1)
    return (mask if work.layout == "NCHW" else mask.transpose(0, 2, 1)).reshape(-1)


def dropped(work: w.DropoutForward, a: Arrays) -> Arrays:
    mask = kept_values(work, *a["counter"].tolist())
    return {"kept": mask, "y": mask * a["x"] / 0.6}


def lrn(work: w.LrnForward, a: Arrays) -> Arrays:
    x = nchw(work.layout, a["x"])
    y = F.local_response_normalization(x[..., None], work.size, work.k, work.alpha, work.beta).array[..., 0]
    return {"y": as_stored(work.layout, y), "sums": as_stored(work.layout, (y / x) ** (-1 / work.beta))}


def biased(work: w.AddBias, a: Arrays) -> Arrays:
    y = F.bias(a["y"], a["b"], axis=1).array
    return {"y": F.relu(y).array if isinstance(work, w.AddBiasRelu) else y}


def losses(work: w.SoftmaxCrossEntropyForward, a: Arrays) -> Arrays:
    return {
        "log_p": F.log_softmax(a["x"]).array,
        "losses": F.softmax_cross_entropy(a["x"], a["t"], reduce="no", normalize=False).array,
    }


def factor(work: w.KroneckerFactor, a: Arrays) -> Arrays:
    x = a["x"] if work.layout == "NCHW" else a["x"].T
    moments = [[math.fsum(row * other) / work.samples for other in x] for row in x]
    return {"factor": np.array(moments) + work.decay * a["factor"]}


def chainers_sgd(work: Any, a: Arrays, decay: float = 0.0) -> Arrays:
    """Return weights and velocities after a step of Chainer's own optimizer."""
    parameter = chainer.Parameter(a["w"].copy())
    parameter.grad = a["g"].copy()
    link = chainer.Link()
    with link.init_scope():
        link.parameter = parameter
    optimizer = chainer.optimizers.MomentumSGD(work.learning_rate, work.momentum).setup(link)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(decay))
    parameter.update_rule._init_states(parameter)
    parameter.update_rule.state["v"][...] = a["v"]
    optimizer.update()
    return {"w": parameter.array, "v": parameter.update_rule.state["v"]}


def chainers_decay(a: Arrays, rate: float) -> Array:
    """Return the gradient after Chainer's own hook."""
    parameter = chainer.Parameter(a["w"])
    parameter.grad = a["g"].copy()
    chainer.optimizer_hooks.WeightDecay(rate)(None, parameter)
    return np.asarray(parameter.grad)


def rounded(half: w.Half, value: float) -> float:
    """Round to nearest even by Python's own code for binary16, or by integers for bfloat16."""
    if half == "float16":
        return float(struct.unpack("e", struct.pack("e", value))[0])
    (bits,) = struct.unpack("I", struct.pack("f", value))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("f", struct.pack("I", bits))[0])


Expected = Callable[[Any, Arrays], Arrays]
FORWARD: list[tuple[w.Work, Expected]] = [
    *((kind(conv), convolved) for conv in CONVS for kind in (w.ConvFprop, w.ConvFpropStats)),
    *((w.Im2col(conv), lowered) for conv in CONVS),
    *((w.BatchNormForward(norm, EPS, MOMENTUM), normalised) for norm in NORMS),
    (w.BatchNormFinalize(9, 6, EPS, MOMENTUM, "float64"), finalized),
    *((w.BatchNormApply(norm), applied) for norm in NORMS),
    *((w.MaxPoolForward(pool), pooled) for pool in POOLS),
    *(
        (w.GlobalAverageForward(*sizes), lambda work, a: {"y": nchw(work.layout, a["x"]).mean((2, 3))})
        for sizes in AVERAGES
    ),
    *((w.TiledAverageForward(*sizes), tiled) for sizes in TILES if sizes[3] != 7),  # type: ignore[arg-type]
    *((w.LrnForward(*sizes), lrn) for sizes in LRN),  # type: ignore[arg-type]
    *((w.DropoutForward(*sizes), dropped) for sizes in DROPOUTS),  # type: ignore[arg-type]
    *((kind(3, 4, "float64", pixels), biased) for kind in (w.AddBias, w.AddBiasRelu) for pixels in (1, 5)),
    (w.SoftmaxCrossEntropyForward(4, 7, "float64"), losses),
    (w.MeanLoss(9, "float64", 0.3), lambda work, a: {"loss": math.fsum(a["losses"]) / 9 * 0.3}),
    (w.Relu(99, "float64"), lambda work, a: {"y": F.relu(a["x"]).array}),
    (w.Add(99, "float64"), lambda work, a: {"c": a["a"] + a["b"]}),
    (w.AddRelu(99, "float64"), lambda work, a: {"y": F.relu(a["a"] + a["b"]).array}),
    (
        w.PutColumns(3, 2, 6, 1, "float64"),
        lambda work, a: {"y": F.hstack([a["y"][:, :1], a["x"], a["y"][:, 3:]]).array},
    ),
    (w.TakeColumns(3, 2, 6, 1, "float64"), lambda work, a: {"gx": a["gy"][:, 1:3]}),
    *(
        (single(40, half), lambda work, a: {"y": [rounded(work.half, value) for value in a["x"].tolist()]})
        for single in (w.ToSingle, w.ToHalf)
        for half in w.HALVES
    ),
    (w.WeightDecay(99, 0.01, "float64"), lambda _, a: {"g": chainers_decay(a, 0.01)}),
    (w.MomentumUpdate(99, 0.1, 0.9, "float64"), chainers_sgd),
    (w.Unscale(9, "float64"), lambda work, a: {"gx": a["g"] / 8, "state": [8, 2, 0, 0]}),
    *((w.KroneckerFactor(5, 8, layout, "float64", 1 / 8, decay), factor) for layout in LAYOUTS for decay in (0, 0.9)),
]


@pytest.mark.parametrize(("work", "expected"), [pytest.param(*case, id=case[0].label) for case in FORWARD])
def test_it_is_chainers_function_or_the_definition(work: w.Work, expected: Expected) -> None:
    operands = inputs(work)
    done, right = do(work, operands), expected(work, operands)
    for operand in work.operands:
        if operand.role == "in":
            np.testing.assert_array_equal(done[operand.name], operands[operand.name], operand.name)
            continue
        actual = done[operand.name]
        target = np.asarray(right[operand.name]).reshape(actual.shape)
        if isinstance(work, w.KroneckerFactor):
            actual, target = np.tril(actual), np.tril(target)
        np.testing.assert_allclose(actual.astype(float), target.astype(float), 1e-9, 1e-12, err_msg=operand.name)


# -- gradients ---------------------------------------------------------------------------------------------------------

GRADIENTS: list[tuple[w.Work, w.Work]] = [
    *((kind(conv), w.ConvFprop(conv)) for conv in CONVS for kind in (w.ConvDgrad, w.ConvDgradAdd, w.ConvWgrad)),
    *((w.Col2im(conv), w.Im2col(conv)) for conv in CONVS),
    *((w.BatchNormBackward(norm), w.BatchNormForward(norm, EPS, MOMENTUM)) for norm in NORMS),
    *((w.MaxPoolBackward(pool), w.MaxPoolForward(pool)) for pool in POOLS),
    *((w.GlobalAverageBackward(*sizes), w.GlobalAverageForward(*sizes)) for sizes in AVERAGES),
    *((w.TiledAverageBackward(*sizes), w.TiledAverageForward(*sizes)) for sizes in TILES),  # type: ignore[arg-type]
    *((w.LrnBackward(*sizes), w.LrnForward(*sizes)) for sizes in LRN),  # type: ignore[arg-type]
    *((w.DropoutBackward(*sizes), w.DropoutForward(*sizes)) for sizes in DROPOUTS),  # type: ignore[arg-type]
    (w.ReluBackward(99, "float64"), w.Relu(99, "float64")),
    (w.SoftmaxCrossEntropyBackward(4, 7, "float64", 0.3), w.SoftmaxCrossEntropyForward(4, 7, "float64")),
    (w.TakeColumns(3, 2, 6, 1, "float64"), w.PutColumns(3, 2, 6, 1, "float64")),
    *(
        (w.BiasGradient(6, 4, "float64", pixels, slices), w.AddBias(6, 4, "float64", pixels))
        for pixels, slices in itertools.product((1, 5), (1, 3))
    ),
]


@pytest.mark.parametrize(("backward", "forward"), [pytest.param(*case, id=case[0].label) for case in GRADIENTS])
def test_a_gradient_is_the_slope_of_its_forward_operation(backward: w.Work, forward: w.Work) -> None:
    operands, rng = inputs(forward), np.random.default_rng(1)
    done = do(forward, operands)
    output = next(name for name in ("y", "columns", "losses") if name in done)
    gy = rng.standard_normal(done[output].shape)
    if output == "losses":  # their gradient is one number, times the weight, over N
        gy = np.full(4, 1.7 * 0.3 / 4)
    gradients = do(
        backward,
        {**operands, **done, f"g{output}": gy, "gloss": np.array(1.7), "other": np.ones_like(operands.get("x", 0.0))},
    )
    checked = 0
    for name, values in operands.items():
        gradient = gradients.get(f"g{name}")
        if gradient is None or {operand.name: operand for operand in backward.operands}[f"g{name}"].role == "in":
            continue
        if isinstance(backward, w.ConvDgradAdd):
            gradient = gradient - 1
        line = rng.standard_normal(values.shape)
        above, below = (do(forward, {**operands, name: values + step * line})[output] for step in (1e-5, -1e-5))
        slope = ((above - below) / 2e-5 * gy).sum()
        np.testing.assert_allclose((gradient.reshape(-1, *values.shape) * line).sum(), slope, 1e-6, 1e-7, err_msg=name)
        checked += 1
    assert checked == sum(operand.role == "out" for operand in backward.operands)


# -- all parameters at once, inverses, the loss scale ------------------------------------------------------------------


def of_parameters(work: Any, overflows: bool = False) -> tuple[Arrays, list[Array], list[Array]]:
    """Return what a work on all parameters reads, the gradients, and the 16-bit weights."""
    rng, operands = np.random.default_rng(0), inputs(work)
    gradients = [
        rng.standard_normal(size).astype(PARAMETERS.gradient_dtype(half))
        for size, half in zip(PARAMETERS.sizes, PARAMETERS.halves, strict=True)
    ]
    if overflows:
        gradients[1][[2, w.CHUNK + 1]], gradients[2][3] = (np.inf, np.nan), -np.inf
    halves = [np.zeros(g.size * (g.dtype == "float16"), "float16") for g in gradients]
    addresses = zip(gradients, halves, strict=True)
    operands["table"] = np.array([(g.ctypes.data, half.ctypes.data * bool(half.size)) for g, half in addresses])
    return operands, gradients, halves


@pytest.mark.parametrize("overflows", [False, True])
def test_a_batched_update_is_a_step_of_chainers_optimizer_for_each_parameter(overflows: bool) -> None:
    work = w.BatchedUpdate(PARAMETERS, 0.1, 0.9, 0.01, dynamic=False)
    operands, gradients, halves = of_parameters(work, overflows)
    done = do(work, operands)
    for place, gradient, half in zip(PARAMETERS.places, gradients, halves, strict=True):
        span, finite = slice(place, place + gradient.size), np.isfinite(gradient)
        master, velocity = (operands[name][span].astype(float) for name in ("master", "velocity"))
        g = np.where(finite, gradient, 0).astype(float) / 8
        right = chainers_sgd(work, {"g": g, "v": velocity, "w": master}, 0.01)
        for name, before, after in (("master", master, right["w"]), ("velocity", velocity, right["v"])):
            np.testing.assert_allclose(done[name][span], np.where(finite, after, before), 1e-6, 1e-6, err_msg=name)
        if half.size:
            np.testing.assert_array_equal(half, [rounded("float16", value) for value in done["master"][span].tolist()])
    assert done["state"].tolist() == [8, 2 + 3 * overflows, 0, 0]


def test_a_batched_update_with_a_dynamic_scale_changes_nothing_once_an_overflow_was_counted() -> None:
    work = w.BatchedUpdate(PARAMETERS, 0.1, 0.9, 0.01, dynamic=True)
    operands, gradients, halves = of_parameters(work)
    done = do(work, operands)
    assert len(gradients) == 3  # they have to outlive the work, which knows their addresses alone
    assert all(np.array_equal(done[name], operands[name]) for name in ("master", "velocity", "state"))
    assert not halves[0].any()


def test_chunks_with_an_overflow_are_counted() -> None:
    operands, gradients, _ = of_parameters(w.CheckFinite(PARAMETERS), overflows=True)
    assert do(w.CheckFinite(PARAMETERS), operands)["state"].tolist() == [8, 5, 0, 0]
    assert not np.isfinite(gradients[1]).all()  # they have to outlive the work, which knows their addresses alone


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_are_packed_at_their_places_and_nothing_between_is_written(dtype: w.DType) -> None:
    work = w.PackGradients(PARAMETERS, dtype, 0.5)
    operands, gradients, _ = of_parameters(work)
    before = np.full(PARAMETERS.total, 77, dtype)
    flat = do(work, {**operands, "flat": before})["flat"]
    for place, gradient in zip(PARAMETERS.places, gradients, strict=True):
        np.testing.assert_array_equal(flat[place : place + gradient.size], (gradient / 2).astype(dtype))
        before[place : place + gradient.size] = flat[place : place + gradient.size]
    np.testing.assert_array_equal(flat, before)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_gradient_that_is_not_finite_after_unscaling_is_counted_and_becomes_0(dtype: w.DType) -> None:
    size = 2 * w.CHUNK + 5
    g = np.ones(size, dtype)
    g[[0, 9, size - 1]] = np.inf, np.nan, -np.inf
    done = do(w.Unscale(size, dtype), {"g": g, "state": np.array([4, 1, 0, 0])})
    assert done["state"].tolist() == [4, 3, 0, 0]
    np.testing.assert_array_equal(done["gx"].astype(float), np.where(np.isfinite(g.astype(float)), 0.25, 0))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 0, 3, 2), (1024, 0, 4, 2)),
        ((1024, 0, 4, 2), (2048, 0, 0, 2)),
        ((2**24, 0, 9, 0), (2**24, 0, 0, 0)),
        ((1024, 7, 4, 2), (512, 0, 0, 3)),
        ((1.5, 1, 0, 0), (1, 0, 0, 1)),
    ],
)
def test_the_loss_scale_halves_on_overflow_and_doubles_after_good_steps(before: Any, after: Any) -> None:
    assert do(w.AdjustScale(5), {"state": np.array(before)})["state"].tolist() == list(after)


@pytest.mark.parametrize(("sign", "pi"), [(1, 2.0), (-1, 1.0)])
def test_damping_is_shared_so_that_both_factors_are_weighed(sign: int, pi: float) -> None:
    a, g = 4.0 * np.eye(3), sign * np.eye(2)
    done = do(w.DampFactors(3, 2, 0.25, "float64"), {"a": a, "g": g})
    np.testing.assert_allclose(done["damped_a"], a + pi * 0.5 * np.eye(3))
    np.testing.assert_allclose(done["damped_g"], g + 0.5 / pi * np.eye(2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 9, 300, 530])
def test_an_inverse_times_the_matrix_is_one(dtype: w.DType, size: int) -> None:
    root = np.random.default_rng(size).standard_normal((size, 2 * size))
    right = root @ root.T / size + 0.1 * np.eye(size)
    operands = {"x": np.where(np.tri(size, dtype=bool), right, np.nan), "info": np.zeros(1)}
    done = do(w.CholeskyInverse(size, dtype), operands)
    np.testing.assert_allclose(done["x"] @ right, np.eye(size), atol=1e-4 if dtype == "float32" else 1e-10)
    np.testing.assert_array_equal(done["x"], done["x"].T)
    assert done["info"][0] == 0


def test_a_matrix_that_has_no_decomposition_is_named_by_its_minor() -> None:
    done = do(w.CholeskyInverse(4), {"x": np.diag([2.0, 1.0, -1.0, 3.0]), "info": np.zeros(1)})
    assert done["info"][0] == 3 and np.isnan(done["x"]).all()


ALONE = {w.BatchedUpdate, w.CheckFinite, w.PackGradients, w.AdjustScale, w.DampFactors, w.CholeskyInverse}
"""Kinds of work with a test of their own."""


def test_every_operation_is_checked() -> None:
    works = [*(work for work, _ in FORWARD), *(work for work, _ in GRADIENTS)]
    assert {type(work) for work in works} | ALONE == set(OPERATIONS)
