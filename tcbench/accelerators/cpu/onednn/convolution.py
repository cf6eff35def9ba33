"""The three passes of a convolution: oneDNN's convolution, or its matrix product where a convolution is one."""

from __future__ import annotations

import dataclasses

from tcbench.accelerators.cpu.onednn.library import (
    CONVOLUTION_DIRECT,
    DIFF_DST,
    DIFF_SRC,
    DIFF_WEIGHTS,
    DST,
    FORWARD_TRAINING,
    SRC,
    WEIGHTS,
    Descriptor,
    Engine,
    Operand,
    Primitive,
    Unimplemented,
    contiguous,
    dims,
)
from tcbench.accelerators.cpu.onednn.tuning import REFERENCE, Choice, descriptions, fastest
from tcbench.work import ITEM_BYTES, Conv2d, ConvDgrad, ConvFprop, ConvWgrad

_Pass = ConvFprop | ConvDgrad | ConvWgrad

MIN_ROWS = 16
"""Of a slice of a matrix: one register of float32."""


def fprop(engine: Engine, work: ConvFprop) -> Choice:
    """y of x and w."""
    return _fastest(engine, work, (SRC, "x"), (WEIGHTS, "w"), (DST, "y"))


def dgrad(engine: Engine, work: ConvDgrad) -> Choice:
    """gx of gy and w."""
    return _fastest(engine, work, (DIFF_DST, "y"), (WEIGHTS, "w"), (DIFF_SRC, "x"))


def wgrad(engine: Engine, work: ConvWgrad) -> Choice:
    """gw of x and gy."""
    return _fastest(engine, work, (SRC, "x"), (DIFF_DST, "y"), (DIFF_WEIGHTS, "w"))


def _fastest(engine: Engine, work: _Pass, *arguments: tuple[int, str]) -> Choice:
    """Of arguments by index, with the array that each is; the last is written."""
    slices = engine.slices(work.conv.n)
    part = dataclasses.replace(work.conv, n=work.conv.n // slices)
    stored = _stored(engine, part, part.dtype)
    operands = [
        Operand(index, stored[name], written=i == len(arguments) - 1, step=0 if name == "w" else stored[name].bytes)
        for i, (index, name) in enumerate(arguments)
    ]
    made = [
        engine.primitive(described, operands, slices) for described in _convolutions(engine, work, part, slices > 1)
    ]
    whole = _stored(engine, work.conv, work.conv.dtype)
    return fastest([*made, *_product(engine, work)], [whole[name].bytes for _, name in arguments])


def _stored(engine: Engine, conv: Conv2d, dtype: str) -> dict[str, Descriptor]:
    """The descriptors of a convolution's arrays, as they are stored."""
    every = {
        "x": (conv.n, conv.c, conv.h, conv.w),
        "w": (conv.k, conv.c, conv.r, conv.s),
        "y": (conv.n, conv.k, conv.p, conv.q),
    }
    return {name: engine.descriptor(dtype, sizes, strides(conv.layout, sizes)) for name, sizes in every.items()}


def strides(layout: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in values, of an array of logical sizes (N, C, H, W) that is stored in a layout."""
    _, c, h, w = sizes
    return contiguous(sizes) if layout == "NCHW" else (h * w * c, 1, w * c, c)


def _convolutions(engine: Engine, work: _Pass, conv: Conv2d, partial: bool) -> tuple[int, ...]:
    """Of one slice. Activations stay in the layout in which they are stored; filters have the one that oneDNN prefers.
    `partial`: gradients of filters that are still to be added up stay in float32."""

    def describe(dtype: str) -> int:
        stored = _stored(engine, conv, dtype)
        x, y = stored["x"].handle, stored["y"].handle
        sizes = (conv.k, conv.c, conv.r, conv.s)
        w = engine.descriptor(dtype, sizes).handle
        window = dims((conv.stride,) * 2), dims((0, 0)), dims((conv.pad,) * 2), dims(_pad_after(conv))
        forward = engine.describe(
            "convolution_forward", FORWARD_TRAINING, CONVOLUTION_DIRECT, x, w, None, y, *window, engine.plain
        )
        if isinstance(work, ConvDgrad):
            return engine.describe(
                "convolution_backward_data", CONVOLUTION_DIRECT, x, w, y, *window, forward, engine.plain
            )
        if isinstance(work, ConvWgrad):
            gw = engine.descriptor("float32", sizes).handle if partial else w
            return engine.describe(
                "convolution_backward_weights", CONVOLUTION_DIRECT, x, gw, None, y, *window, forward, engine.plain
            )
        return forward

    return descriptions(engine, conv.dtype, describe)


def _pad_after(conv: Conv2d) -> tuple[int, int]:
    """oneDNN counts the padding that the last windows reach, which may be less than there is before the first."""
    return (
        (conv.p - 1) * conv.stride + conv.r - conv.h - conv.pad,
        (conv.q - 1) * conv.stride + conv.s - conv.w - conv.pad,
    )


def _product(engine: Engine, work: _Pass) -> list[Primitive]:
    """The same as a matrix product, whose filters need no other layout, where the window is a single pixel. Slices are
    of the larger array: of pixels, or of filters where these are more memory. Without oneDNN's reference, which takes
    seconds for a product."""
    conv = work.conv
    if (conv.r, conv.s, conv.stride, conv.pad) != (1, 1, 1, 0) or (conv.layout == "NCHW" and conv.h * conv.w > 1):
        return []
    pixels, c, k = conv.n * conv.h * conv.w, conv.c, conv.k
    by_filters = isinstance(work, ConvWgrad) or k * c > pixels * (k + c)
    cut = pixels if not by_filters else c if isinstance(work, ConvDgrad) else k
    slices = engine.slices(cut // MIN_ROWS) if cut % MIN_ROWS == 0 else 1
    part = cut // slices
    item = ITEM_BYTES[conv.dtype]

    def matrix(index: int, rows: int, columns: int, ld: int, step: int = 0, written: bool = False) -> Operand:
        return Operand(index, engine.descriptor(conv.dtype, (rows, columns), (ld, 1)), written, step * item)

    def transposed(index: int, rows: int, columns: int, ld: int, step: int = 0) -> Operand:
        """Of a matrix that is stored as (rows, columns)."""
        return Operand(index, engine.descriptor(conv.dtype, (columns, rows), (1, ld)), step=step * item)

    if isinstance(work, ConvWgrad):
        operands = (
            matrix(WEIGHTS, pixels, c, c),
            transposed(SRC, pixels, part, k, part),
            matrix(DST, part, c, c, part * c, written=True),
        )
    elif isinstance(work, ConvFprop) and by_filters:
        operands = (
            matrix(SRC, pixels, c, c),
            transposed(WEIGHTS, part, c, c, part * c),
            matrix(DST, pixels, part, k, part, written=True),
        )
    elif isinstance(work, ConvFprop):
        operands = (
            matrix(SRC, part, c, c, part * c),
            transposed(WEIGHTS, k, c, c),
            matrix(DST, part, k, k, part * k, written=True),
        )
    elif by_filters:
        operands = (
            matrix(SRC, pixels, k, k),
            matrix(WEIGHTS, k, part, c, part),
            matrix(DST, pixels, part, c, part, written=True),
        )
    else:
        operands = (
            matrix(SRC, part, k, k, part * k),
            matrix(WEIGHTS, k, c, c),
            matrix(DST, part, c, c, part * c, written=True),
        )
    stored = {operand.index: operand.stored.handle for operand in operands}
    try:
        described = engine.describe("matmul", stored[SRC], stored[WEIGHTS], None, stored[DST], engine.plain)
    except Unimplemented:
        return []
    if engine.implementation(described).startswith(REFERENCE):
        return []
    return [engine.primitive(described, operands, slices)]
