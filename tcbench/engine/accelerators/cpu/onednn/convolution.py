"""Convolutions (forward and both gradients) by oneDNN's convolution, or by its matrix product if that is faster."""

import functools
from dataclasses import dataclass, replace

from tcbench.engine.accelerators.cpu.onednn import library
from tcbench.engine.accelerators.cpu.onednn.library import Binding, Descriptor, Engine, Unimplemented
from tcbench.engine.accelerators.cpu.onednn.tuning import Choice, descriptions, fastest, lazy
from tcbench.engine.accelerators.cpu.reference.operands import compute
from tcbench.engine.accelerators.cpu.threads import Array, scratch
from tcbench.engine.work import ITEM_BYTES, Col2im, Conv2d, ConvDgrad, ConvFprop, ConvWgrad, DType, Im2col
from tcbench.engine.work.im2col import product

_Pass = ConvFprop | ConvDgrad | ConvWgrad


def choose(engine: Engine, work: _Pass) -> Choice:
    """Return the fastest implementation on this machine."""
    with engine.restoring_scratch():
        return fastest(engine, work, alternatives(engine, work))


def alternatives(engine: Engine, work: _Pass) -> list[Choice]:
    """Return the implementations that are tried, oneDNN's preferred one first. Each one's `bind` takes the arrays in
    the order of `work.operands`."""
    return [
        *_by_images(engine, work),
        *_by_filters(engine, work),
        *_products(engine, work, work.conv.dtype),
        *_by_columns(engine, work),
    ]


def _by_images(engine: Engine, work: _Pass) -> list[Choice]:
    """Return oneDNN's convolutions, each thread on some of the images. The threads' filter gradients are added up."""
    slices = engine.slices(work.conv.n)
    part = replace(work.conv, n=work.conv.n // slices)
    stored = _stored(engine, part, part)
    steps = {"x": stored["x"].bytes, "w": 0, "y": stored["y"].bytes}
    return _cut(engine, work, part, stored, steps, slices)


def _by_filters(engine: Engine, work: _Pass) -> list[Choice]:
    """Return oneDNN's convolutions, each thread on all images with some of the filters (dgrad: some channels of x).

    Each thread then packs and reads its own filters only, and no sum over threads is needed, which pays off for few
    pixels and many filters. Returns nothing for 1x1 filters, which `_products` cuts in this way."""
    conv = work.conv
    cut = conv.c if isinstance(work, ConvDgrad) else conv.k
    slices = engine.slices(cut)
    if conv.layout != "NHWC" or (conv.r, conv.s) == (1, 1) or slices == 1 or cut // slices < _LEAST_FILTERS:
        return []
    step = ITEM_BYTES[conv.dtype] * (cut // slices)
    if isinstance(work, ConvDgrad):
        part, steps = replace(conv, c=cut // slices), {"x": step, "w": step, "y": 0}
    else:
        part, steps = replace(conv, k=cut // slices), {"x": 0, "w": step * conv.c * conv.r * conv.s, "y": step}
    return _cut(engine, work, part, _stored(engine, part, conv), steps, slices)


_LEAST_FILTERS = 32
"""The least filters per thread: fewer do not fill oneDNN's blocks of output channels."""


def _cut(
    engine: Engine, work: _Pass, part: Conv2d, stored: dict[str, Descriptor], steps: dict[str, int], slices: int
) -> list[Choice]:
    """Return oneDNN's convolutions cut into slices of geometry `part`. `stored` and `steps` are by name of the array
    (x, w or y); see `Binding`."""
    arguments = _ARGUMENTS[type(work)]
    operands = [
        Binding(index, stored[name], written=i == len(arguments) - 1, step=steps[name])
        for i, (index, name) in enumerate(arguments)
    ]
    partial = slices > 1 and not operands[-1].step
    return [_lazy(engine, described, operands, slices) for described in _convolutions(engine, work, part, partial)]


def _lazy(engine: Engine, described: int, operands: list[Binding], slices: int) -> Choice:
    """Return the choice of a described primitive, which is created when it is first bound."""
    return lazy(engine.implementation(described), functools.partial(engine.primitive, described, operands, slices))


_ARGUMENTS = {
    ConvFprop: ((library.SRC, "x"), (library.WEIGHTS, "w"), (library.DST, "y")),
    ConvDgrad: ((library.DIFF_DST, "y"), (library.WEIGHTS, "w"), (library.DIFF_SRC, "x")),
    ConvWgrad: ((library.SRC, "x"), (library.DIFF_DST, "y"), (library.DIFF_WEIGHTS, "w")),
}
"""oneDNN's arguments in the order of each operation's operands, with the array that each argument is or is the gradient
of. The last one is written."""


def _stored(engine: Engine, part: Conv2d, conv: Conv2d) -> dict[str, Descriptor]:
    """Return the descriptors of the arrays x, w and y of `part`, as slices of the arrays of `conv`."""
    sizes, conv_sizes = _sizes(part), _sizes(conv)
    return {name: engine.descriptor(part.dtype, sizes[name], strides(part.layout, conv_sizes[name])) for name in sizes}


def _sizes(conv: Conv2d) -> dict[str, tuple[int, int, int, int]]:
    """Return the logical sizes of x, w and y."""
    return {
        "x": (conv.n, conv.c, conv.h, conv.w),
        "w": (conv.k, conv.c, conv.r, conv.s),
        "y": (conv.n, conv.k, conv.p, conv.q),
    }


def strides(layout: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in values, of an array of logical size (N, C, H, W) in a layout."""
    _, c, h, w = sizes
    return library.contiguous(sizes) if layout == "NCHW" else (h * w * c, 1, w * c, c)


def _convolutions(engine: Engine, work: _Pass, conv: Conv2d, partial: bool) -> tuple[int, ...]:
    """Return the descriptions of oneDNN's convolutions of one slice. Raises Unimplemented.

    Activations keep the layout in which they are stored; filters get the one that oneDNN prefers. With `partial`,
    gradients of filters are float32, since they are yet to be added up."""
    if isinstance(work, ConvWgrad) and conv.dtype != "float32" and conv.pad and conv.w < conv.stride:
        raise Unimplemented("oneDNN 3.2 on AMX returns garbage where width < stride")

    def describe(dtype: DType) -> int:
        """Return oneDNN's description of the convolution in this dtype."""
        computed = replace(conv, dtype=dtype)
        stored = _stored(engine, computed, computed)
        x, y = stored["x"].handle, stored["y"].handle
        sizes = (conv.k, conv.c, conv.r, conv.s)
        w = engine.descriptor(dtype, sizes).handle
        # The padding after the image is what the last window covers, which may be less than the padding before it.
        after = [
            (count - 1) * conv.stride + side - size - conv.pad
            for count, side, size in ((conv.p, conv.r, conv.h), (conv.q, conv.s, conv.w))
        ]
        window = tuple(map(library.dims, ((conv.stride,) * 2, (0, 0), (conv.pad,) * 2, after)))
        direct, rest = library.CONVOLUTION_DIRECT, (*window, engine.plain)
        forward = engine.describe("convolution_forward", library.FORWARD_TRAINING, direct, x, w, None, y, *rest)
        rest = (*window, forward, engine.plain)
        if isinstance(work, ConvDgrad):
            return engine.describe("convolution_backward_data", direct, x, w, y, *rest)
        if isinstance(work, ConvWgrad):
            gw = engine.descriptor("float32", sizes).handle if partial else w
            return engine.describe("convolution_backward_weights", direct, x, gw, None, y, *rest)
        return forward

    described = descriptions(engine, conv.dtype, describe)
    if conv.p * conv.q <= _OVERRUN_PIXELS:
        described = tuple(d for d in described if not engine.implementation(d).startswith(_OVERRUNS))
    return described


_OVERRUNS, _OVERRUN_PIXELS = "jit_1x1:avx512_core_amx", 48
"""An implementation of oneDNN 3.2 that writes past the end of y, and the most pixels of an image with which it does.

It computes tiles of 9 to 16 pixels, four at a time, and writes the fourth even if an image has three. Then it changes
the first pixels of the next image, which another thread may have written, or memory behind the array."""


def _products(engine: Engine, work: _Pass, result: DType) -> list[Choice]:
    """Return matrix products for a convolution with 1x1 windows; nothing for others.

    The product is cut by rows or by columns, or runs whole on one thread, which suits AMX best. One factor may have the
    layout that oneDNN prefers (`_WAYS`). `result` is the dtype of the output. oneDNN's reference, which takes seconds,
    is left out."""
    conv = work.conv
    if (conv.r, conv.s, conv.stride, conv.pad) != (1, 1, 1, 0) or (conv.layout == "NCHW" and conv.h * conv.w > 1):
        return []
    pixels = conv.n * conv.h * conv.w
    if isinstance(work, ConvFprop):
        left = _Matrix(library.SRC, pixels, conv.c, (conv.c, 1))
        right = _Matrix(library.WEIGHTS, conv.c, conv.k, (1, conv.c))
    elif isinstance(work, ConvDgrad):
        left = _Matrix(library.SRC, pixels, conv.k, (conv.k, 1))
        right = _Matrix(library.WEIGHTS, conv.k, conv.c, (conv.c, 1))
    else:
        left = _Matrix(library.SRC, conv.k, pixels, (1, conv.k))
        right = _Matrix(library.WEIGHTS, pixels, conv.c, (conv.c, 1))
    written = _Matrix(library.DST, left.rows, right.columns, (right.columns, 1))
    products: list[Choice] = []
    for rows, columns, preferred in _WAYS:
        slices = engine.slices(left.rows if rows else right.columns) if rows or columns else 1
        cuts = {library.SRC: (rows, False), library.WEIGHTS: (False, columns), library.DST: (rows, columns)}
        operands = [
            matrix.operand(engine, dtype, slices, *cuts[matrix.index])
            for matrix, dtype in ((left, conv.dtype), (right, conv.dtype), (written, result))
        ]
        if (slices == 1) == (rows or columns):  # cannot be cut: the uncut variant covers it
            continue
        descriptors = [
            engine.descriptor(conv.dtype, operand.stored.sizes) if operand.index == preferred else operand.stored
            for operand in operands
        ]
        try:
            a, b, c = (descriptor.handle for descriptor in descriptors)
            described = engine.describe("matmul", a, b, None, c, engine.plain)
        except Unimplemented:
            continue
        if engine.implementation(described).startswith(library.REFERENCE):
            continue
        if isinstance(work, ConvWgrad):
            operands[:2] = reversed(operands[:2])  # the left factor is gy, but x is the first array
        products.append(_lazy(engine, described, operands, slices))
    return products


_WAYS = (
    (True, False, library.SRC),
    (True, False, library.WEIGHTS),
    (False, True, library.SRC),
    (False, True, None),
    (False, False, library.SRC),
)
"""Variants of a product: whether it is cut by rows or by columns, and which factor has the layout that oneDNN prefers.
These five of the twelve possible ones were fastest for at least one convolution of ResNet-50 (64x64, batch size 8,
float32 or bfloat16)."""


@dataclass(frozen=True)
class _Matrix:
    """A matrix of a product. `index`: oneDNN's argument; `strides`: of rows and columns, in values."""

    index: int
    rows: int
    columns: int
    strides: tuple[int, int]

    def operand(self, engine: Engine, dtype: DType, slices: int, by_rows: bool, by_columns: bool) -> Binding:
        """Return the matrix as an argument: cut into slices by rows or by columns, or whole."""
        sizes = (self.rows // slices if by_rows else self.rows, self.columns // slices if by_columns else self.columns)
        values = sizes[0] * self.strides[0] if by_rows else sizes[1] * self.strides[1] if by_columns else 0
        stored = engine.descriptor(dtype, sizes, self.strides)
        return Binding(self.index, stored, self.index == library.DST, values * ITEM_BYTES[dtype])


def _by_columns(engine: Engine, work: _Pass) -> list[Choice]:
    """Return products with im2col columns (see `tcbench.engine.work.im2col`), which NumPy computes.

    The gradient of the columns is float32, since Col2im adds it up. Returns nothing unless there are at least as many
    filters as pixels: only then does im2col cost less than packing filters, or summing their gradients over slices."""
    conv, dgrad = work.conv, isinstance(work, ConvDgrad)
    pixels, is_product = conv.n * conv.p * conv.q, (conv.r, conv.s, conv.stride, conv.pad) == (1, 1, 1, 0)
    if is_product or conv.layout != "NHWC" or pixels > conv.k:
        return []
    products = _products(engine, replace(work, conv=product(conv)), "float32" if dgrad else conv.dtype)
    lowered = replace(conv, dtype="float32") if dgrad else conv
    shape, dtype = Im2col(lowered).array("columns")

    def run_by_columns(matmul: Choice, x: Array, factor: Array, output: Array) -> None:
        columns = scratch("onednn.columns", shape, dtype)
        compute(Im2col(lowered), x, columns)
        matmul.bind(columns, factor, output)()

    def run_dgrad_by_columns(matmul: Choice, gy: Array, weights: Array, gx: Array) -> None:
        columns = scratch("onednn.columns", shape, dtype)
        matmul.bind(gy, weights, columns)()
        compute(Col2im(lowered), columns, gx)

    run = run_dgrad_by_columns if dgrad else run_by_columns
    return [
        Choice(functools.partial(functools.partial, run, by_product), f"im2col, {by_product.name}")
        for by_product in products
    ]
