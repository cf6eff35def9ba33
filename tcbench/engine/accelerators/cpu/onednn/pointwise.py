"""ReLU, additions and conversions on flat arrays, and pooling."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.onednn import library
from tcbench.engine.accelerators.cpu.onednn.convolution import strides
from tcbench.engine.accelerators.cpu.onednn.library import Array, Binding, Descriptor, Engine, Unimplemented
from tcbench.engine.accelerators.cpu.onednn.tuning import Choice, descriptions
from tcbench.engine.accelerators.cpu.reference.operands import compute

_SMALL = 1 << 16
"""Values that one thread goes over before another has begun."""


def relu(engine: Engine, work: w.Relu) -> Choice:
    """y = max(x, 0)."""
    slices, size, flat = _slices(engine, work)

    def describe(dtype: str) -> int:
        return _describe_relu(engine, engine.descriptor(dtype, (size,), (1,)).handle)

    choice = _first(engine, work.dtype, describe, slices, flat(library.SRC), flat(library.DST, written=True))
    return _keeping_nan(engine, work, choice)


def relu_backward(engine: Engine, work: w.ReluBackward) -> Choice:
    """gx = gy where y > 0, else 0."""
    slices, size, flat = _slices(engine, work)

    def describe(dtype: str) -> int:
        stored = engine.descriptor(dtype, (size,), (1,)).handle
        forward = _describe_relu(engine, stored)
        return engine.describe(
            "eltwise_backward", library.RELU_FROM_OUTPUT, stored, stored, stored, 0.0, 0.0, forward, engine.plain
        )

    operands = flat(library.DIFF_DST), flat(library.DST), flat(library.DIFF_SRC, written=True)
    return _first(engine, work.dtype, describe, slices, *operands)


def _describe_relu(engine: Engine, stored: int) -> int:
    """Return oneDNN's description of ReLU forward on values that `stored` describes."""
    kind = library.FORWARD_TRAINING, library.RELU_FROM_OUTPUT
    return engine.describe("eltwise_forward", *kind, stored, stored, 0.0, 0.0, engine.plain)


def add(engine: Engine, work: w.Add | w.AddRelu) -> Choice:
    """a + b, for AddRelu not below 0."""
    slices, size, flat = _slices(engine, work)
    attributes = engine.attributes(relu_after=isinstance(work, w.AddRelu))

    def describe(dtype: str) -> int:
        stored = engine.descriptor(dtype, (size,), (1,)).handle
        return engine.describe("binary", library.BINARY_ADD, stored, stored, stored, attributes)

    choice = _first(
        engine, work.dtype, describe, slices, flat(library.SRC), flat(library.SRC_1), flat(library.DST, written=True)
    )
    return _keeping_nan(engine, work, choice) if isinstance(work, w.AddRelu) else choice


def convert(engine: Engine, work: w.ToSingle | w.ToHalf) -> Choice:
    """16 bits to float32, or back."""
    source, target = (operand.dtype for operand in work.operands)
    half = next(dtype for dtype in (source, target) if dtype != "float32")
    if not engine.converts(half):
        raise Unimplemented(half)
    slices = n_slices(engine, work.size)
    x, y = (engine.descriptor(dtype, (work.size // slices,), (1,)) for dtype in (source, target))
    primitive = engine.reorder(Binding(library.SRC, x, step=x.bytes), Binding(library.DST, y, True, y.bytes), slices)
    return Choice(primitive.bind, primitive.name)


def max_pool(engine: Engine, work: w.MaxPoolForward | w.MaxPoolBackward) -> Choice:
    """Maxima and their places, or the gradient of what they are of. oneDNN's workspace holds the places as the work has
    them."""
    pool = work.pool
    ends = [
        (count - 1) * pool.stride + pool.ksize - size - pool.pad for count, size in ((pool.p, pool.h), (pool.q, pool.w))
    ]
    window = ((pool.stride,) * 2, (pool.ksize,) * 2, (0, 0), (pool.pad,) * 2, ends)
    x_sizes, y_sizes = (pool.n, pool.c, pool.h, pool.w), (pool.n, pool.c, pool.p, pool.q)
    backward = isinstance(work, w.MaxPoolBackward)
    choice = _pooling(engine, pool, library.POOLING_MAX, x_sizes, y_sizes, window, backward=backward, places=True)
    return choice if backward else _keeping_nan(engine, work, choice)


def global_average(engine: Engine, work: w.GlobalAverageForward | w.GlobalAverageBackward) -> Choice:
    """Means over all pixels, or the gradient of what they are of."""
    size = (work.h, work.w)
    window, x_sizes, y_sizes = (size, size, (0, 0), (0, 0), (0, 0)), (work.n, work.c, *size), (work.n, work.c, 1, 1)
    backward = isinstance(work, w.GlobalAverageBackward)
    return _pooling(engine, work, library.POOLING_AVERAGE, x_sizes, y_sizes, window, backward=backward, places=False)


def _pooling(
    engine: Engine,
    maps: w.Pool | w.GlobalAverageForward | w.GlobalAverageBackward,
    algorithm: int,
    x_sizes: tuple[int, ...],
    y_sizes: tuple[int, ...],
    window: Sequence[Sequence[int]],
    *,
    backward: bool,
    places: bool,
) -> Choice:
    """Of maps of a dtype in a layout. `window`: stride, size, dilation, padding before and after. `places`: a uint8 of
    every maximum's place."""
    window = tuple(map(library.dims, window))

    def stored(dtype: str, sizes: tuple[int, ...]) -> Descriptor:
        return engine.descriptor(dtype, sizes, strides(maps.layout, sizes))

    def describe(dtype: str) -> int:
        ends = [stored(dtype, sizes).handle for sizes in (x_sizes, y_sizes)]
        made = engine.describe("pooling_forward", library.FORWARD_TRAINING, algorithm, *ends, *window, engine.plain)
        return engine.describe("pooling_backward", algorithm, *ends, *window, made, engine.plain) if backward else made

    x, y = (stored(maps.dtype, sizes) for sizes in (x_sizes, y_sizes))
    kept = [Binding(library.WORKSPACE, stored("uint8", y_sizes), not backward)] if places else []
    if not backward:
        return _first(engine, maps.dtype, describe, 1, Binding(library.SRC, x), Binding(library.DST, y, True), *kept)
    # Where windows overlap, their gradients are added up: of 16 bits oneDNN rounds every sum to 16.
    computed: w.DType = "float32" if places else maps.dtype
    return _first(
        engine, computed, describe, 1, Binding(library.DIFF_DST, y), *kept, Binding(library.DIFF_SRC, x, True)
    )


def n_slices(engine: Engine, rows: int, width: int = 1) -> int:
    """Slices of so many rows: one where all of them have few values."""
    return engine.slices(rows) if rows * width > _SMALL else 1


def _slices(engine: Engine, work: w.Pointwise) -> tuple[int, int, Callable[..., Binding]]:
    """Return the number of slices, the values in each, and what makes an operand of an argument's index."""
    slices = n_slices(engine, work.size)
    size = work.size // slices
    flat = engine.descriptor(work.dtype, (size,), (1,))
    return slices, size, functools.partial(Binding, stored=flat, step=flat.bytes)


def _keeping_nan(engine: Engine, work: w.Work, choice: Choice) -> Choice:
    """Return the same choice, but with NumPy's operation once NaN was met."""

    def bind(*arrays: Array) -> Callable[[], None]:
        launch = choice.bind(*arrays)

        def run() -> None:
            if engine.met_nan:
                compute(work, *arrays)
            else:
                launch()

        return run

    return replace(choice, bind=bind)


def _first(
    engine: Engine, dtype: w.DType, describe: Callable[[w.DType], int], slices: int, *operands: Binding
) -> Choice:
    """By the implementation that oneDNN prefers."""
    primitive = engine.primitive(descriptions(engine, dtype, describe)[0], operands, slices)
    return Choice(primitive.bind, primitive.name)
