"""ReLU, addition and their gradients on flat chunks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tcbench.engine.accelerators.cpu.reference.half import INFINITY, convert, is_widened, load
from tcbench.engine.accelerators.cpu.threads import Array, by_chunks, scratch
from tcbench.engine.work import Add, AddRelu, Relu, ReluBackward

CHUNK = 1 << 18
"""Elements. Shorter chunks stay in L2, but then threads meet at the interpreter lock too often."""

_INTEGER = {2: np.int16, 4: np.int32, 8: np.int64}


_zeros: dict[np.dtype[Any], Array] = {}


def zeros(size: int, dtype: npt.DTypeLike) -> Array:
    """Zeros to compare with, never to be written: np.maximum with an array is three times as fast as with a scalar."""
    dtype = np.dtype(dtype)
    array = _zeros.get(dtype)
    if array is None or array.size < size:
        array = _zeros[dtype] = np.zeros(size, dtype)
        array.flags.writeable = False
    return array[:size]


def relu_into(x: Array, out: Array) -> None:
    """max(x, 0) of a contiguous chunk; NaN stays NaN whatever its sign."""
    x, out = x.reshape(-1), out.reshape(-1)
    if is_widened(x.dtype):
        # As integers: negative numbers (and -0) have the sign bit, and NaN lies above infinity in magnitude.
        bits, minus_infinity = x.view(np.int16), 0x8000 | INFINITY[x.dtype]
        lost = None
        if bits.size and x.view(np.uint16).max() > minus_infinity:  # a NaN with the sign bit
            lost = x.view(np.uint16) > minus_infinity
            nan = x[lost]  # before `out`, which may be `x`, is written
        np.maximum(bits, zeros(bits.size, np.int16), out=out.view(np.int16))
        if lost is not None:
            out[lost] = nan
        return
    np.maximum(x, zeros(x.size, x.dtype), out=out)


def keep_where(positive: Array, gy: Array, out: Array) -> None:
    """gy where `positive` (bool), else 0, of contiguous chunks. Works on the bits, where a multiplication by a bool
    would be three times slower and make NaN of infinity * 0."""
    integer = _INTEGER[gy.dtype.itemsize]
    gy, out = gy.reshape(-1), out.reshape(-1)
    ones, mask = scratch("mask.ones", gy.shape, np.int8), scratch("mask.bits", gy.shape, integer)
    np.negative(positive.reshape(-1).view(np.int8), out=ones)  # 1 -> all bits
    np.copyto(mask, ones)  # sign-extends
    np.bitwise_and(gy.view(integer), mask, out=out.view(integer))


def is_positive(y: Array, out: Array) -> None:
    """y > 0 of contiguous chunks of any float dtype."""
    y, out = y.reshape(-1), out.reshape(-1)
    if not is_widened(y.dtype):
        np.greater(y, zeros(y.size, y.dtype), out=out)
        return
    # As integers: one less than their bits, zero and what has the sign bit lie above infinity, where NaN is.
    bits = scratch("positive.bits", y.shape, np.uint16)
    np.subtract(y.view(np.uint16), np.uint16(1), out=bits)
    np.less(bits, np.uint16(INFINITY[y.dtype]), out=out)


def relu(_: Relu, x: Array, y: Array) -> None:
    """y = max(x, 0); NaN stays NaN. `y` may be `x`."""
    _flat(relu_into, x, y)


def relu_backward(_: ReluBackward, gy: Array, y: Array, gx: Array) -> None:
    """gx = gy where y > 0, else 0."""

    def compute(gy: Array, y: Array, gx: Array) -> None:
        positive = scratch("relu.positive", y.shape, np.bool_)
        is_positive(y, positive)
        keep_where(positive, gy, gx)

    _flat(compute, gy, y, gx)


def add(_: Add, a: Array, b: Array, out: Array) -> None:
    """a + b, rounded once. `out` may be one of them."""
    _flat(add_into, a, b, out)


def add_relu(_: AddRelu, a: Array, b: Array, y: Array) -> None:
    """max(a + b, 0), rounded once; NaN stays NaN. `y` may be one of them."""

    def compute(a: Array, b: Array, y: Array) -> None:
        add_into(a, b, y)
        relu_into(y, y)

    _flat(compute, a, b, y)


def add_into(a: Array, b: Array, out: Array) -> None:
    """a + b of chunks, rounded once; `b` may be broadcast."""
    if not is_widened(out.dtype):
        np.add(a, b, out=out)
        return
    total = scratch("add.total", a.shape, np.float32)
    np.add(load(a, "add.a"), load(b, "add.b"), out=total)
    convert(total, out)


def _flat(compute: Callable[..., None], *arrays: Array) -> None:
    by_chunks(compute, CHUNK, *(array.reshape(-1) for array in arrays))
