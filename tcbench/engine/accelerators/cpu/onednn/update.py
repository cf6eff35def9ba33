"""The batched update: each block of a parameter by two primitives on one thread, where NumPy takes six passes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.engine.accelerators.cpu.onednn import library as dnnl
from tcbench.engine.accelerators.cpu.onednn.library import Array, Engine, Operand, Primitive, Unimplemented
from tcbench.engine.accelerators.cpu.onednn.tuning import Choice
from tcbench.engine.accelerators.cpu.reference import half
from tcbench.engine.accelerators.cpu.reference.update import (
    Passes,
    pack_by_blocks,
    unscale_by_chunks,
    update_by_blocks,
)
from tcbench.engine.accelerators.cpu.threads import scratch
from tcbench.engine.work import ITEM_BYTES, SCALE, BatchedUpdate, PackGradients, Unscale


def _bind(run: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """What binds a function to arrays: the launch on them."""
    return lambda *arrays: functools.partial(run, *arrays)


class _OfThreads:
    """Primitives by name and size, each thread's own: a primitive's memory objects are set before each call. None of
    these takes a scratchpad, which threads would share."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._local = threading.local()

    def prepare_thread(self) -> dict[Any, Primitive]:
        """The primitives of this thread; at its first call, primitives are told to take no other."""
        kept: dict[Any, Primitive] = self._local.__dict__
        if not kept:
            self._engine.set_threads(1)
        return kept

    def __call__(self, name: str, size: int, make: Callable[[int], Primitive]) -> Primitive:
        kept = self.prepare_thread()
        if (name, size) not in kept:
            kept[name, size] = make(size)
        return kept[name, size]


_Conversions = tuple[Callable[[Array, str], Array], Callable[[Array, Array], object]]
"""`widen` and `narrow` of `Passes`."""


def _conversions(engine: Engine, stored: str, made: _OfThreads) -> _Conversions:
    """By oneDNN where it has more than plain C++ for that on this processor, else by NumPy."""

    def conversion(source: str, target: str) -> Callable[[int], Primitive]:
        return lambda size: engine.conversion(*(engine.descriptor(dtype, (size,), (1,)) for dtype in (source, target)))

    to_single, to_half = conversion(stored, "float32"), conversion("float32", stored)

    def widen(g: Array, name: str) -> Array:
        if g.dtype == np.float32:
            return g
        wide = scratch(name, g.shape, np.float32)
        made("widen", g.size, to_single)(g, wide)
        return wide

    def narrow(w: Array, weights: Array) -> None:
        made("narrow", w.size, to_half)(w, weights)

    return (widen, narrow) if engine.converts(stored) else (half.load, half.convert)


def unscale(engine: Engine, work: Unscale) -> Choice:
    """gx = g / scale, 0 where that is not finite."""
    stored = work.operands[0].dtype
    if stored not in ITEM_BYTES or ITEM_BYTES[stored] != 2 or stored != work.operands[1].dtype:
        raise Unimplemented(stored)
    widen, narrow = _conversions(engine, stored, _OfThreads(engine))

    def run(g: Array, gx: Array, state: Array) -> None:
        unscale_by_chunks(work, g.reshape(-1), gx.reshape(-1), state, widen, narrow)

    return Choice(_bind(run), f"conversion of {stored}")


def batched(engine: Engine, work: BatchedUpdate) -> Choice:
    """v = momentum * v - learning_rate * (g / scale + weight_decay * w); w += v."""
    made = _OfThreads(engine)
    factors = np.array([0, -work.learning_rate * work.weight_decay], np.float32)  # of gradients and of weights
    blocks: dict[int, _Block] = {}
    scaled = engine.attributes(scaled=(dnnl.SRC, dnnl.SRC_1), added=work.momentum)

    def momentum(size: int) -> Primitive:
        flat, one = (engine.descriptor("float32", (n,), (1,)) for n in (size, 1))
        described = engine.describe("binary", dnnl.BINARY_ADD, flat.handle, flat.handle, flat.handle, scaled)
        scales = (Operand(index | dnnl.ATTRIBUTE_SCALE, one) for index in (dnnl.SRC, dnnl.SRC_1))
        return engine.primitive(
            described, [Operand(dnnl.SRC, flat), Operand(dnnl.SRC_1, flat), *scales, Operand(dnnl.DST, flat, True)]
        )

    def addition(size: int) -> Primitive:
        flat = engine.descriptor("float32", (size,), (1,))
        described = engine.describe("binary", dnnl.BINARY_ADD, flat.handle, flat.handle, flat.handle, engine.plain)
        return engine.primitive(
            described, [Operand(dnnl.SRC, flat), Operand(dnnl.SRC_1, flat), Operand(dnnl.DST, flat, True)]
        )

    widen, narrow = _conversions(engine, work.parameters.half, made)

    def run(table: Array, _: Array, master: Array, velocity: Array, state: Array) -> None:
        factors[0] = -work.learning_rate / state[SCALE]

        def step(place: int, g: Array, v: Array, w: Array) -> None:
            made.prepare_thread()
            at = dnnl.address(g), dnnl.address(v), dnnl.address(w)
            block = blocks.get(place)
            if block is None or block.at != at:
                primitives = block.primitives if block else (momentum(v.size), addition(v.size))
                block = blocks[place] = _Block(at, primitives, dnnl.address(factors))
            block.run()

        update_by_blocks(work, table.reshape(-1, 2), master, velocity, state, Passes(widen, step, narrow))

    return Choice(_bind(run), momentum(1).name)


class _Block:
    """The update of a block on arrays at these addresses of gradient, velocity and weights, by primitives of its own:
    these then keep what they were set to, a sixth of the time of an update."""

    def __init__(self, at: tuple[int, int, int], primitives: tuple[Primitive, Primitive], factors: int) -> None:
        g, v, w = at
        self.at = at
        self.primitives = primitives
        momentum, addition = primitives
        self._momentum = functools.partial(momentum.at, [g, w, factors, factors + 4, v])
        self._addition = functools.partial(addition.at, [w, v, w])

    def run(self) -> None:
        self._momentum()
        self._addition()


def pack(engine: Engine, work: PackGradients) -> Choice:
    """flat = gradient * factor, each block by NumPy between oneDNN's conversions."""
    of = work.parameters
    if work.dtype == "float32" and not any(of.halves):
        raise Unimplemented("nothing to convert")
    widen, narrow = _conversions(engine, of.half, _OfThreads(engine))

    def run(table: Array, _: Array, flat: Array) -> None:
        pack_by_blocks(work, table.reshape(-1, 2), flat, widen, narrow)

    return Choice(_bind(run), f"conversion of {of.half}")
