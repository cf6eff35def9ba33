"""SGD with momentum: parameter by parameter, one pass over memory per piece of work; or all parameters in one pass,
block by block in cache."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.half import convert, is_finite, load
from tcbench.engine.accelerators.cpu.threads import Array, by_chunks, scratch
from tcbench.engine.work import (
    CHUNK,
    GOOD_STEPS,
    OVERFLOWS,
    SCALE,
    SKIPPED,
    AdjustScale,
    BatchedUpdate,
    CheckFinite,
    MomentumUpdate,
    PackGradients,
    Parameters,
    Unscale,
    WeightDecay,
)

BLOCK = 1 << 17
"""Values that one thread takes of a parameter: gradient, weight and velocity of a block, 1.5 MB, stay in a second-level
cache of 2 MB. Of half that, two threads meet at the interpreter lock too often."""
_SMALL = BLOCK // 8
MAX_SCALE = 2.0**24

Widen = Callable[[Array, str], Array]
"""Of 16 bits to float32: the array itself where it is that, else in this thread's memory of a name."""
Narrow = Callable[[Array, Array], object]
"""Of float32 to 16 bits, which are written."""


def unscale(work: Unscale, g: Array, gx: Array, state: Array, widen: Widen = load, narrow: Narrow = convert) -> None:
    """See Unscale."""
    scale, overflows = state[SCALE], []

    def compute(span: tuple[int, int]) -> None:
        part, out = g[slice(*span)], gx[slice(*span)]
        wide = widen(part, "update.g")
        narrow(np.divide(wide, scale, out=scratch("update.unscaled", wide.shape, wide.dtype)), out)
        finite = is_finite(out)
        if not finite.all():
            out[~finite] = 0
            overflows.append(1)

    threads.run(compute, [(begin, min(begin + CHUNK, work.size)) for begin in range(0, work.size, CHUNK)])
    state[OVERFLOWS] += len(overflows)


def weight_decay(work: WeightDecay, g: Array, w: Array) -> None:
    """See WeightDecay."""

    def compute(g: Array, w: Array) -> None:
        decay = scratch("update.decay", w.shape, w.dtype)
        np.multiply(w, work.weight_decay, out=decay)
        np.add(g, decay, out=g)

    by_chunks(compute, BLOCK, g, w)


def momentum_update(work: MomentumUpdate, g: Array, v: Array, w: Array) -> None:
    """See MomentumUpdate."""

    def compute(g: Array, v: Array, w: Array) -> None:
        step = scratch("update.step", g.shape, g.dtype)
        np.multiply(g, work.learning_rate, out=step)
        np.multiply(v, work.momentum, out=v)
        np.subtract(v, step, out=v)
        np.add(w, v, out=w)

    by_chunks(compute, BLOCK, g, v, w)


def batched_update(work: BatchedUpdate, table: Array, _: Array, master: Array, velocity: Array, state: Array) -> None:
    """See BatchedUpdate."""
    rate = work.learning_rate

    def step(g: Array, v: Array, w: Array) -> None:
        part = scratch("update.step", v.shape, np.float32)
        np.multiply(v, work.momentum, out=v)
        for values, factor in ((g, -rate / float(state[SCALE])), (w, -rate * work.weight_decay)):
            np.multiply(values, factor, out=part)
            np.add(v, part, out=v)
        np.add(w, v, out=w)

    update_by_blocks(work, table, master, velocity, state, step, load, convert)


def update_by_blocks(
    work: BatchedUpdate,
    table: Array,
    master: Array,
    velocity: Array,
    state: Array,
    step: Callable[[Array, Array, Array], None],
    widen: Widen,
    narrow: Narrow,
) -> None:
    """BatchedUpdate, each block in the second-level cache: memory is read and written once. `step(g, v, w)`: of a
    block, in place."""
    if work.dynamic and state[OVERFLOWS] > 0:
        return
    parameters = work.parameters
    gradients = _gradients(work, table)
    halves = [
        _at(address, size, parameters.half) if address else None
        for size, address in zip(parameters.sizes, table[:, 1].tolist(), strict=True)
    ]
    overflows: list[int] = []

    def compute(row: tuple[int, int, int, int]) -> None:
        index, begin, end, place = row
        here = slice(place, place + end - begin)
        v, w = velocity[here], master[here]
        g = widen(gradients[index][begin:end], "update.g")
        kept = None
        if not _surely_finite(g) and not (finite := np.isfinite(g)).all():
            overflows.append(_chunks_with_overflow(finite))
            kept = ~finite, v[~finite], w[~finite]
        step(g, v, w)
        if kept:
            v[kept[0]], w[kept[0]] = kept[1:]
        weights = halves[index]
        if weights is not None:
            narrow(w, weights[begin:end])

    _run_blocks(compute, parameters)
    if not work.dynamic:
        state[OVERFLOWS] += sum(overflows)


def check_finite(work: CheckFinite, table: Array, _: Array, state: Array) -> None:
    """See CheckFinite."""
    gradients = _gradients(work, table)
    overflows: list[int] = []

    def compute(row: tuple[int, int, int, int]) -> None:
        index, begin, end, _ = row
        part = gradients[index][begin:end]
        g = convert(part, scratch("update.g", part.shape, np.float32))
        if not _surely_finite(g) and not (finite := np.isfinite(g)).all():
            overflows.append(_chunks_with_overflow(finite))

    _run_blocks(compute, work.parameters)
    state[OVERFLOWS] += sum(overflows)


_Block = tuple[int, int, int, int]
"""Parameter, begin, end, place in the flat arrays."""


def _run_blocks(compute: Callable[[_Block], object], parameters: Parameters) -> None:
    def every(blocks: tuple[_Block, ...]) -> None:
        for block in blocks:
            compute(block)

    threads.run(every, _blocks(parameters))


@functools.cache
def _blocks(parameters: Parameters) -> tuple[tuple[_Block, ...], ...]:
    """Blocks that together cover every parameter: larger ones than the table's chunks, which are a GPU's thread blocks.
    Small ones are one chunk: side by side, two threads would do little but wait for the interpreter lock."""
    blocks = [
        (index, begin, min(begin + BLOCK, size), place + begin)
        for index, (size, place) in enumerate(zip(parameters.sizes, parameters.places, strict=True))
        for begin in range(0, size, BLOCK)
    ]
    small = tuple(block for block in blocks if block[2] - block[1] <= _SMALL)
    large = tuple((block,) for block in blocks if block[2] - block[1] > _SMALL)
    return (small, *large) if small else large


def _surely_finite(g: Array) -> bool:
    """Whether all values are finite, by one pass of BLAS; False says nothing, since large squares overflow too."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(g, g)))


def _chunks_with_overflow(finite: Array) -> int:
    return sum(not finite[begin : begin + CHUNK].all() for begin in range(0, finite.size, CHUNK))


def pack_gradients(
    work: PackGradients, table: Array, _: Array, flat: Array, widen: Widen = load, narrow: Narrow = convert
) -> None:
    """See PackGradients."""
    gradients = _gradients(work, table)

    def compute(row: _Block) -> None:
        index, begin, end, place = row
        out = flat[place : place + end - begin]
        single = out if out.dtype == np.float32 else scratch("update.packed", out.shape, np.float32)
        np.multiply(widen(gradients[index][begin:end], "update.g"), np.float32(work.factor), out=single)
        if single is not out:
            narrow(single, out)

    _run_blocks(compute, work.parameters)


def _gradients(work: BatchedUpdate | CheckFinite | PackGradients, table: Array) -> list[Array]:
    of = work.parameters
    return [
        _at(address, size, of.gradient_dtype(half))
        for size, half, address in zip(of.sizes, of.halves, table[:, 0].tolist(), strict=True)
    ]


def _at(address: int, size: int, dtype: npt.DTypeLike) -> Array:
    """The array that an entry of a table of addresses names; whoever made the table keeps it alive."""
    memory: Any = (ctypes.c_char * (size * np.dtype(dtype).itemsize)).from_address(address)
    array: Array = np.frombuffer(memory, dtype)
    return array


def adjust_scale(work: AdjustScale, state: Any) -> None:
    """See AdjustScale."""
    if state[OVERFLOWS] > 0:
        state[SCALE] = max(state[SCALE] / 2, 1)
        state[GOOD_STEPS] = 0
        state[SKIPPED] += 1
    else:
        state[GOOD_STEPS] += 1
        if state[GOOD_STEPS] >= work.interval:
            state[SCALE] = min(state[SCALE] * 2, MAX_SCALE)
            state[GOOD_STEPS] = 0
    state[OVERFLOWS] = 0
