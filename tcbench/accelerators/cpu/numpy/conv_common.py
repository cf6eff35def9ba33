"""Geometry shared by the two layouts' convolution kernels, and how they cut their work into matrix products."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from tcbench.accelerators.cpu.numpy import parallel
from tcbench.accelerators.cpu.numpy.half import cast_into, convert
from tcbench.accelerators.cpu.numpy.parallel import Array, scratch

MIN_TASKS = 4
"""Small layers are cut along output channels too, so that a few threads find work."""
MIN_COLUMNS = 32
"""No part has fewer channels: ResNet's narrowest layers, of 64, still make two."""


@dataclass(frozen=True)
class Block:
    """Output pixels [h0, h1) x all columns of images [n0, n1), and matrix columns (channels) [k0, k1).

    Either whole images, or rows of one image.
    """

    n0: int
    n1: int
    h0: int
    h1: int
    k0: int = 0
    k1: int = 0

    @property
    def images(self) -> int:
        return self.n1 - self.n0

    @property
    def rows(self) -> int:
        return self.h1 - self.h0


def pixel_blocks(n: int, h: int, w: int, pixels: int) -> list[Block]:
    """The output's pixels in blocks of about `pixels`."""
    if h * w >= 2 * pixels:
        rows = parallel.spans(h, max(1, round(pixels / w)))
        return [Block(i, i + 1, h0, h1) for i in range(n) for h0, h1 in rows]
    return [Block(n0, n1, 0, h) for n0, n1 in parallel.spans(n, max(1, round(pixels / (h * w))))]


def with_channels(blocks: list[Block], channels: int) -> list[Block]:
    """Each block for all channels, cut along channels if there are few blocks."""
    parts = min(-(-MIN_TASKS // len(blocks)), max(1, channels // MIN_COLUMNS))
    return [
        Block(b.n0, b.n1, b.h0, b.h1, k0, k1)
        for b, (k0, k1) in itertools.product(blocks, parallel.spans(channels, -(-channels // parts)))
    ]


def store(source: Array, out: Array) -> None:
    """Copies, rounding to out's dtype; neither need be contiguous."""
    if source.dtype == out.dtype:
        np.copyto(out, source)
        return
    if not source.flags.c_contiguous:
        dense = scratch("conv.store", source.shape, source.dtype)
        np.copyto(dense, source)
        source = dense
    if out.flags.c_contiguous:
        convert(source, out)
    else:
        np.copyto(out, convert(source, scratch("conv.rounded", out.shape, out.dtype)))


def partials_of(n: int, out: Array, dtype: np.dtype) -> Array:
    """(n, size of out's first axis, the rest): where n partial sums of `out` are computed, in `dtype`. One of `out`'s
    own dtype is `out` itself."""
    shape = (n, out.shape[0], out.size // out.shape[0])
    return out.reshape(shape) if n == 1 and out.dtype == dtype else np.empty(shape, dtype)


def sum_partials(partials: Array, out: Array) -> None:
    """Their sum, added in order and rounded once, into `out`, unless they are `out`."""
    if np.may_share_memory(partials, out):
        return
    total = partials[0] if len(partials) == 1 else partials.sum(axis=0)
    cast_into(total, out)
