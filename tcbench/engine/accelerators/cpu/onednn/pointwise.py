"""ReLU, addition and dtype conversion on flat arrays, and pooling, by oneDNN."""

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
"""Values up to which a second thread does not pay off: one thread is done before another has started."""


def relu(engine: Engine, work: w.Relu) -> Choice:
    """Return oneDNN's implementation of y = max(x, 0). After the first NaN, its launches use NumPy."""
    choice = _flat(engine, work, (library.SRC, library.DST), functools.partial(_describe_relu, engine))
    return _keeping_nan(engine, work, choice)


def relu_backward(engine: Engine, work: w.ReluBackward) -> Choice:
    """Return oneDNN's implementation of gx = gy where y > 0, else 0."""

    def describe(stored: int) -> int:
        """Return the description of ReLU's gradient on arrays with the descriptor handle `stored`."""
        forward = _describe_relu(engine, stored)
        return engine.describe(
            "eltwise_backward", library.RELU_FROM_OUTPUT, stored, stored, stored, 0.0, 0.0, forward, engine.plain
        )

    return _flat(engine, work, (library.DIFF_DST, library.DST, library.DIFF_SRC), describe)


def _describe_relu(engine: Engine, stored: int) -> int:
    """Return the description of ReLU on an array with the descriptor handle `stored`."""
    kind = library.FORWARD_TRAINING, library.RELU_FROM_OUTPUT
    return engine.describe("eltwise_forward", *kind, stored, stored, 0.0, 0.0, engine.plain)


def add(engine: Engine, work: w.Add | w.AddRelu) -> Choice:
    """Return oneDNN's implementation of a + b, or for AddRelu of max(a + b, 0)."""
    attributes = engine.attributes(relu_after=isinstance(work, w.AddRelu))

    def describe(stored: int) -> int:
        return engine.describe("binary", library.BINARY_ADD, stored, stored, stored, attributes)

    choice = _flat(engine, work, (library.SRC, library.SRC_1, library.DST), describe)
    return _keeping_nan(engine, work, choice) if isinstance(work, w.AddRelu) else choice


def convert(engine: Engine, work: w.ToSingle | w.ToHalf) -> Choice:
    """Return oneDNN's conversion between 16 bits and float32. Raises Unimplemented if it is not vectorised."""
    source, target = (operand.dtype for operand in work.operands)
    half = next(dtype for dtype in (source, target) if dtype != "float32")
    if not engine.converts(half):
        raise Unimplemented(half)
    slices = n_slices(engine, work.size)
    x, y = (engine.descriptor(dtype, (work.size // slices,), (1,)) for dtype in (source, target))
    primitive = engine.reorder(Binding(library.SRC, x, step=x.bytes), Binding(library.DST, y, True, y.bytes), slices)
    return Choice(primitive.bind, primitive.name)


def max_pool(engine: Engine, work: w.MaxPoolForward | w.MaxPoolBackward) -> Choice:
    """Return oneDNN's max pooling, forward or backward. oneDNN's workspace has the format of the operand `place`."""
    pool = work.pool
    lengths = ((pool.p, pool.h), (pool.q, pool.w))
    padding_after = [(count - 1) * pool.stride + pool.ksize - size - pool.pad for count, size in lengths]
    window = ((pool.stride,) * 2, (pool.ksize,) * 2, (0, 0), (pool.pad,) * 2, padding_after)
    x_sizes, y_sizes = (pool.n, pool.c, pool.h, pool.w), (pool.n, pool.c, pool.p, pool.q)
    backward = isinstance(work, w.MaxPoolBackward)
    choice = _pooling(engine, pool, x_sizes, y_sizes, window, backward=backward, places=True)
    return choice if backward else _keeping_nan(engine, work, choice)


def global_average(engine: Engine, work: w.GlobalAverageForward | w.GlobalAverageBackward) -> Choice:
    """Return oneDNN's global average pooling, forward or backward."""
    size = (work.h, work.w)
    window, x_sizes, y_sizes = (size, size, (0, 0), (0, 0), (0, 0)), (work.n, work.c, *size), (work.n, work.c, 1, 1)
    backward = isinstance(work, w.GlobalAverageBackward)
    return _pooling(engine, work, x_sizes, y_sizes, window, backward=backward, places=False)


def _pooling(
    engine: Engine,
    maps: w.Pool | w.GlobalAverageForward | w.GlobalAverageBackward,
    x_sizes: tuple[int, ...],
    y_sizes: tuple[int, ...],
    window: Sequence[Sequence[int]],
    *,
    backward: bool,
    places: bool,
) -> Choice:
    """Return oneDNN's pooling of maps.

    Args:
        maps: the layout and dtype.
        window: stride, size, dilation, padding before and padding after, each for rows and columns.
        places: whether to pool maxima, with an operand of type uint8 for their places, rather than means."""
    window, algorithm = tuple(map(library.dims, window)), library.POOLING_MAX if places else library.POOLING_AVERAGE

    def stored(dtype: str, sizes: tuple[int, ...]) -> Descriptor:
        return engine.descriptor(dtype, sizes, strides(maps.layout, sizes))

    def describe(dtype: str) -> int:
        """Return oneDNN's description of the pooling, or of its gradient, in this dtype."""
        ends = [stored(dtype, sizes).handle for sizes in (x_sizes, y_sizes)]
        forward = engine.describe("pooling_forward", library.FORWARD_TRAINING, algorithm, *ends, *window, engine.plain)
        if not backward:
            return forward
        return engine.describe("pooling_backward", algorithm, *ends, *window, forward, engine.plain)

    x, y = (stored(maps.dtype, sizes) for sizes in (x_sizes, y_sizes))
    workspace = [Binding(library.WORKSPACE, stored("uint8", y_sizes), not backward)] if places else []
    if not backward:
        operands = Binding(library.SRC, x), Binding(library.DST, y, True), *workspace
        return _first(engine, maps.dtype, describe, 1, *operands)
    # Gradients of overlapping windows are added up, and oneDNN would round each 16-bit sum to 16 bits.
    computed: w.DType = "float32" if places else maps.dtype
    operands = Binding(library.DIFF_DST, y), *workspace, Binding(library.DIFF_SRC, x, True)
    return _first(engine, computed, describe, 1, *operands)


def n_slices(engine: Engine, rows: int, width: int = 1) -> int:
    """Return the number of slices for `rows` rows of `width` values: 1 if there are few values in all."""
    return engine.slices(rows) if rows * width > _SMALL else 1


def _flat(engine: Engine, work: w.Pointwise, indices: tuple[int, ...], describe: Callable[[int], int]) -> Choice:
    """Return oneDNN's implementation of an operation on flat arrays, which all have the same descriptor.

    Args:
        indices: oneDNN's arguments, in the order of the operands; the last one is written.
        describe: returns the description for the descriptor's handle."""
    slices = n_slices(engine, work.size)

    def flat(dtype: str) -> Descriptor:
        return engine.descriptor(dtype, (work.size // slices,), (1,))

    stored = flat(work.dtype)
    operands = [Binding(index, stored, index == indices[-1], stored.bytes) for index in indices]
    return _first(engine, work.dtype, lambda dtype: describe(flat(dtype).handle), slices, *operands)


def _keeping_nan(engine: Engine, work: w.Work, choice: Choice) -> Choice:
    """Return the choice with a launch that uses NumPy once the engine has met NaN."""

    def bind(*arrays: Array) -> Callable[[], None]:
        """Bind arrays, and return a launch."""
        launch = choice.bind(*arrays)

        def run() -> None:
            """Launch oneDNN's primitive; after the first NaN, NumPy's operation instead, which keeps NaN."""
            if engine.met_nan:
                compute(work, *arrays)
            else:
                launch()

        return run

    return replace(choice, bind=bind)


def _first(
    engine: Engine, dtype: w.DType, describe: Callable[[w.DType], int], slices: int, *operands: Binding
) -> Choice:
    """Return the implementation that oneDNN prefers, on `operands` cut into slices."""
    primitive = engine.primitive(descriptions(engine, dtype, describe)[0], operands, slices)
    return Choice(primitive.bind, primitive.name)
