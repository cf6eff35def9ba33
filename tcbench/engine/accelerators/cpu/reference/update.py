"""SGD with momentum, parameter by parameter or all at once; the loss scale; gradients side by side."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.operands import CHUNK, Operands, computes, is_finite
from tcbench.engine.accelerators.cpu.threads import Array

MAX_SCALE = 2.0**24

Step = Callable[[Array, Array, Array], object]
"""Updates velocity and weights in place: gradient, velocity, weights."""


@computes(w.WeightDecay, cut="g w")
def weight_decay(work: w.WeightDecay, a: Operands) -> None:
    """g += weight_decay * w."""
    g = a.g
    g += work.weight_decay * a.w
    a.write(g=g)


@computes(w.MomentumUpdate, cut="g v w")
def momentum_update(work: w.MomentumUpdate, a: Operands) -> None:
    """v = momentum * v - learning_rate * g; w += v."""
    v, weights = a.v, a.w
    v *= work.momentum
    v -= work.learning_rate * a.g
    weights += v
    a.write(v=v, w=weights)


@computes(w.Unscale)
def unscale(_: w.Unscale, a: Operands) -> None:
    """gx = g / scale, 0 where that is not finite."""
    state = a.raw("state")
    scale = float(state[w.SCALE])

    def compute(part: Operands) -> int:
        part.write(gx=part.g / scale)
        finite = is_finite(part.raw("gx"))
        part.raw("gx")[~finite] = 0
        return not finite.all()

    state[w.OVERFLOWS] += sum(threads.collect(compute, a.cut("g gx", w.CHUNK)))


@computes(w.BatchedUpdate)
def batched_update(work: w.BatchedUpdate, a: Operands) -> None:
    """Do for every parameter what the works above do for one."""
    g_factor = -work.learning_rate / float(a.raw("state")[w.SCALE])

    def step(g: Array, v: Array, weights: Array) -> None:
        v *= work.momentum
        v += g_factor * g
        v += -work.learning_rate * work.weight_decay * weights
        weights += v

    update_by(step, work, a)


def update_by(step: Step, work: w.BatchedUpdate, a: Operands) -> None:
    """Make this step with all parameters. A value whose gradient is not finite keeps its velocity and weight."""
    state = a.raw("state")
    if work.dynamic and state[w.OVERFLOWS] > 0:
        return

    def compute(block: Operands) -> int:
        g, v, weights = block.g, block.velocity, block.master
        finite = is_finite(g)
        lost = slice(0) if finite.all() else ~finite
        kept = v[lost], weights[lost]
        step(g, v, weights)
        v[lost], weights[lost] = kept
        block.write(velocity=v, master=weights)
        if "half" in block:
            block.write(half=block.master)
        return _overflowing_chunks(finite)

    overflows = sum(threads.collect(compute, blocks(work, a)))
    if not work.dynamic:
        state[w.OVERFLOWS] += overflows


@computes(w.CheckFinite)
def check_finite(work: w.CheckFinite, a: Operands) -> None:
    """Count the chunks with a gradient that is not finite."""
    counts = threads.collect(lambda block: _overflowing_chunks(is_finite(block.raw("g"))), blocks(work, a))
    a.raw("state")[w.OVERFLOWS] += sum(counts)


@computes(w.PackGradients)
def pack_gradients(work: w.PackGradients, a: Operands) -> None:
    """flat = gradient * factor, in float32 also where all else is exact: the product is rounded before it is stored."""

    def compute(block: Operands) -> None:
        block.write(flat=block.g.astype(np.float32, copy=False) * np.float32(work.factor))

    threads.run(compute, blocks(work, a))


@computes(w.AdjustScale)
def adjust_scale(work: w.AdjustScale, a: Operands) -> None:
    """Halve the scale on overflow, and double it after `interval` good steps."""
    state = a.raw("state")
    if state[w.OVERFLOWS] > 0:
        state[w.SCALE] = max(state[w.SCALE] / 2, 1)
        state[w.GOOD_STEPS] = 0
        state[w.SKIPPED] += 1
    else:
        state[w.GOOD_STEPS] += 1
        if state[w.GOOD_STEPS] >= work.interval:
            state[w.SCALE] = min(state[w.SCALE] * 2, MAX_SCALE)
            state[w.GOOD_STEPS] = 0
    state[w.OVERFLOWS] = 0


def _overflowing_chunks(finite: Array) -> int:
    return 0 if finite.all() else sum(not finite[i : i + w.CHUNK].all() for i in range(0, finite.size, w.CHUNK))


def blocks(work: w.BatchedUpdate | w.CheckFinite | w.PackGradients, a: Operands) -> list[Operands]:
    """Return all parameters in blocks, each with its gradient `g`, its part of the flat arrays, and its 16-bit weights
    `half` where it has such."""
    parameters, found = work.parameters, []
    rows = zip(parameters.sizes, parameters.places, parameters.halves, a.raw("table").tolist(), strict=True)
    for size, place, is_half, (gradient, half) in rows:
        arrays = {"g": _at(gradient, size, parameters.gradient_dtype(is_half))}
        arrays |= {name: a.raw(name)[place : place + size] for name in ("master", "velocity", "flat") if name in a}
        if half:
            arrays["half"] = _at(half, size, parameters.half)
        found += a.with_arrays(arrays).cut(" ".join(arrays), CHUNK)
    return found


def _at(address: int, size: int, dtype: str) -> Array:
    """Return the array that an entry of a table of addresses names. Whoever made the table keeps it alive."""
    memory: Any = (ctypes.c_char * (size * w.ITEM_BYTES[dtype])).from_address(address)
    return np.frombuffer(memory, dtype)
