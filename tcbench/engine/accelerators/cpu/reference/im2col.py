"""im2col and col2im, a few images at a time.

Images are looked at as planes, (C, N, H, W), and columns by tap, (C, R, S, N, P, Q), whatever the layout; their memory
has the layout's order."""

from typing import Any

import numpy as np

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.half import compute_dtype, convert, load
from tcbench.engine.accelerators.cpu.threads import Array, scratch
from tcbench.engine.work import Col2im, Conv2d, Im2col
from tcbench.engine.work.base import Layout, stored

_COLUMNS = 1 << 18
"""Values of columns that are laid out at a time, at least. With less in a call of NumPy two threads take longer than
one: after each call they wait for the interpreter lock."""


def im2col(work: Im2col, x: Array, columns: Array) -> None:
    """See Im2col."""
    by_tap = columns_by_tap(work.conv, work.conv.n, columns)
    threads.run(
        lambda images: np.copyto(by_tap[:, :, :, images], windows(work.conv, padded(work.conv, x[images]))),
        _chunks(work.conv),
    )


def col2im(work: Col2im, gcolumns: Array, gx: Array) -> None:
    """See Col2im."""
    conv = work.conv
    by_tap = columns_by_tap(conv, conv.n, gcolumns)

    def compute(images: slice) -> None:
        total = padded_zeros(conv, gx[images])
        sums, gradients = windows(conv, total), by_tap[:, :, :, images]
        for i, j in np.ndindex(conv.r, conv.s):
            part = sums[:, i, j]
            np.add(part, load(gradients[:, i, j], "im2col.tap"), out=part)
        store(inside(conv, total), planes(conv.layout, gx[images]))

    threads.run(compute, _chunks(conv))


def _chunks(conv: Conv2d) -> list[slice]:
    of_an_image = conv.p * conv.q * conv.c * conv.r * conv.s
    return [slice(*span) for span in threads.spans(conv.n, -(-_COLUMNS // of_an_image))]


def planes(layout: Layout, images: Array) -> Array:
    """A view (C, N, H, W) of images stored in the layout."""
    return images.transpose((1, 0, 2, 3) if layout == "NCHW" else (3, 0, 1, 2))


def columns_by_tap(conv: Conv2d, n: int, columns: Array) -> Array:
    """A view (C, R, S, n, P, Q) of the columns of n images: (C * R * S, n * P * Q) in NCHW, (n * P * Q, R * S * C) in
    NHWC."""
    if conv.layout == "NCHW":
        return columns.reshape(conv.c, conv.r, conv.s, n, conv.p, conv.q)
    return columns.reshape(n, conv.p, conv.q, conv.r, conv.s, conv.c).transpose(5, 3, 4, 0, 1, 2)


def windows(conv: Conv2d, padded: Array) -> Array:
    """A view (C, R, S, N, P, Q) of padded planes: what each tap of the filter meets. Pixels that several windows share
    are in it several times."""
    c, n = padded.shape[:2]
    plane, image, row, item = padded.strides
    step = conv.stride
    return np.lib.stride_tricks.as_strided(
        padded, (c, conv.r, conv.s, n, conv.p, conv.q), (plane, row, item, image, step * row, step * item)
    )


def padded(conv: Conv2d, images: Array) -> Array:
    """Planes of images, with zeros around them where the convolution pads, in their own dtype."""
    if not conv.pad:
        return planes(conv.layout, images)
    with_padding = _padding(conv, images, images.dtype)
    for edge in (slice(conv.pad), slice(-conv.pad, None)):
        with_padding[:, :, edge] = 0
        with_padding[..., edge] = 0
    inside(conv, with_padding)[...] = planes(conv.layout, images)
    return with_padding


def padded_zeros(conv: Conv2d, images: Array) -> Array:
    """Zeros for sums of images' gradients, with the padding: planes in the compute dtype; without either need, the
    images themselves."""
    dtype = compute_dtype(images.dtype)
    direct = not conv.pad and images.dtype == dtype
    zeros = planes(conv.layout, images) if direct else _padding(conv, images, dtype)
    zeros[...] = 0
    return zeros


def inside(conv: Conv2d, padded: Array) -> Array:
    """Padded planes without their padding."""
    pad = conv.pad
    return padded[:, :, pad : padded.shape[2] - pad, pad : padded.shape[3] - pad]


def _padding(conv: Conv2d, images: Array, dtype: np.dtype[Any]) -> Array:
    """Planes of this thread's own memory, for images with their padding."""
    c, n, height, width = planes(conv.layout, images).shape
    shape = stored(conv.layout, n, c, height + 2 * conv.pad, width + 2 * conv.pad)
    return planes(conv.layout, scratch("im2col.padded", shape, dtype))


def store(source: Array, out: Array) -> None:
    """Copies planes, rounding to out's dtype; nothing where they are the same memory."""
    if source.dtype == out.dtype:
        if not np.may_share_memory(source, out):
            np.copyto(out, source)
        return
    # The order of out's memory, so that conversion runs over contiguous values.
    order = np.argsort(out.strides)[::-1]
    source, out = source.transpose(order), out.transpose(order)
    if not source.flags.c_contiguous:
        dense = scratch("im2col.dense", source.shape, source.dtype)
        np.copyto(dense, source)
        source = dense
    if out.flags.c_contiguous:
        convert(source, out)
    else:
        np.copyto(out, convert(source, scratch("im2col.rounded", out.shape, out.dtype)))
