"""Convolution on NHWC arrays as matrix products over (pixels, channels).

1x1: the arrays are the matrices. Otherwise im2col per block of output pixels, into memory that stays in cache.
x (N, H, W, C), w (K, R, S, C), y (N, P, Q, K).
"""

from __future__ import annotations

import numpy as np

from tcbench.accelerators.numpy import half, parallel
from tcbench.accelerators.numpy.conv_common import (
    Block,
    output_size,
    pixel_blocks,
    store,
    sum_partials,
    with_channels,
)
from tcbench.accelerators.numpy.half import compute_dtype, is_widened, load
from tcbench.accelerators.numpy.parallel import Array, scratch

PIXELS_1X1 = 1024
COLUMNS_ELEMENTS = 1 << 19
MIN_PIXELS = 384
WGRAD_PIXELS = 2048
WHOLE_IMAGES = 196
"""dgrad with a stride takes so many images at a time as have this many pixels: each block reads the whole filter."""
FLIP_ABOVE = 40
"""dgrad transposes a 3x3 filter from so many pixels per output channel on: below, the copy costs more than it saves."""


def _columns(x: Array, block: Block, kernel: tuple[int, int], stride: int, pad: int, q: int) -> Array:
    """im2col of one block: (pixels, R * S * C) in the compute dtype. A view of x where x has that shape already."""
    (r, s), c = kernel, x.shape[3]
    n, rows = block.images, block.rows
    if (r, s, pad) == (1, 1, 0):
        rows_of_x = slice(block.h0 * stride, (block.h1 - 1) * stride + 1, stride)
        part = x[block.n0 : block.n1, rows_of_x, : (q - 1) * stride + 1 : stride]
        if stride > 1 and not is_widened(x.dtype):
            dense = scratch("conv.dense", part.shape, x.dtype)
            np.copyto(dense, part)
            part = dense
        return load(part, "conv.x").reshape(n * rows * q, c)
    dtype = compute_dtype(x.dtype)
    height, width = (rows - 1) * stride + r, (q - 1) * stride + s
    top = block.h0 * stride - pad
    low, high = max(0, top), min(x.shape[1], top + height)
    right = min(x.shape[2], width - pad)
    inner = x[block.n0 : block.n1, low:high, :right]
    padded = scratch("conv.padded", (n, height, width, c), dtype)
    padded[:, : low - top] = 0
    padded[:, high - top :] = 0
    padded[:, :, :pad] = 0
    padded[:, :, pad + right :] = 0
    padded[:, low - top : high - top, pad : pad + right] = load(inner, "conv.x")
    image, row, pixel, item = padded.strides
    windows = np.lib.stride_tricks.as_strided(
        padded, (n, rows, q, r, s * c), (image, stride * row, stride * pixel, row, item), writeable=False
    )
    columns = scratch("conv.columns", windows.shape, dtype)
    np.copyto(columns, windows)
    return columns.reshape(n * rows * q, r * s * c)


def _pixels(kernel: tuple[int, int], c: int) -> int:
    if kernel == (1, 1):
        return PIXELS_1X1
    return max(MIN_PIXELS, COLUMNS_ELEMENTS // (kernel[0] * kernel[1] * c))


def fprop(x: Array, w: Array, stride: int, pad: int, addend: Array | None = None) -> Array:
    """y; with `addend` (of y's shape) y + addend."""
    k, r, s, c = w.shape
    n, p, q = x.shape[0], output_size(x.shape[1], r, stride, pad), output_size(x.shape[2], s, stride, pad)
    dtype = compute_dtype(x.dtype)
    weights = half.cast(w, dtype).reshape(k, r * s * c)
    y = np.empty((n, p, q, k), x.dtype)

    def compute(block: Block) -> None:
        columns = _columns(x, block, (r, s), stride, pad, q)
        out = y[block.n0 : block.n1, block.h0 : block.h1].reshape(-1, k)[:, block.k0 : block.k1]
        more = None
        if addend is not None:
            more = addend[block.n0 : block.n1, block.h0 : block.h1].reshape(-1, k)[:, block.k0 : block.k1]
        _product(columns, weights[block.k0 : block.k1].T, out, more)

    parallel.run(compute, with_channels(pixel_blocks(n, p, q, _pixels((r, s), c)), k))
    return y


def _product(a: Array, b: Array, out: Array, addend: Array | None = None) -> None:
    """out = a @ b (+ addend), rounded to out's dtype once."""
    product = out if out.dtype == a.dtype else scratch("conv.product", out.shape, a.dtype)
    np.matmul(a, b, out=product)
    if addend is not None:
        np.add(product, load(addend, "conv.addend"), out=product)
    if product is not out:
        store(product, out)


def _multiply(x: Array, matrix: Array, addend: Array | None) -> Array:
    """A 1x1 stride 1 convolution: x (N, H, W, C) by matrix (C, K), a view of the filter of any strides."""
    n, h, w, c = x.shape
    k = matrix.shape[1]
    y = np.empty((n, h, w, k), x.dtype)
    xs, ys = x.reshape(-1, c), y.reshape(-1, k)
    addends = None if addend is None else addend.reshape(-1, k)

    def compute(block: Block) -> None:
        pixels, channels = slice(block.n0, block.n1), slice(block.k0, block.k1)
        more = None if addends is None else addends[pixels, channels]
        _product(load(xs[pixels], "conv.x"), matrix[:, channels], ys[pixels, channels], more)

    parallel.run(compute, with_channels(pixel_blocks(n * h * w, 1, 1, PIXELS_1X1), k))
    return y


def _dgrad_by_offset(gy: Array, w: Array, pad: int, addend: Array | None) -> Array:
    """dgrad at stride 1 as a sum of R * S products, for which the filter need not be transposed.

    On small maps the transposed copy would cost more than the products.
    """
    k, r, s, c = w.shape
    n, p, q, _ = gy.shape
    dtype = compute_dtype(w.dtype)
    weights = half.cast(w, dtype)
    gx = np.empty((n, p + r - 1 - 2 * pad, q + s - 1 - 2 * pad, c), gy.dtype)
    height, width = gx.shape[1:3]

    def compute(block: Block) -> None:
        columns = _columns(gy, block, (r, s), 1, r - 1 - pad, width).reshape(-1, r * s, k)
        channels = slice(block.k0, block.k1)
        total = scratch("conv.sum", (columns.shape[0], block.k1 - block.k0), dtype)
        part = scratch("conv.part", total.shape, dtype)
        for i in range(r * s):
            here, there = divmod(r * s - 1 - i, s)
            np.matmul(columns[:, i], weights[:, here, there, channels], out=part if i else total)
            if i:
                np.add(total, part, out=total)
        if addend is not None:
            more = addend[block.n0 : block.n1, block.h0 : block.h1].reshape(-1, c)[:, channels]
            np.add(total, load(more, "conv.addend"), out=total)
        out = gx[block.n0 : block.n1, block.h0 : block.h1].reshape(-1, c)[:, channels]
        store(total, out)

    parallel.run(compute, with_channels(pixel_blocks(n, height, width, _pixels((r, s), k)), c))
    return gx


def dgrad(gy: Array, w: Array, shape: tuple[int, ...], stride: int, pad: int, addend: Array | None = None) -> Array:
    """The gradient of x, of the given shape; with `addend` (another gradient of x) their sum."""
    k, r, s, c = w.shape
    if (r, s, stride, pad) == (1, 1, 1, 0):
        return _multiply(gy, half.cast(w, compute_dtype(w.dtype)).reshape(k, c), addend)
    if stride == 1 and r == s and pad < r:
        if gy.size // k < FLIP_ABOVE * k:
            return _dgrad_by_offset(gy, w, pad, addend)
        flipped = np.ascontiguousarray(half.cast(w, compute_dtype(w.dtype))[:, ::-1, ::-1].transpose(3, 1, 2, 0))
        return fprop(gy, flipped, 1, r - 1 - pad, addend)
    _, height, width, _ = shape
    p, q = gy.shape[1:3]
    dtype = compute_dtype(gy.dtype)
    weights = half.cast(w, dtype)
    gx = np.empty(shape, gy.dtype)
    full_h, full_w = max(height + pad, (p - 1) * stride + r), max(width + pad, (q - 1) * stride + s)
    direct = gx.dtype == dtype and (pad, full_h, full_w) == (0, height, width)

    def compute(block: Block) -> None:
        # Whole images, so that no two blocks add to the same pixel.
        rows = load(gy[block.n0 : block.n1].reshape(-1, k), "conv.x")
        channels = slice(block.k0, block.k1)
        product = scratch("conv.product", (rows.shape[0], block.k1 - block.k0), dtype)
        out = gx[block.n0 : block.n1, :, :, channels]
        padded = out if direct else scratch("conv.padded", (block.images, full_h, full_w, block.k1 - block.k0), dtype)
        padded[...] = 0
        for i in range(r):
            for j in range(s):
                np.matmul(rows, weights[:, i, j, channels], out=product)
                part = padded[:, i : i + (p - 1) * stride + 1 : stride, j : j + (q - 1) * stride + 1 : stride]
                np.add(part, product.reshape(part.shape), out=part)
        part = padded[:, pad : pad + height, pad : pad + width]
        if addend is not None:
            np.add(part, load(addend[block.n0 : block.n1, :, :, channels], "conv.addend"), out=part)
        if not direct:
            store(part, out)

    parallel.run(compute, with_channels(pixel_blocks(shape[0], 1, 1, max(1, WHOLE_IMAGES // (p * q))), c))
    return gx


def wgrad(x: Array, gy: Array, kernel: tuple[int, int], stride: int, pad: int) -> Array:
    """The gradient of w: (K, R, S, C) in x's dtype."""
    n, p, q, k = gy.shape
    (r, s), c = kernel, x.shape[3]
    dtype = compute_dtype(x.dtype)
    blocks = with_channels(pixel_blocks(n, p, q, WGRAD_PIXELS), k)
    firsts = [i for i, block in enumerate(blocks) if block.k0 == 0]
    place = {(blocks[i].n0, blocks[i].h0): number for number, i in enumerate(firsts)}
    partials = np.empty((len(firsts), k, r * s * c), dtype)

    def compute(block: Block) -> None:
        columns = _columns(x, block, kernel, stride, pad, q)
        rows = gy[block.n0 : block.n1, block.h0 : block.h1].reshape(-1, k)[:, block.k0 : block.k1]
        out = partials[place[block.n0, block.h0], block.k0 : block.k1]
        np.matmul(load(rows, "conv.gy").T, columns, out=out)

    parallel.run(compute, blocks)
    return half.cast(sum_partials(partials, dtype), x.dtype).reshape(k, r, s, c)
