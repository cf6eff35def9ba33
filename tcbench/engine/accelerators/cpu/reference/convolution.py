"""Convolutions as matrix products of filters (K, features) and im2col columns (features, pixels).

A feature is a channel at one tap of the filter; features are in the order in which filters are stored. In NHWC the
columns are stored as their transpose, which BLAS accepts as well."""

from collections.abc import Callable

import numpy as np

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.maps import from_planes, planes, taps
from tcbench.engine.accelerators.cpu.reference.operands import Operands, computes
from tcbench.engine.accelerators.cpu.threads import Array

_COLUMNS = 1 << 21
"""Values of columns that one thread computes at a time, unless a single image has more."""
_PARTS, _PIXELS = 4, 128
"""The batch is cut into at least _PARTS parts, unless a part then has fewer than _PIXELS pixels: each part reads all
filters."""


@computes(w.ConvFprop, w.ConvFpropStats)
def fprop(work: w.ConvFprop | w.ConvFpropStats, a: Operands) -> None:
    """Compute y = filters @ columns of x, and for ConvFpropStats the sums of y and y * y per channel."""
    conv, weights = work.conv, _filters(work.conv, a)

    def compute(part: Operands) -> tuple[Array, ...]:
        y = _product(conv, weights, _columns(conv, part.x))
        part.write(y=from_planes(conv.layout, y.reshape(conv.k, -1, conv.p, conv.q)))
        return (y.sum(1, np.float64), (y * y).sum(1, np.float64)) if "sum" in a else ()

    sums = threads.collect(compute, a.cut("x y", _images(conv)))
    if "sum" in a:
        total, squares = map(sum, zip(*sums, strict=True))
        a.write(sum=total, square_sum=squares)


@computes(w.ConvDgrad, w.ConvDgradAdd)
def dgrad(work: w.ConvDgrad | w.ConvDgradAdd, a: Operands) -> None:
    """Compute gx = col2im(filters.T @ gy), plus `other` for ConvDgradAdd."""
    conv, weights = work.conv, _filters(work.conv, a)

    def compute(part: Operands) -> None:
        gx = _from_columns(conv, _product(conv, weights.T, _matrix(conv, part.gy)))
        part.write(gx=gx + part.other if "other" in a else gx)

    threads.run(compute, a.cut("gy other gx", _images(conv)))


@computes(w.ConvWgrad)
def wgrad(work: w.ConvWgrad, a: Operands) -> None:
    """Compute gw = gy @ columns.T, summed over parts of the batch in a fixed order."""
    conv = work.conv
    parts = a.cut("x gy", _images(conv))
    sums = threads.collect(lambda part: _matrix(conv, part.gy) @ _columns(conv, part.x).T, parts)
    a.write(gw=sum(sums[1:], sums[0]).reshape(conv.w_shape))


@computes(w.Im2col)
def im2col(work: w.Im2col, a: Operands) -> None:
    """Compute the columns of x."""
    by_tap = _by_tap(work.conv, a.raw("columns"))
    _in_parts(work.conv, lambda images: _fill(work.conv, a.raw("x")[images], by_tap[:, :, :, images]))


@computes(w.Col2im)
def col2im(work: w.Col2im, a: Operands) -> None:
    """Compute gx: each pixel is the sum over its copies in the columns."""
    by_tap, gx = _by_tap(work.conv, a.gcolumns), a.raw("gx")
    if gx.dtype != by_tap.dtype:
        gx = np.empty(gx.shape, by_tap.dtype)
    _in_parts(work.conv, lambda images: _sum(work.conv, by_tap[:, :, :, images], gx[images]))
    a.write(gx=gx)


def _images(conv: w.Conv2d) -> int:
    """Return how many images one thread processes at a time. It depends on the shape only, so that results do not
    depend on the number of threads."""
    pixels = conv.p * conv.q
    return max(1, min(-(-conv.n // _PARTS), _COLUMNS // (pixels * conv.c * conv.r * conv.s)), _PIXELS // pixels)


def _in_parts(conv: w.Conv2d, compute: Callable[[slice], None]) -> None:
    """Call `compute` for each part of the batch, on several threads."""
    threads.run(lambda span: compute(slice(*span)), threads.spans(conv.n, _images(conv)))


def _filters(conv: w.Conv2d, a: Operands) -> Array:
    """Return the filters (K, features)."""
    return a.w.reshape(conv.k, -1)


def _matrix(conv: w.Conv2d, images: Array) -> Array:
    """Return images as (C, pixels)."""
    channels_first = planes(conv.layout, images)
    return channels_first.reshape(len(channels_first), -1)


def _product(conv: w.Conv2d, left: Array, right: Array) -> Array:
    """Return left @ right, stored in the order of the layout."""
    return left @ right if conv.layout == "NCHW" else (right.T @ left.T).T


def _columns(conv: w.Conv2d, images: Array) -> Array:
    """Return the columns (features, pixels) of images."""
    shape = (conv.c * conv.r * conv.s, len(images) * conv.p * conv.q)
    stored = np.empty(shape if conv.layout == "NCHW" else shape[::-1], images.dtype)
    _fill(conv, images, _by_tap(conv, stored))
    return stored if conv.layout == "NCHW" else stored.T


def _from_columns(conv: w.Conv2d, columns: Array) -> Array:
    """Return images of which each pixel is the sum over its copies in the columns (features, pixels)."""
    by_tap = _by_tap(conv, columns if conv.layout == "NCHW" else columns.T)
    images = np.empty(w.stored(conv.layout, by_tap.shape[3], conv.c, conv.h, conv.w), columns.dtype)
    _sum(conv, by_tap, images)
    return images


def _by_tap(conv: w.Conv2d, stored: Array) -> Array:
    """Return stored columns as a view (C, R, S, N, P, Q)."""
    if conv.layout == "NCHW":
        return stored.reshape(conv.c, conv.r, conv.s, -1, conv.p, conv.q)
    return stored.reshape(-1, conv.p, conv.q, conv.r, conv.s, conv.c).transpose(5, 3, 4, 0, 1, 2)


def _fill(conv: w.Conv2d, images: Array, by_tap: Array) -> None:
    """Fill columns with the pixel under each filter tap at each output, or 0 outside the image."""
    if conv.pad:
        by_tap[...] = 0
    for r, s, outputs, pixels in taps(conv):
        by_tap[:, r, s][outputs] = planes(conv.layout, images)[pixels]


def _sum(conv: w.Conv2d, by_tap: Array, images: Array) -> None:
    """Set each pixel to the sum over its copies in the columns."""
    images[...] = 0
    for r, s, outputs, pixels in taps(conv):
        planes(conv.layout, images)[pixels] += by_tap[:, r, s][outputs]
