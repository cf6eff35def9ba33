"""The batched update: each block of a parameter by two primitives on one thread, where NumPy takes six passes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.accelerators.cpu.numpy import half
from tcbench.accelerators.cpu.numpy.parallel import scratch
from tcbench.accelerators.cpu.numpy.update import Passes, update_by_blocks
from tcbench.accelerators.cpu.onednn.library import (
    ATTRIBUTE_SCALE,
    BINARY_ADD,
    DST,
    SRC,
    SRC_1,
    Array,
    Engine,
    Operand,
    Primitive,
)
from tcbench.accelerators.cpu.onednn.tuning import REFERENCE, Choice
from tcbench.work import SCALE, BatchedUpdate


def batched(engine: Engine, work: BatchedUpdate) -> Choice:
    """v = momentum * v - learning_rate * (g / scale + weight_decay * w); w += v. Gradients and weights of 16 bits are
    converted by oneDNN where it has more than plain C++ for that on this processor, else by NumPy."""
    of_threads = threading.local()
    decay = np.array([-work.learning_rate * work.weight_decay], np.float32)

    def made(name: str, size: int, make: Callable[[int], Primitive]) -> Primitive:
        """This thread's own: a primitive's memory objects are set before each call. None of these takes a scratchpad,
        which threads would share."""
        kept: dict[Any, Primitive] = of_threads.__dict__
        if not kept:
            engine.set_threads(1)
        if (name, size) not in kept:
            kept[name, size] = make(size)
        return kept[name, size]

    scaled = engine.attributes(scaled=(SRC, SRC_1), added=work.momentum)

    def momentum(size: int) -> Primitive:
        flat, one = (engine.descriptor("float32", (n,), (1,)) for n in (size, 1))
        described = engine.describe("binary", BINARY_ADD, flat.handle, flat.handle, flat.handle, scaled)
        scales = (Operand(index | ATTRIBUTE_SCALE, one) for index in (SRC, SRC_1))
        return engine.primitive(
            described, [Operand(SRC, flat), Operand(SRC_1, flat), *scales, Operand(DST, flat, True)]
        )

    def addition(size: int) -> Primitive:
        flat = engine.descriptor("float32", (size,), (1,))
        described = engine.describe("binary", BINARY_ADD, flat.handle, flat.handle, flat.handle, engine.plain)
        return engine.primitive(described, [Operand(SRC, flat), Operand(SRC_1, flat), Operand(DST, flat, True)])

    def conversion(source: str, target: str) -> Callable[[int], Primitive]:
        return lambda size: engine.conversion(*(engine.descriptor(dtype, (size,), (1,)) for dtype in (source, target)))

    stored = work.parameters.half
    to_single, to_half = conversion(stored, "float32"), conversion("float32", stored)

    def widen(g: Array, name: str) -> Array:
        if g.dtype == np.float32:
            return g
        wide = scratch(name, g.shape, np.float32)
        made("widen", g.size, to_single)(g, wide)
        return wide

    def narrow(w: Array, weights: Array) -> None:
        made("narrow", w.size, to_half)(w, weights)

    def run(table: Array, _: Array, master: Array, velocity: Array, state: Array) -> None:
        rate = np.array([-work.learning_rate / state[SCALE]], np.float32)

        def step(g: Array, v: Array, w: Array) -> None:
            made("momentum", v.size, momentum)(g, w, rate, decay, v)
            made("addition", v.size, addition)(w, v, w)

        update_by_blocks(work, table.reshape(-1, 2), master, velocity, state, Passes(convert[0], step, convert[1]))

    converts = not any(make(1).name.startswith(REFERENCE) for make in (to_single, to_half))
    convert = (widen, narrow) if converts else (half.load, half.convert)
    return Choice(functools.partial(functools.partial, run), momentum(1).name)
