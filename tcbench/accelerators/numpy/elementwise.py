"""relu, add and their gradients on flat chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tcbench.accelerators.numpy import parallel
from tcbench.accelerators.numpy.half import convert, is_widened, load
from tcbench.accelerators.numpy.parallel import Array, scratch

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
        bits = x.view(np.int16)
        np.maximum(bits, zeros(bits.size, np.int16), out=out.view(np.int16))
        if bits.size and x.view(np.uint16).max() > 0xFC00:  # a NaN with the sign bit
            lost = x.view(np.uint16) > 0xFC00
            out[lost] = x[lost]
        return
    np.maximum(x, zeros(x.size, x.dtype), out=out)


def mask_into(gy: Array, y: Array, out: Array) -> None:
    """gy where y > 0 (or y is NaN), else 0, of contiguous chunks; `y` is what relu returned, of any float dtype.

    Works on the bits, where a multiplication by a bool would be three times slower and make NaN of infinity * 0.
    """
    integer = _INTEGER[gy.dtype.itemsize]
    gy, y, out = gy.reshape(-1), y.reshape(-1), out.reshape(-1)
    positive = scratch("mask.bool", y.shape, np.bool_)
    mask = scratch("mask.bits", gy.shape, integer)
    np.greater(y.view(_INTEGER[y.dtype.itemsize]), 0, out=positive)
    narrow = positive.view(np.int8)
    np.negative(narrow, out=narrow)  # 1 -> all bits
    np.copyto(mask, narrow)  # sign-extends
    np.bitwise_and(gy.view(integer), mask, out=out.view(integer))


def add_into(a: Array, b: Array, out: Array) -> None:
    """a + b of contiguous chunks, rounded once."""
    if not is_widened(out.dtype):
        np.add(a, b, out=out)
        return
    total = load(a, "add.a")
    np.add(total, load(b, "add.b"), out=total)
    convert(total, out)


def _spans(size: int) -> list[tuple[int, int]]:
    return parallel.spans(size, CHUNK)


def relu(x: Array) -> Array:
    """max(x, 0); NaN stays NaN."""
    x = np.ascontiguousarray(x)
    y = np.empty_like(x)
    flat, out = x.reshape(-1), y.reshape(-1)
    parallel.run(lambda span: relu_into(flat[slice(*span)], out[slice(*span)]), _spans(x.size))
    return y


def relu_gradient(gy: Array, y: Array) -> Array:
    """gy where y > 0, else 0."""
    gy = np.ascontiguousarray(gy)
    gx = np.empty_like(gy)
    flat, flat_y, out = gy.reshape(-1), y.reshape(-1), gx.reshape(-1)
    parallel.run(lambda span: mask_into(flat[slice(*span)], flat_y[slice(*span)], out[slice(*span)]), _spans(gy.size))
    return gx


def add(a: Array, b: Array) -> Array:
    """a + b, rounded once."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    c = np.empty_like(a)
    flat_a, flat_b, out = a.reshape(-1), b.reshape(-1), c.reshape(-1)
    parallel.run(lambda span: add_into(flat_a[slice(*span)], flat_b[slice(*span)], out[slice(*span)]), _spans(a.size))
    return c
