"""im2col and col2im, image by image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tcbench.accelerators.cpu.numpy import parallel
from tcbench.accelerators.cpu.numpy.half import compute_dtype, convert, load
from tcbench.accelerators.cpu.numpy.parallel import Array, scratch
from tcbench.work import Col2im, Conv2d, Im2col


def im2col(work: Im2col, x: Array, columns: Array) -> None:
    """See Im2col."""
    conv, image = work.conv, _images(work.conv, columns)

    def compute(i: int) -> None:
        padded = x[i]
        if conv.pad:
            padded, inside = _padded(conv, x.dtype)
            padded[...] = 0
            inside[...] = x[i]
        np.copyto(image(i), _windows(conv, padded))

    parallel.run(compute, range(conv.n))


def col2im(work: Col2im, gcolumns: Array, gx: Array) -> None:
    """See Col2im."""
    conv, image = work.conv, _images(work.conv, gcolumns)

    def compute(i: int) -> None:
        dtype = compute_dtype(gx.dtype)
        direct = not conv.pad and gx.dtype == dtype
        padded, inside = (gx[i], gx[i]) if direct else _padded(conv, dtype)
        windows, gradients = _windows(conv, padded), image(i)
        padded[...] = 0
        for r in range(conv.r):
            for s in range(conv.s):
                tap = (slice(None), r, s) if conv.layout == "NCHW" else (slice(None), slice(None), r, s)
                part = windows[tap]
                np.add(part, load(gradients[tap], "im2col.tap"), out=part)
        if inside.dtype == gx.dtype and not direct:
            gx[i] = inside
        elif not direct:
            dense = scratch("im2col.dense", inside.shape, inside.dtype)
            np.copyto(dense, inside)
            convert(dense, gx[i])

    parallel.run(compute, range(conv.n))


def _padded(conv: Conv2d, dtype: np.dtype) -> tuple[Array, Array]:
    """This thread's memory for an image with its padding, and the image's part of it; both as the layout has them."""
    pad = slice(conv.pad, conv.pad + conv.h), slice(conv.pad, conv.pad + conv.w)
    height, width = conv.h + 2 * conv.pad, conv.w + 2 * conv.pad
    if conv.layout == "NCHW":
        padded = scratch("im2col.padded", (conv.c, height, width), dtype)
        return padded, padded[(slice(None), *pad)]
    padded = scratch("im2col.padded", (height, width, conv.c), dtype)
    return padded, padded[pad]


def _images(conv: Conv2d, columns: Array) -> Callable[[int], Array]:
    """A view of one image's columns, with the places of the filter as axes."""
    if conv.layout == "NHWC":
        by_image = columns.reshape(conv.n, *_by_tap(conv))
        return lambda i: by_image[i]
    by_channel = columns.reshape(conv.c, conv.r, conv.s, conv.n, conv.p, conv.q)
    return lambda i: by_channel[:, :, :, i]


def _by_tap(conv: Conv2d) -> tuple[int, ...]:
    """The shape of an image's columns with the places of the filter as axes."""
    if conv.layout == "NCHW":
        return conv.c, conv.r, conv.s, conv.p, conv.q
    return conv.p, conv.q, conv.r, conv.s, conv.c


def _windows(conv: Conv2d, padded: Array) -> Array:
    """A view of a padded image, of that shape; pixels that several windows share are several times in it."""
    step = conv.stride
    if conv.layout == "NCHW":
        plane, row, item = padded.strides
        strides = (plane, row, item, step * row, step * item)
    else:
        row, pixel, item = padded.strides
        strides = (step * row, step * pixel, row, pixel, item)
    return np.lib.stride_tricks.as_strided(padded, _by_tap(conv), strides)
