"""Max pooling and global average pooling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tcbench.accelerators.cpu.numpy import parallel
from tcbench.accelerators.cpu.numpy.half import compute_dtype, convert, load
from tcbench.accelerators.cpu.numpy.parallel import Array, scratch
from tcbench.work import (
    GlobalAverageBackward,
    GlobalAverageForward,
    Layout,
    MaxPoolBackward,
    MaxPoolForward,
    Pool,
)


def _window_offsets(
    height: int, width: int, p: int, q: int, ksize: int, stride: int, pad: int
) -> Iterator[tuple[int, tuple[slice, slice], tuple[slice, slice]]]:
    """For each place in the window, in row-major order: its number, the outputs that have it inside the image, and its
    inputs."""

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
                yield i * ksize + j, (out_h, out_w), (in_h, in_w)


def _at(layout: Layout, window: tuple[slice, slice]) -> tuple[slice, ...]:
    every = slice(None)
    return (every, every, *window) if layout == "NCHW" else (every, *window)


def _taps(pool: Pool) -> list[tuple[int, tuple[slice, ...], tuple[slice, ...]]]:
    """Each place of the window that lies inside the image for any output: its number, those outputs, its inputs."""
    windows = _window_offsets(pool.h, pool.w, pool.p, pool.q, pool.ksize, pool.stride, pool.pad)
    return [(place, _at(pool.layout, out), _at(pool.layout, into)) for place, out, into in windows]


def max_pool(work: MaxPoolForward, x: Array, y: Array, place: Array) -> None:
    """See MaxPoolForward."""
    taps = _taps(work.pool)
    dtype = compute_dtype(x.dtype)

    def compute(i: int) -> None:
        one = slice(i, i + 1)
        source, where = load(x[one], "pool.x"), place[one]
        best = scratch("pool.best", where.shape, dtype)
        better = scratch("pool.better", where.shape, np.uint8)
        best[...] = -np.inf
        for number, out, _ in reversed(taps):
            where[out] = number  # the first inside the image, should all be -inf
        for number, out, into in taps:
            part, values = best[out], source[into]
            # Numbers rise, so that the largest is the latest: several times as fast as a copy through a mask.
            np.greater(values, part, out=better[out].view(np.bool_))
            np.multiply(better[out], np.uint8(number), out=better[out])
            np.maximum(where[out], better[out], out=where[out])
            np.maximum(values, part, out=part)
        if np.isnan(best).any():
            for number, out, into in reversed(taps):
                np.copyto(where[out], number, where=np.isnan(source[into]))
        convert(best, y[one])

    parallel.run(compute, range(work.pool.n))


def max_pool_backward(work: MaxPoolBackward, gy: Array, place: Array, gx: Array) -> None:
    """See MaxPoolBackward."""
    taps = _taps(work.pool)
    dtype = compute_dtype(gy.dtype)

    def compute(i: int) -> None:
        one = slice(i, i + 1)
        gradient, where = load(gy[one], "pool.gy"), place[one]
        total = scratch("pool.total", gx[one].shape, dtype)
        total[...] = 0
        for number, out, into in taps:
            total[into] += np.where(where[out] == number, gradient[out], dtype.type(0))
        convert(total, gx[one])

    parallel.run(compute, range(work.pool.n))


def global_average(work: GlobalAverageForward, x: Array, y: Array) -> None:
    """See GlobalAverageForward."""
    dtype = compute_dtype(x.dtype)
    axes = (2, 3) if work.layout == "NCHW" else (1, 2)

    def compute(i: int) -> None:
        convert(load(x[i : i + 1], "pool.x").mean(axis=axes, dtype=dtype), y[i : i + 1])

    parallel.run(compute, range(work.n))


def global_average_backward(work: GlobalAverageBackward, gy: Array, gx: Array) -> None:
    """See GlobalAverageBackward."""
    share = load(gy, "pool.gy") / compute_dtype(gy.dtype).type(work.h * work.w)
    rounded = convert(share, np.empty(share.shape, gy.dtype))
    gx[...] = rounded[:, :, None, None] if work.layout == "NCHW" else rounded[:, None, None, :]
