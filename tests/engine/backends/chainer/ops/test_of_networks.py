"""What networks beyond the residual ones are made of: biases, concatenation, dropout, normalisation across channels,
averages over windows, pooling that rounds up."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from engine.backends.chainer.ops.gradients import LAYOUTS, check_gradients, from_layout, run, to_layout
from reference import kept_values, philox

from tcbench.engine import work
from tcbench.engine.accelerators.cpu.reference import dropout as numpy_dropout
from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer


def maps(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def lrn(x, layout):
    return ops.local_response_normalization(x, size=5, alpha=0.2, beta=0.75, k=1.0, layout=layout)


def dropped(x, layout, ratio=0.4):
    return ops.dropout(x, ratio, np.array([11, 0], np.int64), layout=layout)


def joined(*xs, layout):
    return ops.concatenate(xs, layout=layout)


OPERATIONS = {
    "bias": (lambda x, b, layout: ops.bias(x + 0, b, layout=layout), (maps(2, 3, 4, 5), maps(3))),
    "bias-relu": (lambda x, b, layout: ops.bias(x + 0, b, layout=layout, relu=True), (maps(2, 3, 4, 5), maps(3))),
    "concat": (joined, (maps(2, 3, 4, 4), maps(2, 1, 4, 4), maps(2, 6, 4, 4))),
    "lrn": (lrn, (maps(2, 7, 3, 4),)),
    "lrn-few-channels": (lrn, (maps(2, 2, 3, 3),)),
    "dropout": (dropped, (maps(2, 3, 4, 5),)),
    "average-tiles": (functools.partial(ops.tiled_average_pooling_2d, out=3), (maps(2, 3, 6, 6),)),
    "average-overlapping": (functools.partial(ops.tiled_average_pooling_2d, out=4), (maps(1, 3, 14, 14),)),
    "average-repeated": (functools.partial(ops.tiled_average_pooling_2d, out=7), (maps(2, 3, 2, 2),)),
    "max-pool-ceil": (
        functools.partial(ops.max_pooling_2d, ksize=3, stride=2, pad=0, ceil=True),
        (np.random.default_rng(0).permutation(2 * 3 * 8 * 8).reshape(2, 3, 8, 8) / 10.0,),
    ),
}
EACH = pytest.mark.parametrize(("operate", "inputs"), OPERATIONS.values(), ids=OPERATIONS)


@EACH
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_match_finite_differences(operate, inputs, layout):
    check_gradients(functools.partial(operate, layout=layout), *(to_layout(array, layout) for array in inputs))


@EACH
def test_both_layouts_compute_the_same(operate, inputs):
    for one, other in zip(run(operate, *inputs, layout="NCHW"), run(operate, *inputs, layout="NHWC"), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@EACH
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 3e-6), ("float16", 6e-3), ("bfloat16", 5e-2)])
def test_narrower_dtypes_are_near_float64(operate, inputs, layout, dtype, limit):
    # A bias is float32 beside maps of 16 bits. Maps hold what the dtype can, so that each computes on the same numbers.
    rounded = [array.astype(dtype) if array.ndim == 4 else array.astype("float32") for array in inputs]
    found = run(operate, *rounded, layout=layout)
    exact = run(operate, *(array.astype(np.float64) for array in rounded), layout=layout)
    for one, other in zip(found, exact, strict=True):
        assert np.linalg.norm(one - other) <= limit * np.linalg.norm(other)


def test_a_bias_is_added_in_place():
    x = chainer.Variable(maps(1, 2, 3, 3))
    assert ops.bias(x, maps(2), layout="NCHW").array is x.array


@pytest.mark.parametrize(
    ("operate", "message"),
    [
        (lambda: ops.bias(maps(1, 2, 3, 3), maps(3), layout="NCHW"), r"add_bias: x \(1, 2, 3, 3\) and b \(3,\)"),
        (lambda: joined(maps(1, 2, 3, 3), maps(1, 2, 4, 3), layout="NCHW"), "concatenate: expected one dtype, and one"),
        (lambda: ops.tiled_average_pooling_2d(maps(1, 2, 3, 4), out=2, layout="NCHW"), "expected square maps, got 3x4"),
        (lambda: work.BiasGradient(5, 3, "float32", slices=2), "5 rows are no 2 equal parts"),
    ],
)
def test_what_does_not_fit_is_refused(operate, message):
    with pytest.raises(ValueError, match=message):
        operate()


def test_lrn_is_its_definition():
    x = maps(1, 6, 1, 1)
    found = lrn(x, "NCHW").array[0, :, 0, 0]
    values = x[0, :, 0, 0]
    by_hand = [v / (1 + 0.2 * (values[max(0, i - 2) : i + 3] ** 2).sum()) ** 0.75 for i, v in enumerate(values)]
    np.testing.assert_allclose(found, by_hand)


def test_philox_gives_its_published_numbers():
    """Random123's known answers, kat_vectors, "philox4x32 10"."""
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    full = 0xFFFFFFFF
    assert philox((full,) * 4, (full,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    digits = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert philox(*digits) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_the_processors_lanes_are_philoxs():
    blocks = [philox((i, 0, 9, 0), (2**31 + 5, 0)) for i in range(4)]
    assert numpy_dropout.philox(3, 11, 2**31 + 5, 9).tolist() == np.array(blocks).reshape(-1)[3:14].tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dropout_keeps_the_same_values_in_every_layout_and_others_after_a_gradient(layout):
    counter = np.array([7, 0], np.int64)
    x = np.ones((2, 3, 4, 4))

    def kept():
        y = ops.dropout(chainer.Variable(to_layout(x, layout)), 0.5, counter, layout=layout)
        y.grad = np.ones_like(y.array)
        y.backward()
        return from_layout(y.array, layout) > 0

    described = work.DropoutForward(2, 3, 16, "NCHW", "float64", 0.5)
    first, second = kept(), kept()
    assert np.array_equal(first.reshape(-1), kept_values(described, 7, 0))
    assert np.array_equal(second.reshape(-1), kept_values(described, 7, 1))
    assert counter.tolist() == [7, 2]


def test_dropout_keeps_its_share_and_the_mean_and_does_nothing_in_evaluation():
    x = np.ones((50, 200), np.float32)
    y = dropped(x, "NCHW", 0.7).array
    assert (y > 0).mean() == pytest.approx(0.3, abs=0.02)
    assert y.mean() == pytest.approx(1, abs=0.05)
    with chainer.using_config("train", False):
        assert dropped(x, "NCHW") is x


def test_a_linear_takes_maps_in_either_layout():
    x, w, b = maps(2, 3, 4, 4), maps(5, 3, 4, 4, seed=1), maps(5, seed=2)
    expected = x.reshape(2, -1) @ w.reshape(5, -1).T + b
    for layout in LAYOUTS:
        np.testing.assert_allclose(ops.linear(to_layout(x, layout), to_layout(w, layout), b).array, expected)
    check_gradients(ops.linear, x, w, b)
