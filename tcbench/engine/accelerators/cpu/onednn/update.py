"""The batched update in one pass over memory, by a function in C where this machine compiles it: update.c.

Else each block of a parameter goes through oneDNN's primitives in the second-level cache, where NumPy takes six passes.
ResNet-50 on two cores of an AMD EPYC, least times in ms: a plain loop 7.0, C 10.1 in each dtype; oneDNN 17.0 (float32)
and 23.6 (bfloat16). Tried too: oneDNN's addition
of a bfloat16 gradient to float32 is its reference, value by value; a loop in Numba took ten times a plain one's time.
"""

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tcbench.engine.accelerators.cpu import compiled, threads
from tcbench.engine.accelerators.cpu.onednn import library
from tcbench.engine.accelerators.cpu.onednn.library import Array, Binding, Engine, Primitive, Unimplemented
from tcbench.engine.accelerators.cpu.onednn.team import PrimitiveCall
from tcbench.engine.accelerators.cpu.onednn.tuning import Choice
from tcbench.engine.accelerators.cpu.reference.operands import (
    Convert,
    Operands,
    assign,
    compute,
    make_launch,
    make_operands,
)
from tcbench.engine.accelerators.cpu.reference.update import update_by
from tcbench.engine.work import (
    HALVES,
    ITEM_BYTES,
    OVERFLOWS,
    SCALE,
    BatchedUpdate,
    PackGradients,
    Parameters,
    ToHalf,
    ToSingle,
    Unscale,
)

_ROWS = 32
"""Of the chunk table in a call: half a millisecond of work, beside which Python's part is nothing, and little to wait
for where the other thread has lost its processor."""
CODES: dict[str, int] = {"float32": 0, "float16": 1, "bfloat16": 2}
"""Of dtypes in C."""
_CHUNK = 1 << 14
"""Values of a conversion that one thread takes at least, one of 64 chunks at most."""


def _bind(run: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """What binds a function to arrays: the launch on them."""
    return lambda *arrays: functools.partial(run, *arrays)


class _OfThreads:
    """Primitives by name and size, each thread's own: a primitive's memory objects are set before each call. None of
    these takes a scratchpad, which threads would share."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._local = threading.local()

    def __call__(self, name: str, size: int, make: Callable[[int], Primitive]) -> Primitive:
        kept: dict[Any, Primitive] = self._local.__dict__
        if not kept:
            self._engine.set_threads(1)  # OpenMP keeps the number by thread
        if (name, size) not in kept:
            kept[name, size] = make(size)
        return kept[name, size]


def _conversions(engine: Engine, stored: str, primitives: _OfThreads) -> Convert:
    """Return what converts between `stored` and float32: C or, without a compiler, oneDNN where it has more than plain
    C++ for that on this processor, else NumPy."""
    made = _compiled()
    if made is None and not engine.converts(stored):
        return assign

    def primitive(source: Array, target: Array) -> Primitive:
        dtypes = source.dtype.name, target.dtype.name
        return primitives(
            " to ".join(dtypes),
            source.size,
            lambda size: engine.conversion(*(engine.descriptor(dtype, (size,), (1,)) for dtype in dtypes)),
        )

    def convert(source: Array, target: Array) -> None:
        if made is None:
            primitive(source, target)(source, target)
        else:
            code = CODES[stored] if target.dtype == np.float32 else -CODES[stored]
            made.convert(library.address(source), library.address(target), code, source.size)

    return convert


def unscale(engine: Engine, work: Unscale) -> Choice:
    """gx = g / scale, 0 where that is not finite."""
    stored = work.operands[0].dtype
    if stored not in ITEM_BYTES or ITEM_BYTES[stored] != 2 or stored != work.operands[1].dtype:
        raise Unimplemented(stored)
    convert = _conversions(engine, stored, _OfThreads(engine))
    return Choice(functools.partial(make_launch, work, convert=convert), f"conversion of {stored}")


def cast(engine: Engine, source: Array, out: Array) -> None:
    """`source` in `out`'s dtype, one of both float32 and the other of 16 bits; both contiguous. By the function in C on
    all threads, where it can be had."""
    code = CODES[source.dtype.name] or -CODES[out.dtype.name]
    launch = _conversion(engine, library.address(source), library.address(out), code, source.size)
    if launch is None:
        compute((ToSingle if out.dtype == np.float32 else ToHalf)(source.size), source, out)
    else:
        launch()


@functools.lru_cache(1 << 12)
def _conversion(engine: Engine, source: int, out: int, code: int, size: int) -> Callable[[], int] | None:
    """The launch, from and to these addresses."""
    made = _compiled()
    if made is None or engine.team is None:
        return None
    from_bytes, to_bytes = (2, 4) if code > 0 else (4, 2)
    convert = ctypes.cast(made.convert, ctypes.c_void_p)
    chunks = [
        [PrimitiveCall(convert, source + begin * from_bytes, out + begin * to_bytes, end - begin, code)]
        for begin, end in threads.spans(size, max(_CHUNK, -(-size // 64)))
    ]
    return engine.team.bind([chunks])


def batched(engine: Engine, work: BatchedUpdate) -> Choice:
    """v = momentum * v - learning_rate * (g / scale + weight_decay * w); w += v."""
    made = _compiled()
    return _by_primitives(engine, work) if made is None else Choice(_bind(_in_c(made, work)), "C, one pass")


@functools.cache
def _compiled() -> ctypes.CDLL | None:
    """The functions of update.c; None where they cannot be had."""
    made = compiled.library(Path(__file__).with_name("update.c"), _does_as_numpy)
    return None if made is None else _declared(made)


def _declared(made: ctypes.CDLL) -> ctypes.CDLL:
    address, real, code = ctypes.c_void_p, ctypes.c_float, ctypes.c_int
    made.batched_update.argtypes = (address, address, ctypes.c_int64, address, address, real, real, real, address, code)
    made.batched_update.restype = ctypes.c_int64
    made.convert.argtypes = (address, address, code, address)
    return made


def _in_c(made: ctypes.CDLL, work: BatchedUpdate) -> Callable[..., None]:
    of, function = work.parameters, made.batched_update
    gradients = (ctypes.c_int * 2)(*(CODES[of.gradient_dtype(half)] for half in (False, True)))

    def run(table: Array, chunks: Array, master: Array, velocity: Array, state: Array) -> None:
        if work.dynamic and state[OVERFLOWS] > 0:
            return
        factors = work.momentum, -work.learning_rate / float(state[SCALE]), -work.learning_rate * work.weight_decay
        rest = library.address(master), library.address(velocity), *factors, gradients, CODES[of.half]
        addresses, rows = library.address(table), library.address(chunks)
        overflows: list[int] = []

        def update(span: tuple[int, int]) -> None:
            first, end = span
            overflows.append(function(addresses, rows + first * 4 * chunks.itemsize, end - first, *rest))

        threads.run(update, threads.spans(of.n_chunks, _ROWS))
        if not work.dynamic:
            state[OVERFLOWS] += sum(overflows)

    return run


def _does_as_numpy(made: ctypes.CDLL) -> bool:
    """Whether it updates every bit as NumPy does: parameters with and without 16 bits, values that overflow or lie
    halfway between two, gradients that are not finite."""
    rng = np.random.default_rng(0)
    _declared(made)
    for half_dtype, weight_decay in zip(HALVES, (1e-4, 0.0), strict=True):
        of = Parameters((1500, 5, 700, 0, 1), (True, False, False, True, True), half_dtype)
        work = BatchedUpdate(of, 0.1, 0.9, weight_decay, dynamic=False)
        gradients = [
            (rng.standard_normal(size) * 10.0 ** rng.integers(-9, 3, size)).astype(of.gradient_dtype(is_half))
            for size, is_half in zip(of.sizes, of.halves, strict=True)
        ]
        gradients[0][:300], gradients[0][[3, 900]], gradients[2][7] = 0, (np.inf, np.nan), -np.inf
        chunks = np.array(list(of.chunks()), np.int64)
        master, velocity = rng.standard_normal((2, of.total)).astype(np.float32)
        master[:300], velocity[:300] = 1 + np.arange(300) / 256, 0  # halfway between two numbers of 16 bits
        master[300:304] = 1e30, 1e-7, -1e-41, 65519.0
        results = []
        for update in (_in_c(made, work), functools.partial(compute, work)):
            halves, state = np.zeros(of.total_half, half_dtype), np.array([128, 0, 0, 0], np.float32)
            table = np.array(
                [
                    (gradient.ctypes.data, halves[place:].ctypes.data if is_half else 0)
                    for gradient, place, is_half in zip(gradients, of.half_places, of.halves, strict=True)
                ]
            )
            arrays = master.copy(), velocity.copy(), state
            with np.errstate(all="ignore"):
                update(table, chunks, *arrays)
            results.append(b"".join(array.tobytes() for array in (*arrays, halves)))
        if results[0] != results[1] or not _converts_as_numpy(made, np.dtype(half_dtype)):
            return False
    return True


def _converts_as_numpy(made: ctypes.CDLL, stored: np.dtype[Any]) -> bool:
    """Whether every value of 16 bits becomes the same in float32, and numbers between them the same of 16 bits."""

    def agree(source: Array, target: Array, code: int) -> bool:
        with np.errstate(all="ignore"):
            ours, expected = np.empty_like(target), source.astype(target.dtype)
        made.convert(source.ctypes.data, ours.ctypes.data, code, source.size)
        equal = ours.view(np.uint8).reshape(source.size, -1) == expected.view(np.uint8).reshape(source.size, -1)
        return bool((equal.all(axis=1) | (np.isnan(ours) & np.isnan(expected))).all())

    code, halves = CODES[stored.name], np.arange((1 << 16) - 1, dtype=np.uint16).view(stored)
    singles = halves.astype(np.float32)
    between = [
        (singles.view(np.uint32) + step).view(np.float32) for step in (0, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000)
    ]
    return agree(halves, singles, code) and agree(np.concatenate(between), np.empty(6 * halves.size, stored), -code)


def _by_primitives(engine: Engine, work: BatchedUpdate) -> Choice:
    """Of each block, with primitives of each thread's own."""
    made = _OfThreads(engine)
    factors = np.array([0, -work.learning_rate * work.weight_decay], np.float32)  # of gradients and of weights
    scaled = engine.attributes(scaled=(library.SRC, library.SRC_1), added=work.momentum)

    def addition(size: int, attributes: int = engine.plain, scales: Sequence[int] = ()) -> Primitive:
        flat, one = (engine.descriptor("float32", (n,), (1,)) for n in (size, 1))
        described = engine.describe("binary", library.BINARY_ADD, flat.handle, flat.handle, flat.handle, attributes)
        factors = (Binding(index | library.ATTRIBUTE_SCALE, one) for index in scales)
        operands = [
            Binding(library.SRC, flat),
            Binding(library.SRC_1, flat),
            *factors,
            Binding(library.DST, flat, True),
        ]
        return engine.primitive(described, operands)

    momentum = functools.partial(addition, attributes=scaled, scales=(library.SRC, library.SRC_1))
    convert = _conversions(engine, work.parameters.half, made)

    def step(g: Array, v: Array, w: Array) -> None:
        made("momentum", v.size, momentum)(g, w, factors, factors[1:], v)
        made("addition", v.size, addition)(w, v, w)

    def run(a: Operands) -> None:
        factors[0] = -work.learning_rate / a.raw("state")[SCALE]
        update_by(step, work, a)

    def bind(*arrays: Array) -> Callable[[], None]:
        return functools.partial(run, make_operands(work, *arrays, convert=convert))

    return Choice(bind, momentum(1).name)


def pack(engine: Engine, work: PackGradients) -> Choice:
    """flat = gradient * factor, each block by NumPy between oneDNN's conversions."""
    of = work.parameters
    if work.dtype == "float32" and not any(of.halves):
        raise Unimplemented("nothing to convert")
    if work.dtype not in ("float32", of.half):
        raise Unimplemented(f"{of.half} to {work.dtype}")
    convert = _conversions(engine, of.half, _OfThreads(engine))
    return Choice(functools.partial(make_launch, work, convert=convert), f"conversion of {of.half}")
