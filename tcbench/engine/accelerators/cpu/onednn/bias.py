"""Bias addition, and its gradient as the product of a matrix and a vector of ones, by oneDNN."""

import functools
from collections.abc import Callable

import numpy as np

from tcbench.engine.accelerators.cpu.onednn import library
from tcbench.engine.accelerators.cpu.onednn.library import Array, Binding, Engine, Unimplemented
from tcbench.engine.accelerators.cpu.onednn.pointwise import n_slices
from tcbench.engine.accelerators.cpu.onednn.tuning import Choice, descriptions
from tcbench.engine.accelerators.cpu.reference.operands import compute
from tcbench.engine.work import AddBias, AddBiasRelu, BiasGradient


def add(engine: Engine, work: AddBias | AddBiasRelu) -> Choice:
    """Return oneDNN's implementation of y += b, with ReLU for AddBiasRelu.

    The launch also sums y to detect NaN (`Engine.met_nan`): networks with biases have no batch normalisation, which
    detects it in other networks."""
    relu, of_maps = isinstance(work, AddBiasRelu), work.pixels > 1
    threads = n_slices(engine, work.n, work.k * work.pixels)
    rows = work.n // threads
    y_sizes, b_sizes = ((rows, work.k, work.pixels), (1, work.k, 1)) if of_maps else ((rows, work.k), (1, work.k))
    attributes = engine.attributes(relu_after=relu)
    b = engine.descriptor("float32", b_sizes, library.contiguous(b_sizes))

    def describe(dtype: str) -> int:
        y = engine.descriptor(dtype, y_sizes, library.contiguous(y_sizes)).handle
        return engine.describe("binary", library.BINARY_ADD, y, b.handle, y, attributes)

    y = engine.descriptor(work.dtype, y_sizes, library.contiguous(y_sizes))
    operands = (
        Binding(library.SRC, y, step=y.bytes),
        Binding(library.SRC_1, b),
        Binding(library.DST, y, True, y.bytes),
    )
    primitive = engine.primitive(descriptions(engine, work.dtype, describe)[0], operands, threads)
    summed = BiasGradient(work.n, work.k, work.dtype, work.pixels, work.n if of_maps else threads)
    total = gradient(engine, summed)

    def bind(y: Array, b: Array) -> Callable[[], None]:
        """Bind arrays, and return a launch."""
        sums = np.empty((summed.slices, work.k), np.float32)
        add_up, launch = total.bind(y, sums), primitive.bind(y, b, y)

        def run() -> None:
            """Add the bias. After the first NaN, NumPy does it, because oneDNN's ReLU would turn NaN into 0."""
            add_up()
            engine.has_nan(sums)
            if relu and engine.met_nan:
                compute(work, y, b)
            else:
                launch()

        return run

    return Choice(bind, primitive.name)


def gradient(engine: Engine, work: BiasGradient) -> Choice:
    """Return oneDNN's implementation of BiasGradient, a matrix product for each slice that accumulates in float32.

    NHWC: ones (1, rows) times gy (rows, K). NCHW: gy (K, pixels) times ones (pixels, 1), where each slice is an image;
    raises Unimplemented for other slices."""
    of_maps = work.pixels > 1
    if of_maps and work.slices != work.n:
        raise Unimplemented("a sum over images and pixels at once")
    summed = work.pixels if of_maps else work.n // work.slices
    threads = n_slices(engine, work.slices, work.n // work.slices * work.k * work.pixels)
    batch = work.slices // threads
    ones_sizes, gy_sizes, gb_sizes = (
        ((1, summed, 1), (batch, work.k, summed), (batch, work.k, 1))
        if of_maps
        else ((1, 1, summed), (batch, summed, work.k), (batch, 1, work.k))
    )
    ones_index, gy_index = (library.WEIGHTS, library.SRC) if of_maps else (library.SRC, library.WEIGHTS)

    def operand(index: int, dtype: str, sizes: tuple[int, ...], *, sliced: bool = True) -> Binding:
        stored = engine.descriptor(dtype, sizes, library.contiguous(sizes))
        return Binding(index, stored, index == library.DST, stored.bytes if sliced else 0)

    def describe(dtype: str) -> int:
        """Return oneDNN's description of the sum as a matrix product with ones."""
        ones, gy = (operand(index, dtype, sizes) for index, sizes in ((ones_index, ones_sizes), (gy_index, gy_sizes)))
        left, right = (gy, ones) if of_maps else (ones, gy)
        written = operand(library.DST, "float32", gb_sizes)
        return engine.describe(
            "matmul", left.stored.handle, right.stored.handle, None, written.stored.handle, engine.plain
        )

    operands = (
        operand(ones_index, work.dtype, ones_sizes, sliced=False),
        operand(gy_index, work.dtype, gy_sizes),
        operand(library.DST, "float32", gb_sizes),
    )
    primitive = engine.primitive(descriptions(engine, work.dtype, describe)[0], operands, threads)
    ones = np.ones(summed, work.operands[0].dtype)
    return Choice(functools.partial(primitive.bind, ones), primitive.name)
