"""Max pooling and global average pooling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tcbench.accelerators.numpy import parallel
from tcbench.accelerators.numpy.conv_common import output_size
from tcbench.accelerators.numpy.half import compute_dtype, convert, load
from tcbench.accelerators.numpy.parallel import Array, scratch
from tcbench.work import Layout

_INTEGER = {2: np.int16, 4: np.int32, 8: np.int64}


def _window_offsets(
    height: int, width: int, p: int, q: int, ksize: int, stride: int, pad: int
) -> Iterator[tuple[tuple[slice, slice], tuple[slice, slice]]]:
    """For each place in the window, in row-major order: the outputs that have it inside the image, and its inputs."""

    def along(size: int, outputs: int, i: int) -> tuple[slice, slice]:
        first = max(0, -((i - pad) // stride))
        last = min(outputs - 1, (size - 1 + pad - i) // stride)
        start = first * stride + i - pad
        return slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)

    for i in range(ksize):
        out_h, in_h = along(height, p, i)
        for j in range(ksize):
            out_w, in_w = along(width, q, j)
            if out_h.stop > out_h.start and out_w.stop > out_w.start:
                yield (out_h, out_w), (in_h, in_w)


def _at(layout: Layout, window: tuple[slice, slice]) -> tuple[slice, ...]:
    every = slice(None)
    return (every, every, *window) if layout == "NCHW" else (every, *window)


def _sizes(shape: tuple[int, ...], layout: Layout) -> tuple[int, int]:
    return (shape[2], shape[3]) if layout == "NCHW" else (shape[1], shape[2])


def max_pooling(x: Array, ksize: int, stride: int, pad: int, layout: Layout) -> Array:
    """The maximum of each window; NaN if it holds one."""
    height, width = _sizes(x.shape, layout)
    p, q = output_size(height, ksize, stride, pad), output_size(width, ksize, stride, pad)
    n, channels = x.shape[0], x.shape[1 if layout == "NCHW" else 3]
    y = np.empty((n, channels, p, q) if layout == "NCHW" else (n, p, q, channels), x.dtype)
    dtype = compute_dtype(x.dtype)

    def compute(i: int) -> None:
        source = load(x[i : i + 1], "pool.x")
        best = scratch("pool.best", y[i : i + 1].shape, dtype)
        best[...] = -np.inf
        for out, place in _window_offsets(height, width, p, q, ksize, stride, pad):
            part = best[_at(layout, out)]
            np.maximum(part, source[_at(layout, place)], out=part)
        convert(best, y[i : i + 1])

    parallel.run(compute, range(n))
    return y


def max_pooling_gradient(gy: Array, x: Array, y: Array, ksize: int, stride: int, pad: int, layout: Layout) -> Array:
    """gy goes to the first place of its window that holds the maximum."""
    height, width = _sizes(x.shape, layout)
    p, q = _sizes(y.shape, layout)
    dtype = compute_dtype(x.dtype)
    integer = _INTEGER[x.dtype.itemsize]
    gx = np.empty(x.shape, x.dtype)

    def compute(i: int) -> None:
        one = slice(i, i + 1)
        bits, best = x[one].view(integer), y[one].view(integer)
        left = scratch("pool.left", gy[one].shape, dtype)
        np.copyto(left, load(gy[one], "pool.gy"))
        total = scratch("pool.total", x[one].shape, dtype)
        total[...] = 0
        for out, place in _window_offsets(height, width, p, q, ksize, stride, pad):
            at, into = _at(layout, out), _at(layout, place)
            # Compared as bits, so that NaN finds itself. What has found its place is taken out of `left`.
            share = np.where(bits[into] == best[at], left[at], dtype.type(0))
            total[into] += share
            left[at] -= share
        convert(total, gx[one])

    parallel.run(compute, range(x.shape[0]))
    return gx


def global_average(x: Array, layout: Layout) -> Array:
    """(N, C): the mean over all pixels."""
    dtype = compute_dtype(x.dtype)
    n = x.shape[0]
    y = np.empty((n, x.shape[1 if layout == "NCHW" else 3]), x.dtype)
    axes = (2, 3) if layout == "NCHW" else (1, 2)

    def compute(i: int) -> None:
        convert(load(x[i : i + 1], "pool.x").mean(axis=axes, dtype=dtype), y[i : i + 1])

    parallel.run(compute, range(n))
    return y


def global_average_gradient(gy: Array, shape: tuple[int, ...], layout: Layout) -> Array:
    """gy (N, C) spread evenly over the pixels of `shape`."""
    dtype = compute_dtype(gy.dtype)
    height, width = _sizes(shape, layout)
    share = load(np.ascontiguousarray(gy), "pool.gy") / dtype.type(height * width)
    rounded = np.empty(share.shape, gy.dtype)
    convert(np.ascontiguousarray(share), rounded)
    gx = np.empty(shape, gy.dtype)
    gx[...] = rounded[:, :, None, None] if layout == "NCHW" else rounded[:, None, None, :]
    return gx
