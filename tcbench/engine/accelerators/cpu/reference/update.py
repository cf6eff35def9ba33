"""SGD with momentum for one parameter or for all parameters, loss scaling, and packing of gradients."""

import ctypes
from typing import Any

import numpy as np

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.operands import CHUNK, Operands, computes, is_finite
from tcbench.engine.accelerators.cpu.threads import Array

MAX_SCALE = 2.0**24


@computes(w.WeightDecay, cut="g w")
def weight_decay(work: w.WeightDecay, a: Operands) -> None:
    """Compute g += weight_decay * w."""
    g = a.g
    g += work.weight_decay * a.w
    a.write(g=g)


@computes(w.MomentumUpdate, cut="g v w")
def momentum_update(work: w.MomentumUpdate, a: Operands) -> None:
    """Compute v = momentum * v - learning_rate * g, then w += v."""
    v, weights = a.v, a.w
    v *= work.momentum
    v -= work.learning_rate * a.g
    weights += v
    a.write(v=v, w=weights)


@computes(w.Unscale)
def unscale(_: w.Unscale, a: Operands) -> None:
    """Compute gx = g / scale, with 0 for values that are not finite, and count chunks with such values."""
    state = a.raw("state")
    scale = float(state[w.SCALE])

    def compute(part: Operands) -> int:
        """Unscale a part of the gradient, set what is not finite to 0, and return whether anything was not finite."""
        part.write(gx=part.g / scale)
        finite = is_finite(part.raw("gx"))
        part.raw("gx")[~finite] = 0
        return not finite.all()

    state[w.OVERFLOWS] += sum(threads.collect(compute, a.cut("g gx", w.CHUNK)))


@computes(w.BatchedUpdate)
def batched_update(work: w.BatchedUpdate, a: Operands) -> None:
    """Update all parameters: unscale the gradient, apply weight decay and momentum, and round 16-bit weights. A value
    whose gradient is not finite keeps its velocity and weight."""
    state = a.raw("state")
    if work.dynamic and state[w.OVERFLOWS] > 0:
        return
    g_factor = -work.learning_rate / float(state[w.SCALE])

    def compute(block: Operands) -> int:
        """Update a block, except where the gradient is not finite, and return the number of chunks with such values."""
        g, v, weights = block.g, block.velocity, block.master
        finite = is_finite(g)
        skipped = slice(0) if finite.all() else ~finite
        before = v[skipped], weights[skipped]
        v *= work.momentum
        v += g_factor * g
        v += -work.learning_rate * work.weight_decay * weights
        weights += v
        v[skipped], weights[skipped] = before
        block.write(velocity=v, master=weights)
        if "half" in block:
            block.write(half=block.master)
        return _overflowing_chunks(finite)

    overflows = sum(threads.collect(compute, blocks(work, a)))
    if not work.dynamic:
        state[w.OVERFLOWS] += overflows


@computes(w.CheckFinite)
def check_finite(work: w.CheckFinite, a: Operands) -> None:
    """Add the number of chunks with a gradient that is not finite to state[OVERFLOWS]."""
    counts = threads.collect(lambda block: _overflowing_chunks(is_finite(block.raw("g"))), blocks(work, a))
    a.raw("state")[w.OVERFLOWS] += sum(counts)


@computes(w.PackGradients)
def pack_gradients(work: w.PackGradients, a: Operands) -> None:
    """Compute flat = gradient * factor in float32, also if other operations are exact."""

    def compute(block: Operands) -> None:
        block.write(flat=block.g.astype(np.float32, copy=False) * np.float32(work.factor))

    threads.run(compute, blocks(work, a))


@computes(w.AdjustScale)
def adjust_scale(work: w.AdjustScale, a: Operands) -> None:
    """Halve the loss scale on overflow, and double it after `interval` good steps."""
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
    """Return the number of chunks in which some value is not finite."""
    return 0 if finite.all() else sum(not finite[i : i + w.CHUNK].all() for i in range(0, finite.size, w.CHUNK))


def blocks(work: w.BatchedUpdate | w.CheckFinite | w.PackGradients, a: Operands) -> list[Operands]:
    """Return operands for all parameters in blocks of at most CHUNK values.

    Each block has the gradient `g`, its part of the flat arrays, and the weights `half` if the parameter is 16-bit."""
    parameters, parts = work.parameters, []
    rows = zip(parameters.sizes, parameters.places, parameters.halves, a.raw("table").tolist(), strict=True)
    for size, place, is_half, (gradient, half) in rows:
        arrays = {"g": _array_at(gradient, size, parameters.gradient_dtype(is_half))}
        arrays |= {name: a.raw(name)[place : place + size] for name in ("master", "velocity", "flat") if name in a}
        if half:
            arrays["half"] = _array_at(half, size, parameters.half)
        parts += a.with_arrays(arrays).cut(" ".join(arrays), CHUNK)
    return parts


def _array_at(address: int, size: int, dtype: str) -> Array:
    """Return the array at an address. The caller keeps its memory alive."""
    memory: Any = (ctypes.c_char * (size * w.ITEM_BYTES[dtype])).from_address(address)
    return np.frombuffer(memory, dtype)
