"""Convolution on NCHW arrays as matrix products of (output channels, R * S * C) by (R * S * C, pixels).

im2col per block of output pixels. A block of one image writes its product where it belongs; a block of several
images (small maps) is transposed into place. x (N, C, H, W), w (K, C, R, S), y (N, K, P, Q).
"""

from __future__ import annotations

from collections.abc import Callable

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

PIXELS_1X1 = 784
COLUMNS_ELEMENTS = 1 << 19
MIN_PIXELS = 392
WGRAD_PIXELS = 2048
WHOLE_IMAGES = 196
"""dgrad with a stride takes so many images at a time as have this many pixels: each block reads the whole filter."""
FLIP_ABOVE = 40
"""dgrad transposes a 3x3 filter from so many pixels per output channel on: below, the copy costs more than it saves."""


def _planes(x: Array, block: Block, name: str) -> Array:
    """(channels, pixels) of one block of a dense array (N, C, H, W), in the compute dtype; a view where it can be."""
    n, c, h, w = x.shape
    part = x[block.n0 : block.n1, :, block.h0 : block.h1]
    if block.images == 1:
        if not is_widened(x.dtype):
            return x.reshape(n, c, h * w)[block.n0, :, block.h0 * w : block.h1 * w]
        return load(part[0], name).reshape(c, -1)
    gathered = scratch(name + ".gathered", (c, block.images, block.rows, w), x.dtype)
    np.copyto(gathered, part.transpose(1, 0, 2, 3))
    return load(gathered, name).reshape(c, -1)


def _columns(
    x: Array, block: Block, kernel: tuple[int, int], stride: int, pad: int, q: int, out: Array | None = None
) -> Array:
    """im2col of one block: (C * R * S, pixels) in the compute dtype. `out`, for kernels other than 1x1: where to write
    it."""
    (r, s), c = kernel, x.shape[1]
    n, rows = block.images, block.rows
    if (r, s, pad, stride) == (1, 1, 0, 1):
        return _planes(x, block, "conv.x")
    dtype = compute_dtype(x.dtype)
    if (r, s, pad) == (1, 1, 0):
        rows_of_x = slice(block.h0 * stride, (block.h1 - 1) * stride + 1, stride)
        part = x[block.n0 : block.n1, :, rows_of_x, : (q - 1) * stride + 1 : stride]
        dense = scratch("conv.dense", (c, n, rows, q), x.dtype)
        np.copyto(dense, part.transpose(1, 0, 2, 3))
        return load(dense, "conv.x").reshape(c, -1)
    height, width = (rows - 1) * stride + r, (q - 1) * stride + s
    top = block.h0 * stride - pad
    low, high = max(0, top), min(x.shape[2], top + height)
    right = min(x.shape[3], width - pad)
    padded = scratch("conv.padded", (n, c, height, width), dtype)
    padded[:, :, : low - top] = 0
    padded[:, :, high - top :] = 0
    padded[:, :, :, :pad] = 0
    padded[:, :, :, pad + right :] = 0
    inner = x[block.n0 : block.n1, :, low:high, :right]
    padded[:, :, low - top : high - top, pad : pad + right] = load(inner, "conv.x")
    image, plane, row, item = padded.strides
    windows = np.lib.stride_tricks.as_strided(
        padded, (c, r, s, n, rows, q), (plane, row, item, image, stride * row, stride * item), writeable=False
    )
    columns = scratch("conv.columns", windows.shape, dtype) if out is None else out.reshape(windows.shape)
    np.copyto(columns, windows)
    return columns.reshape(c * r * s, n * rows * q)


def _column_source(
    x: Array, blocks: list[Block], kernel: tuple[int, int], stride: int, pad: int, p: int, q: int
) -> Callable[[Block], Array]:
    """`_columns` of any of `blocks`.

    Where several of them take the same whole images, im2col runs once, ahead, on all threads. Else small maps would
    repeat it, in NCHW by inner loops of a few pixels, for every part of the channels: a step at 64x64, batch 16, took
    595 ms, not 517. (In NHWC, whose inner loops are long, it gained 1%.)
    """
    (r, s), c, n = kernel, x.shape[1], x.shape[0]
    shareable = any(block.k0 > 0 for block in blocks) and all(block.rows == p for block in blocks)
    if (r, s, pad) == (1, 1, 0) or not shareable:
        return lambda block: _columns(x, block, kernel, stride, pad, q)
    size = p * q * c * r * s
    memory = scratch("conv.shared", (n * size,), compute_dtype(x.dtype))

    def shared(block: Block) -> Array:
        return memory[block.n0 * size : block.n1 * size].reshape(c * r * s, -1)

    def compute(part: Block) -> None:
        """One block's pixels, of the input channels [k0, k1)."""
        out = shared(part)[part.k0 * r * s : part.k1 * r * s]
        _columns(x[:, part.k0 : part.k1], part, kernel, stride, pad, q, out)

    whole = [Block(block.n0, block.n1, 0, p) for block in blocks if block.k0 == 0]
    parallel.run(compute, with_channels(whole, c))
    return shared


def _pixels(kernel: tuple[int, int], c: int) -> int:
    if kernel == (1, 1):
        return PIXELS_1X1
    return max(MIN_PIXELS, COLUMNS_ELEMENTS // (kernel[0] * kernel[1] * c))


def fprop(x: Array, w: Array, y: Array, stride: int, pad: int, addend: Array | None = None) -> None:
    """y = x * w; with `addend` (of y's shape) + addend."""
    k, c, r, s = w.shape
    n, _, p, q = y.shape
    dtype = compute_dtype(x.dtype)
    weights = half.cast(w, dtype).reshape(k, c * r * s)  # a transposed view stays one if 1x1
    blocks = with_channels(pixel_blocks(n, p, q, _pixels((r, s), c)), k)
    columns_of = _column_source(x, blocks, (r, s), stride, pad, p, q)

    def compute(block: Block) -> None:
        columns = columns_of(block)
        matrix = weights[block.k0 : block.k1]
        out = y[block.n0 : block.n1, block.k0 : block.k1, block.h0 : block.h1]
        direct = block.images == 1 and x.dtype == dtype
        if direct:
            product = y.reshape(n, k, p * q)[block.n0, block.k0 : block.k1, block.h0 * q : block.h1 * q]
        else:
            product = scratch("conv.product", (matrix.shape[0], columns.shape[1]), dtype)
        np.matmul(matrix, columns, out=product)
        total = out if direct else product.reshape(-1, block.images, block.rows, q).transpose(1, 0, 2, 3)
        if addend is not None:
            more = addend[block.n0 : block.n1, block.k0 : block.k1, block.h0 : block.h1]
            np.add(total, load(more, "conv.addend"), out=total)
        if not direct:
            store(total, out)

    parallel.run(compute, blocks)


def dgrad(gy: Array, w: Array, gx: Array, stride: int, pad: int, addend: Array | None = None) -> None:
    """gx, the gradient of x; with `addend` (another gradient of x) their sum."""
    k, _, r, s = w.shape
    weights = half.cast(w, compute_dtype(w.dtype))
    if (r, s, stride, pad) == (1, 1, 1, 0):
        fprop(gy, weights.transpose(1, 0, 2, 3), gx, 1, 0, addend)
    elif stride == 1 and r == s and pad < r and gy.size // k >= FLIP_ABOVE * k:
        flipped = np.ascontiguousarray(weights[:, :, ::-1, ::-1].transpose(1, 0, 2, 3))
        fprop(gy, flipped, gx, 1, r - 1 - pad, addend)
    else:
        _dgrad_by_image(gy, weights, gx, stride, pad, addend)


def _dgrad_by_image(gy: Array, w: Array, gx: Array, stride: int, pad: int, addend: Array | None) -> None:
    """dgrad by one product for all places in the filter, added where they belong; for any geometry."""
    k, c, r, s = w.shape
    n, _, height, width = gx.shape
    p, q = gy.shape[2:]
    dtype = w.dtype
    weights = w.reshape(k, c * r * s)
    full_h, full_w = max(height + pad, (p - 1) * stride + r), max(width + pad, (q - 1) * stride + s)
    direct = gx.dtype == dtype and (pad, full_h, full_w) == (0, height, width)

    def compute(block: Block) -> None:
        # Whole images, so that no two blocks add to the same pixel.
        pixels = _planes(gy, Block(block.n0, block.n1, 0, p), "conv.x")
        matrix = weights[:, block.k0 * r * s : block.k1 * r * s]
        columns = scratch("conv.columns", (matrix.shape[1], pixels.shape[1]), dtype)
        np.matmul(matrix.T, pixels, out=columns)
        windows = columns.reshape(-1, r, s, block.images, p, q)
        out = gx[block.n0 : block.n1, block.k0 : block.k1]
        padded = out if direct else scratch("conv.padded", (block.images, windows.shape[0], full_h, full_w), dtype)
        padded[...] = 0
        for i in range(r):
            for j in range(s):
                part = padded[:, :, i : i + (p - 1) * stride + 1 : stride, j : j + (q - 1) * stride + 1 : stride]
                np.add(part, windows[:, i, j].transpose(1, 0, 2, 3), out=part)
        part = padded[:, :, pad : pad + height, pad : pad + width]
        if addend is not None:
            np.add(part, load(addend[block.n0 : block.n1, block.k0 : block.k1], "conv.addend"), out=part)
        if not direct:
            store(part, out)

    parallel.run(compute, with_channels(pixel_blocks(n, 1, 1, max(1, WHOLE_IMAGES // (p * q))), c))


def wgrad(x: Array, gy: Array, gw: Array, stride: int, pad: int) -> None:
    """gw, the gradient of w."""
    n, k, p, q = gy.shape
    kernel = gw.shape[2:]
    dtype = compute_dtype(x.dtype)
    blocks = with_channels(pixel_blocks(n, p, q, WGRAD_PIXELS), k)
    firsts = [i for i, block in enumerate(blocks) if block.k0 == 0]
    place = {(blocks[i].n0, blocks[i].h0): number for number, i in enumerate(firsts)}
    partials = partials_of(len(firsts), gw, dtype)
    columns_of = _column_source(x, blocks, kernel, stride, pad, p, q)

    def compute(block: Block) -> None:
        columns = columns_of(block)
        rows = _planes(gy[:, block.k0 : block.k1], block, "conv.gy")
        out = partials[place[block.n0, block.h0], block.k0 : block.k1]
        np.matmul(rows, columns.T, out=out)

    parallel.run(compute, blocks)
    sum_partials(partials, gw)
