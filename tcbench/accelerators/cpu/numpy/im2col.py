"""im2col and col2im, a few images at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tcbench.accelerators.cpu.numpy import parallel
from tcbench.accelerators.cpu.numpy.half import compute_dtype, convert, load
from tcbench.accelerators.cpu.numpy.parallel import Array, scratch
from tcbench.work import Col2im, Conv2d, Im2col

_COLUMNS = 1 << 18
"""Values of columns that are laid out at a time, at least. With less in a call of NumPy two threads take longer than
one: after each call they wait for the interpreter lock."""


def im2col(work: Im2col, x: Array, columns: Array) -> None:
    """See Im2col."""
    conv, images_of = work.conv, _images(work.conv, columns)

    def compute(images: slice) -> None:
        padded = x[images]
        if conv.pad:
            padded, inside = _padded(conv, len(padded), x.dtype)
            padded[...] = 0
            inside[...] = x[images]
        np.copyto(images_of(images), _windows(conv, padded))

    parallel.run(compute, _chunks(conv))


def col2im(work: Col2im, gcolumns: Array, gx: Array) -> None:
    """See Col2im."""
    conv, images_of = work.conv, _images(work.conv, gcolumns)

    def compute(images: slice) -> None:
        result = gx[images]
        dtype = compute_dtype(gx.dtype)
        direct = not conv.pad and gx.dtype == dtype
        padded, inside = (result, result) if direct else _padded(conv, len(result), dtype)
        windows, gradients = _windows(conv, padded), images_of(images)
        padded[...] = 0
        for r in range(conv.r):
            for s in range(conv.s):
                tap = (slice(None), slice(None), r, s) if conv.layout == "NCHW" else (..., r, s, slice(None))
                part = windows[tap]
                np.add(part, load(gradients[tap], "im2col.tap"), out=part)
        if inside.dtype == gx.dtype and not direct:
            np.copyto(result, inside)
        elif not direct:
            dense = scratch("im2col.dense", inside.shape, inside.dtype)
            np.copyto(dense, inside)
            convert(dense, result)

    parallel.run(compute, _chunks(conv))


def _chunks(conv: Conv2d) -> list[slice]:
    of_an_image = conv.p * conv.q * conv.c * conv.r * conv.s
    return [slice(*span) for span in parallel.spans(conv.n, -(-_COLUMNS // of_an_image))]


def _padded(conv: Conv2d, n: int, dtype: np.dtype) -> tuple[Array, Array]:
    """This thread's memory for images with their padding, and the images' part of it; both as the layout has them."""
    pad = slice(conv.pad, conv.pad + conv.h), slice(conv.pad, conv.pad + conv.w)
    height, width = conv.h + 2 * conv.pad, conv.w + 2 * conv.pad
    if conv.layout == "NCHW":
        padded = scratch("im2col.padded", (n, conv.c, height, width), dtype)
        return padded, padded[(..., *pad)]
    padded = scratch("im2col.padded", (n, height, width, conv.c), dtype)
    return padded, padded[(slice(None), *pad)]


def _images(conv: Conv2d, columns: Array) -> Callable[[slice], Array]:
    """A view of some images' columns, with the places of the filter as axes."""
    if conv.layout == "NHWC":
        by_image = columns.reshape(conv.n, *_by_tap(conv))
        return lambda images: by_image[images]
    by_channel = columns.reshape(conv.c, conv.r, conv.s, conv.n, conv.p, conv.q)
    return lambda images: by_channel[:, :, :, images].transpose(3, 0, 1, 2, 4, 5)


def _by_tap(conv: Conv2d) -> tuple[int, ...]:
    """The shape of an image's columns with the places of the filter as axes."""
    if conv.layout == "NCHW":
        return conv.c, conv.r, conv.s, conv.p, conv.q
    return conv.p, conv.q, conv.r, conv.s, conv.c


def _windows(conv: Conv2d, padded: Array) -> Array:
    """A view of padded images, of that shape; pixels that several windows share are several times in it."""
    step = conv.stride
    if conv.layout == "NCHW":
        image, plane, row, item = padded.strides
        strides = (image, plane, row, item, step * row, step * item)
    else:
        image, row, pixel, item = padded.strides
        strides = (image, step * row, step * pixel, row, pixel, item)
    return np.lib.stride_tricks.as_strided(padded, (len(padded), *_by_tap(conv)), strides)
