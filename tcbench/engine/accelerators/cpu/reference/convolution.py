"""Convolution as matrix products of filters (K, features) and columns (features, pixels), a few images at a time.

A feature is a channel at a tap of the filter, in the order in which filters are stored. In NHWC the matrices' memory
has the order of their transposes, which BLAS takes as well."""

import itertools
from typing import NamedTuple

import numpy as np

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference import half, im2col
from tcbench.engine.accelerators.cpu.reference.half import cast_into, compute_dtype, is_widened, load
from tcbench.engine.accelerators.cpu.threads import Array, scratch
from tcbench.engine.work import Conv2d, ConvDgrad, ConvDgradAdd, ConvFprop, ConvFpropStats, ConvWgrad
from tcbench.engine.work.base import Layout

COLUMNS = 1 << 19
"""Values of columns that a block has, about."""
MIN_PIXELS = 384
"""A block of small maps has so many pixels, for each reads the whole filter."""
MIN_TASKS = 4
"""Small layers are cut along channels too, so that a few threads find work."""
MIN_CHANNELS = 32
"""No part has fewer channels: ResNet's narrowest layers, of 64, still make two."""


class _Tile(NamedTuple):
    """What one task computes: some channels of some images."""

    images: slice
    channels: slice

    def of(self, layout: Layout, array: Array) -> Array:
        """The block's part of an array of images."""
        return array[self] if layout == "NCHW" else array[self.images, :, :, self.channels]


def _blocks(conv: Conv2d, channels: int) -> list[_Tile]:
    """All images and channels in blocks, by the shape alone."""
    pixels = conv.p * conv.q
    at_once = max(COLUMNS // (pixels * conv.c * conv.r * conv.s), MIN_PIXELS // pixels, 1)
    images = threads.spans(conv.n, at_once)
    parts = min(-(-MIN_TASKS // len(images)), max(1, channels // MIN_CHANNELS))
    cuts = itertools.product(images, threads.spans(channels, -(-channels // parts)))
    return [_Tile(slice(*of_images), slice(*of_channels)) for of_images, of_channels in cuts]


def _matrix(layout: Layout, images: Array, name: str) -> Array:
    """(C, pixels) of images in the compute dtype; a view where it can be."""
    loaded = im2col.planes(layout, load(images, name))
    return loaded.reshape(len(loaded), -1)


def _columns(conv: Conv2d, images: Array) -> Array:
    """(features, pixels) of images, in the compute dtype."""
    if (conv.r, conv.s, conv.stride, conv.pad) == (1, 1, 1, 0):
        return _matrix(conv.layout, images, "conv.x")
    shape = (conv.c * conv.r * conv.s, len(images) * conv.p * conv.q)
    columns = scratch("conv.columns", shape if conv.layout == "NCHW" else shape[::-1], compute_dtype(images.dtype))
    source = im2col.windows(conv, im2col.padded(conv, load(images, "conv.x")))
    np.copyto(im2col.columns_by_tap(conv, len(images), columns), source)
    return columns if conv.layout == "NCHW" else columns.T


def _product(layout: Layout, a: Array, b: Array, out: Array, addend: Array | None) -> None:
    """out = a @ b (+ addend), rounded once; `out` and `addend` are (N, K, P, Q) as the layout stores them."""
    target = im2col.planes(layout, out)
    k, n, p, q = target.shape
    total = target
    if is_widened(out.dtype):
        total = im2col.planes(layout, scratch("conv.product", out.shape, a.dtype))
    if layout == "NCHW" and n > 1:
        total = scratch("conv.product", (k, n, p, q), a.dtype)
    np.matmul(a, b, out=total.reshape(k, -1))
    if addend is not None:
        np.add(total, im2col.planes(layout, load(addend, "conv.addend")), out=total)
    im2col.store(total, target)


def fprop(work: ConvFprop | ConvFpropStats, x: Array, w: Array, y: Array) -> None:
    """See ConvFprop."""
    conv = work.conv
    weights = half.cast(w, compute_dtype(w.dtype)).reshape(conv.k, -1)

    def compute(block: _Tile) -> None:
        columns = _columns(conv, x[block.images])
        _product(conv.layout, weights[block.channels], columns, block.of(conv.layout, y), None)

    threads.run(compute, _blocks(conv, conv.k))


def dgrad(work: ConvDgrad | ConvDgradAdd, gy: Array, w: Array, *rest: Array) -> None:
    """See ConvDgrad and ConvDgradAdd."""
    conv, layout = work.conv, work.conv.layout
    *addend, gx = rest
    weights = half.cast(w, compute_dtype(w.dtype))
    # (R, S, K, C): a matrix for each tap.
    taps = np.ascontiguousarray(weights.transpose(2, 3, 0, 1)) if layout == "NCHW" else weights.transpose(1, 2, 0, 3)

    def compute(block: _Tile) -> None:
        gradients = _matrix(layout, gy[block.images], "conv.gy")
        out = block.of(layout, gx)
        more = block.of(layout, addend[0]) if addend else None
        if (conv.r, conv.s, conv.stride, conv.pad) == (1, 1, 1, 0):
            _product(layout, taps[0, 0, :, block.channels].T, gradients, out, more)
            return
        total = im2col.padded_zeros(conv, out)
        sums = im2col.windows(conv, total)
        shape = (len(total), gradients.shape[1])
        product = scratch("conv.product", shape if layout == "NCHW" else shape[::-1], gradients.dtype)
        product = product if layout == "NCHW" else product.T
        for i, j in np.ndindex(conv.r, conv.s):
            np.matmul(taps[i, j, :, block.channels].T, gradients, out=product)
            part = sums[:, i, j]
            np.add(part, product.reshape(part.shape), out=part)
        kept = im2col.inside(conv, total)
        if more is not None:
            np.add(kept, im2col.planes(layout, load(more, "conv.addend")), out=kept)
        im2col.store(kept, im2col.planes(layout, out))

    threads.run(compute, _blocks(conv, conv.c))


def wgrad(work: ConvWgrad, x: Array, gy: Array, gw: Array) -> None:
    """Partial sums of each block of images, added in order and rounded once."""
    conv = work.conv
    blocks = _blocks(conv, conv.k)
    firsts = [block.images.start for block in blocks if block.channels.start == 0]
    dtype = compute_dtype(x.dtype)
    shape = (len(firsts), conv.k, conv.c * conv.r * conv.s)
    alone = len(firsts) == 1 and gw.dtype == dtype
    partials = gw.reshape(shape) if alone else np.empty(shape, dtype)

    def compute(block: _Tile) -> None:
        columns = _columns(conv, x[block.images])
        gradients = _matrix(conv.layout, block.of(conv.layout, gy), "conv.gy")
        np.matmul(gradients, columns.T, out=partials[firsts.index(block.images.start), block.channels])

    threads.run(compute, blocks)
    if not alone:
        cast_into(partials[0] if len(firsts) == 1 else partials.sum(axis=0), gw)
