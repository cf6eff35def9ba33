"""Max pooling and global average pooling."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.half import compute_dtype, convert, load
from tcbench.engine.accelerators.cpu.threads import Array, scratch


def _windows(pool: w.Pool) -> list[tuple[slice, ...]]:
    """For each place in the window, in row-major order: the pixels of a padded image (1, ...) that stand there, one per
    output."""

    def along(outputs: int, first: int) -> slice:
        return slice(first, first + (outputs - 1) * pool.stride + 1, pool.stride)

    every = (slice(None),)
    before, after = (every * 2, ()) if pool.layout == "NCHW" else (every, every)
    return [
        (*before, along(pool.p, row), along(pool.q, column), *after)
        for row in range(pool.ksize)
        for column in range(pool.ksize)
    ]


def _padded(pool: w.Pool, name: str, dtype: np.dtype[Any], fill: float) -> tuple[Array, Array]:
    """This thread's scratch for one image with its padding, filled; and the image in it."""
    reach = ((outputs - 1) * pool.stride + pool.ksize for outputs in (pool.p, pool.q))
    height, width = (max(size + 2 * pool.pad, end) for size, end in zip((pool.h, pool.w), reach, strict=True))
    shape = dataclasses.replace(pool, n=1, h=height, w=width).x_shape
    whole = scratch(name, shape, dtype)
    whole[...] = fill
    rows, columns = slice(pool.pad, pool.pad + pool.h), slice(pool.pad, pool.pad + pool.w)
    return whole, whole[:, :, rows, columns] if pool.layout == "NCHW" else whole[:, rows, columns]


def _first_inside(pool: w.Pool) -> Array:
    """uint8 (1, P, Q), in the layout: the first place of each window that lies inside the image."""
    row, column = (np.maximum(pool.pad - pool.stride * np.arange(n), 0) for n in (pool.p, pool.q))
    first = (row[:, None] * pool.ksize + column).astype(np.uint8)
    return first[None, None] if pool.layout == "NCHW" else first[None, :, :, None]


def max_pool(work: w.MaxPoolForward, x: Array, y: Array, place: Array) -> None:
    """See MaxPoolForward."""
    pool = work.pool
    dtype = compute_dtype(x.dtype)
    windows, first = _windows(pool), _first_inside(pool)

    def compute(i: int) -> None:
        one = slice(i, i + 1)
        where = place[one]
        padded, image = _padded(pool, "pool.padded", dtype, -np.inf)
        image[...] = load(x[one], "pool.x")
        best, values = (scratch(f"pool.{name}", where.shape, dtype) for name in ("best", "values"))
        better = scratch("pool.better", where.shape, np.uint8)
        best[...] = -np.inf
        where[...] = first  # should all be -inf
        for number, window in enumerate(windows):
            values[...] = padded[window]  # the passes below are several times as fast on memory without gaps
            # Numbers rise, so that the largest is the latest: several times as fast as a copy through a mask.
            np.greater(values, best, out=better.view(np.bool_))
            np.multiply(better, np.uint8(number), out=better)
            np.maximum(where, better, out=where)
            np.maximum(values, best, out=best)
        if np.isnan(best).any():
            for number, window in reversed(list(enumerate(windows))):
                np.copyto(where, number, where=np.isnan(padded[window]))
        convert(best, y[one])

    threads.run(compute, range(pool.n))


def max_pool_backward(work: w.MaxPoolBackward, gy: Array, place: Array, gx: Array) -> None:
    """See MaxPoolBackward."""
    pool = work.pool
    dtype = compute_dtype(gy.dtype)
    windows = _windows(pool)

    def compute(i: int) -> None:
        one = slice(i, i + 1)
        gradient, where = load(gy[one], "pool.gy"), place[one]
        padded, image = _padded(pool, "pool.padded", dtype, 0)
        bits = scratch("pool.bits", where.shape, f"i{dtype.itemsize}")
        for number, window in enumerate(windows):
            # Through a mask of bits, which keeps infinity out where multiplying by 0 would make it NaN: twice as fast
            # as np.where, whose branches no processor can foresee.
            np.copyto(bits, where == number)
            np.negative(bits, out=bits)
            np.bitwise_and(bits, gradient.view(bits.dtype), out=bits)
            padded[window] += bits.view(dtype)
        convert(np.ascontiguousarray(image), gx[one])

    threads.run(compute, range(pool.n))


def global_average(work: w.GlobalAverageForward, x: Array, y: Array) -> None:
    """See GlobalAverageForward."""
    dtype = compute_dtype(x.dtype)
    axes = (2, 3) if work.layout == "NCHW" else (1, 2)

    def compute(i: int) -> None:
        convert(load(x[i : i + 1], "pool.x").mean(axis=axes, dtype=dtype), y[i : i + 1])

    threads.run(compute, range(work.n))


def global_average_backward(work: w.GlobalAverageBackward, gy: Array, gx: Array) -> None:
    """See GlobalAverageBackward."""
    share = load(gy, "pool.gy") / compute_dtype(gy.dtype).type(work.h * work.w)
    rounded = convert(share, np.empty(share.shape, gy.dtype))
    gx[...] = rounded[:, :, None, None] if work.layout == "NCHW" else rounded[:, None, None, :]


def _tiles(work: w.TiledAverageForward | w.TiledAverageBackward) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Each output's place in y, and its window in x."""
    starts = range(0, work.out * work.stride, work.stride) if work.stride else [0] * work.out
    spans = list(enumerate(slice(start, start + work.ksize) for start in starts))
    for (p, rows), (q, columns) in itertools.product(spans, spans):
        if work.layout == "NCHW":
            yield (..., p, q), (..., rows, columns)
        else:
            yield (..., p, q, slice(None)), (..., rows, columns, slice(None))


def tiled_average(work: w.TiledAverageForward, x: Array, y: Array) -> None:
    """See TiledAverageForward."""
    axes = (2, 3) if work.layout == "NCHW" else (1, 2)
    values = load(x, "pool.x")
    for place, window in _tiles(work):
        y[place] = values[window].mean(axis=axes, dtype=values.dtype)


def tiled_average_backward(work: w.TiledAverageBackward, gy: Array, gx: Array) -> None:
    """See TiledAverageBackward."""
    shares = load(gy, "pool.gy") / compute_dtype(gy.dtype).type(work.ksize**2)
    sums = np.zeros(gx.shape, shares.dtype)
    across = (..., None, None) if work.layout == "NCHW" else (..., None, None, slice(None))
    for place, window in _tiles(work):
        sums[window] += shares[place][across]
    convert(sums, gx)
