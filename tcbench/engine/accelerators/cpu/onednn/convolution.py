"""The three passes of a convolution: oneDNN's convolution, or its matrix product where a convolution is one."""

import functools
from dataclasses import dataclass, replace

from tcbench.engine.accelerators.cpu.onednn import library
from tcbench.engine.accelerators.cpu.onednn.library import Binding, Descriptor, Engine, Unimplemented
from tcbench.engine.accelerators.cpu.onednn.tuning import Alternative, Choice, Unmade, descriptions, fastest
from tcbench.engine.accelerators.cpu.reference.operands import compute
from tcbench.engine.accelerators.cpu.threads import Array, scratch
from tcbench.engine.work import ITEM_BYTES, Col2im, Conv2d, ConvDgrad, ConvFprop, ConvWgrad, DType, Im2col
from tcbench.engine.work.im2col import product

_Pass = ConvFprop | ConvDgrad | ConvWgrad


def choose(engine: Engine, work: _Pass) -> Choice:
    """The fastest way to do it on this machine."""
    with engine.rooms_given_back():
        return fastest(engine, work, ways(engine, work))


def ways(engine: Engine, work: _Pass) -> list[Alternative]:
    """All that are considered, oneDNN's preferred one first; each takes the arrays in the order of `work.operands`."""
    return [
        *_by_images(engine, work),
        *_by_filters(engine, work),
        *_products(engine, work, work.conv.dtype),
        *_by_columns(engine, work),
    ]


def _by_images(engine: Engine, work: _Pass) -> list[Alternative]:
    """oneDNN's convolution, each thread on some of the images; gradients of filters are added up."""
    slices = engine.slices(work.conv.n)
    part = replace(work.conv, n=work.conv.n // slices)
    stored = _stored(engine, part, part)
    steps = {"x": stored["x"].bytes, "w": 0, "y": stored["y"].bytes}
    return _cut(engine, work, part, stored, steps, slices)


def _by_filters(engine: Engine, work: _Pass) -> list[Alternative]:
    """oneDNN's convolution, each thread on all images with some of the filters (of the gradient of x: some of its
    channels), so that it packs and reads these alone and nothing is left to be added up. Where few pixels meet many
    filters that is less. A product of single pixels is cut so in `_products`."""
    conv = work.conv
    cut = conv.c if isinstance(work, ConvDgrad) else conv.k
    slices = engine.slices(cut)
    if conv.layout != "NHWC" or (conv.r, conv.s) == (1, 1) or slices == 1 or cut // slices < _LEAST_FILTERS:
        return []
    item = ITEM_BYTES[conv.dtype] * (cut // slices)
    if isinstance(work, ConvDgrad):
        part, steps = replace(conv, c=cut // slices), {"x": item, "w": item, "y": 0}
    else:
        part, steps = replace(conv, k=cut // slices), {"x": 0, "w": item * conv.c * conv.r * conv.s, "y": item}
    return _cut(engine, work, part, _stored(engine, part, conv), steps, slices)


_LEAST_FILTERS = 32
"""For a thread: fewer do not fill oneDNN's blocks of output channels."""


def _cut(
    engine: Engine, work: _Pass, part: Conv2d, stored: dict[str, Descriptor], steps: dict[str, int], slices: int
) -> list[Alternative]:
    """oneDNN's convolutions of one slice each. `steps`: bytes from one slice to the next, by array; 0: it is whole."""
    arguments = _ARGUMENTS[type(work)]
    operands = [
        Binding(index, stored[name], written=i == len(arguments) - 1, step=steps[name])
        for i, (index, name) in enumerate(arguments)
    ]
    partial = slices > 1 and not operands[-1].step
    return [_unmade(engine, each, operands, slices) for each in _convolutions(engine, work, part, partial)]


def _unmade(engine: Engine, described: int, operands: list[Binding], slices: int) -> Unmade:
    return Unmade(engine.implementation(described), functools.partial(engine.primitive, described, operands, slices))


_ARGUMENTS = {
    ConvFprop: ((library.SRC, "x"), (library.WEIGHTS, "w"), (library.DST, "y")),
    ConvDgrad: ((library.DIFF_DST, "y"), (library.WEIGHTS, "w"), (library.DIFF_SRC, "x")),
    ConvWgrad: ((library.SRC, "x"), (library.DIFF_DST, "y"), (library.DIFF_WEIGHTS, "w")),
}
"""oneDNN's arguments in the order of a work's operands, with the array that each is or is the gradient of. The last is
written."""


def _stored(engine: Engine, conv: Conv2d, whole: Conv2d) -> dict[str, Descriptor]:
    """The descriptors of a convolution's arrays as they are stored, each within that of the whole convolution."""
    sizes, of_whole = _sizes(conv), _sizes(whole)
    return {name: engine.descriptor(conv.dtype, sizes[name], strides(conv.layout, of_whole[name])) for name in sizes}


def _sizes(conv: Conv2d) -> dict[str, tuple[int, int, int, int]]:
    return {
        "x": (conv.n, conv.c, conv.h, conv.w),
        "w": (conv.k, conv.c, conv.r, conv.s),
        "y": (conv.n, conv.k, conv.p, conv.q),
    }


def strides(layout: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in values, of an array of logical sizes (N, C, H, W) that is stored in a layout."""
    _, c, h, w = sizes
    return library.contiguous(sizes) if layout == "NCHW" else (h * w * c, 1, w * c, c)


def _convolutions(engine: Engine, work: _Pass, conv: Conv2d, partial: bool) -> tuple[int, ...]:
    """Of one slice. Activations stay in the layout in which they are stored; filters have the one that oneDNN prefers.
    `partial`: gradients of filters that are still to be added up stay in float32. Raises Unimplemented."""

    if isinstance(work, ConvWgrad) and conv.dtype != "float32" and conv.pad and conv.w < conv.stride:
        raise Unimplemented("oneDNN 3.2 on AMX returns garbage where width < stride")

    def describe(dtype: DType) -> int:
        wanted = replace(conv, dtype=dtype)
        stored = _stored(engine, wanted, wanted)
        x, y = stored["x"].handle, stored["y"].handle
        sizes = (conv.k, conv.c, conv.r, conv.s)
        w = engine.descriptor(dtype, sizes).handle
        # oneDNN counts the padding that the last windows reach, which may be less than there is before the first.
        after = [
            (count - 1) * conv.stride + side - size - conv.pad
            for count, side, size in ((conv.p, conv.r, conv.h), (conv.q, conv.s, conv.w))
        ]
        window = tuple(map(library.dims, ((conv.stride,) * 2, (0, 0), (conv.pad,) * 2, after)))
        forward = engine.describe(
            "convolution_forward",
            library.FORWARD_TRAINING,
            library.CONVOLUTION_DIRECT,
            x,
            w,
            None,
            y,
            *window,
            engine.plain,
        )
        if isinstance(work, ConvDgrad):
            return engine.describe(
                "convolution_backward_data", library.CONVOLUTION_DIRECT, x, w, y, *window, forward, engine.plain
            )
        if isinstance(work, ConvWgrad):
            gw = engine.descriptor("float32", sizes).handle if partial else w
            return engine.describe(
                "convolution_backward_weights",
                library.CONVOLUTION_DIRECT,
                x,
                gw,
                None,
                y,
                *window,
                forward,
                engine.plain,
            )
        return forward

    return descriptions(engine, conv.dtype, describe)


def _products(engine: Engine, work: _Pass, result: DType) -> list[Alternative]:
    """The same as a product of two matrices, where the window is a single pixel: cut by rows, by columns, or whole on
    one thread, which suits AMX best; with the left or the right matrix as it is stored or as oneDNN prefers it.
    `result`: the dtype of what is written. Without oneDNN's reference, which takes seconds."""
    conv = work.conv
    if (conv.r, conv.s, conv.stride, conv.pad) != (1, 1, 1, 0) or (conv.layout == "NCHW" and conv.h * conv.w > 1):
        return []
    pixels = conv.n * conv.h * conv.w
    if isinstance(work, ConvFprop):
        left, right = (
            _Matrix(library.SRC, pixels, conv.c, (conv.c, 1)),
            _Matrix(library.WEIGHTS, conv.c, conv.k, (1, conv.c)),
        )
    elif isinstance(work, ConvDgrad):
        left, right = (
            _Matrix(library.SRC, pixels, conv.k, (conv.k, 1)),
            _Matrix(library.WEIGHTS, conv.k, conv.c, (conv.c, 1)),
        )
    else:
        left, right = (
            _Matrix(library.SRC, conv.k, pixels, (1, conv.k)),
            _Matrix(library.WEIGHTS, pixels, conv.c, (conv.c, 1)),
        )
    written = _Matrix(library.DST, left.rows, right.columns, (right.columns, 1))
    made: list[Alternative] = []
    for rows, columns, preferred in _WAYS:
        slices = engine.slices(left.rows if rows else right.columns) if rows or columns else 1
        cuts = {library.SRC: (rows, False), library.WEIGHTS: (False, columns), library.DST: (rows, columns)}
        operands = [
            matrix.operand(engine, dtype, slices, *cuts[matrix.index])
            for matrix, dtype in ((left, conv.dtype), (right, conv.dtype), (written, result))
        ]
        if (slices == 1) == (rows or columns):
            continue
        wanted = [
            engine.descriptor(conv.dtype, operand.stored.sizes) if operand.index == preferred else operand.stored
            for operand in operands
        ]
        try:
            a, b, c = (descriptor.handle for descriptor in wanted)
            described = engine.describe("matmul", a, b, None, c, engine.plain)
        except Unimplemented:
            continue
        if engine.implementation(described).startswith(library.REFERENCE):
            continue
        if isinstance(work, ConvWgrad):
            operands[:2] = reversed(operands[:2])
        made.append(_unmade(engine, described, operands, slices))
    return made


_WAYS = (
    (True, False, library.SRC),
    (True, False, library.WEIGHTS),
    (False, True, library.SRC),
    (False, True, None),
    (False, False, library.SRC),
)
"""Of a product: whether it is cut by rows or by columns, and which factor is stored as oneDNN prefers it. Of the twelve
ways those that were fastest for any convolution of ResNet-50 at 64x64 and batch size 8, in float32 or bfloat16."""


@dataclass(frozen=True)
class _Matrix:
    """`strides`: in values, of rows and columns."""

    index: int
    rows: int
    columns: int
    strides: tuple[int, int]

    def operand(self, engine: Engine, dtype: DType, slices: int, by_rows: bool, by_columns: bool) -> Binding:
        """One slice of it, or all of it."""
        sizes = (self.rows // slices if by_rows else self.rows, self.columns // slices if by_columns else self.columns)
        values = sizes[0] * self.strides[0] if by_rows else sizes[1] * self.strides[1] if by_columns else 0
        stored = engine.descriptor(dtype, sizes, self.strides)
        return Binding(self.index, stored, self.index == library.DST, values * ITEM_BYTES[dtype])


def _by_columns(engine: Engine, work: _Pass) -> list[Alternative]:
    """By the product of its columns (see `tcbench.engine.work.im2col`), which NumPy lays out. The gradient of columns
    is of float32, in which it is added up. None but where there are more filters than pixels: laying out columns then
    costs less than packing filters, or adding up each slice's part of their gradients."""
    conv, dgrad = work.conv, isinstance(work, ConvDgrad)
    pixels, is_product = conv.n * conv.p * conv.q, (conv.r, conv.s, conv.stride, conv.pad) == (1, 1, 1, 0)
    if is_product or conv.layout != "NHWC" or pixels > conv.k:
        return []
    products = _products(engine, replace(work, conv=product(conv)), "float32" if dgrad else conv.dtype)
    lowered = replace(conv, dtype="float32") if dgrad else conv
    shape, dtype = Im2col(lowered).array("columns")

    def by_columns(by: Alternative, x: Array, other: Array, written: Array) -> None:
        columns = scratch("onednn.columns", shape, dtype)
        compute(Im2col(lowered), x, columns)
        by.bind(columns, other, written)()

    def dgrad_by_columns(by: Alternative, gy: Array, weights: Array, gx: Array) -> None:
        columns = scratch("onednn.columns", shape, dtype)
        by.bind(gy, weights, columns)()
        compute(Col2im(lowered), columns, gx)

    run = dgrad_by_columns if dgrad else by_columns
    return [Choice(functools.partial(functools.partial, run, by), f"im2col, {by.name}") for by in products]
