"""Convolution on NHWC arrays as matrix products over (pixels, channels).

1x1: the arrays are the matrices. Otherwise im2col per block of output pixels, into memory that stays in cache.
x (N, H, W, C), w (K, R, S, C), y (N, P, Q, K).
"""

from __future__ import annotations

import numpy as np

from tcbench.accelerators.cpu.numpy import half, parallel
from tcbench.accelerators.cpu.numpy.conv_common import (
    Block,
    partials_of,
    pixel_blocks,
    store,
    sum_partials,
    with_channels,
)
from tcbench.accelerators.cpu.numpy.half import compute_dtype, is_widened, load
from tcbench.accelerators.cpu.numpy.parallel import Array, scratch

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


def fprop(x: Array, w: Array, y: Array, stride: int, pad: int, addend: Array | None = None) -> None:
    """y = x * w; with `addend` (of y's shape) + addend."""
    k, r, s, c = w.shape
    n, p, q, _ = y.shape
    dtype = compute_dtype(x.dtype)
    weights = half.cast(w, dtype).reshape(k, r * s * c)

    def compute(block: Block) -> None:
        columns = _columns(x, block, (r, s), stride, pad, q)
        out = y[block.n0 : block.n1, block.h0 : block.h1].reshape(-1, k)[:, block.k0 : block.k1]
        more = None
        if addend is not None:
            more = addend[block.n0 : block.n1, block.h0 : block.h1].reshape(-1, k)[:, block.k0 : block.k1]
        _product(columns, weights[block.k0 : block.k1].T, out, more)

    parallel.run(compute, with_channels(pixel_blocks(n, p, q, _pixels((r, s), c)), k))


def _product(a: Array, b: Array, out: Array, addend: Array | None = None) -> None:
    """out = a @ b (+ addend), rounded to out's dtype once."""
    product = out if out.dtype == a.dtype else scratch("conv.product", out.shape, a.dtype)
    np.matmul(a, b, out=product)
    if addend is not None:
        np.add(product, load(addend, "conv.addend"), out=product)
    if product is not out:
        store(product, out)


def _multiply(x: Array, matrix: Array, y: Array, addend: Array | None) -> None:
    """A 1x1 stride 1 convolution: y (N, H, W, K) of x (N, H, W, C) by matrix (C, K), a view of the filter of any
    strides."""
    c, k = matrix.shape
    xs, ys = x.reshape(-1, c), y.reshape(-1, k)
    addends = None if addend is None else addend.reshape(-1, k)

    def compute(block: Block) -> None:
        pixels, channels = slice(block.n0, block.n1), slice(block.k0, block.k1)
        more = None if addends is None else addends[pixels, channels]
        _product(load(xs[pixels], "conv.x"), matrix[:, channels], ys[pixels, channels], more)

    parallel.run(compute, with_channels(pixel_blocks(len(xs), 1, 1, PIXELS_1X1), k))


def _dgrad_by_offset(gy: Array, weights: Array, gx: Array, pad: int, addend: Array | None) -> None:
    """dgrad at stride 1 as a sum of R * S products, for which the filter need not be transposed.

    On small maps the transposed copy would cost more than the products.
    """
    k, r, s, c = weights.shape
    n, height, width, _ = gx.shape
    dtype = weights.dtype

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


def dgrad(gy: Array, w: Array, gx: Array, stride: int, pad: int, addend: Array | None = None) -> None:
    """gx, the gradient of x; with `addend` (another gradient of x) their sum."""
    k, r, s, c = w.shape
    weights = half.cast(w, compute_dtype(w.dtype))
    if (r, s, stride, pad) == (1, 1, 1, 0):
        _multiply(gy, weights.reshape(k, c), gx, addend)
    elif stride > 1 or r != s or pad >= r:
        _dgrad_by_image(gy, weights, gx, stride, pad, addend)
    elif gy.size // k < FLIP_ABOVE * k:
        _dgrad_by_offset(gy, weights, gx, pad, addend)
    else:
        flipped = np.ascontiguousarray(weights[:, ::-1, ::-1].transpose(3, 1, 2, 0))
        fprop(gy, flipped, gx, 1, r - 1 - pad, addend)


def _dgrad_by_image(gy: Array, weights: Array, gx: Array, stride: int, pad: int, addend: Array | None) -> None:
    """dgrad by one product per place in the filter, added where it belongs; for any geometry."""
    k, r, s, c = weights.shape
    n, height, width, _ = gx.shape
    p, q = gy.shape[1:3]
    dtype = weights.dtype
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

    parallel.run(compute, with_channels(pixel_blocks(n, 1, 1, max(1, WHOLE_IMAGES // (p * q))), c))


def wgrad(x: Array, gy: Array, gw: Array, stride: int, pad: int) -> None:
    """gw, the gradient of w."""
    n, p, q, k = gy.shape
    kernel = gw.shape[1:3]
    dtype = compute_dtype(x.dtype)
    blocks = with_channels(pixel_blocks(n, p, q, WGRAD_PIXELS), k)
    firsts = [i for i, block in enumerate(blocks) if block.k0 == 0]
    place = {(blocks[i].n0, blocks[i].h0): number for number, i in enumerate(firsts)}
    partials = partials_of(len(firsts), gw, dtype)

    def compute(block: Block) -> None:
        columns = _columns(x, block, kernel, stride, pad, q)
        rows = gy[block.n0 : block.n1, block.h0 : block.h1].reshape(-1, k)[:, block.k0 : block.k1]
        out = partials[place[block.n0, block.h0], block.k0 : block.k1]
        np.matmul(load(rows, "conv.gy").T, columns, out=out)

    parallel.run(compute, blocks)
    sum_partials(partials, gw)
