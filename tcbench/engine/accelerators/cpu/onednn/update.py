"""The batched update and 16-bit conversions by update.c; NumPy does them on machines without a C compiler.

update.c makes one pass over memory, where NumPy takes six. Least times for ResNet-50 on two cores of a Sapphire Rapids
Xeon: update.c 14 ms in float32 and 28 ms in bfloat16, NumPy 45 ms and 104 ms.

Three alternatives were slower: oneDNN's primitives on blocks in the second-level cache (38 ms and 105 ms), oneDNN's
addition of a bfloat16 gradient to float32, which goes value by value, and a loop in Numba."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu import compiled, threads
from tcbench.engine.accelerators.cpu.onednn import library
from tcbench.engine.accelerators.cpu.onednn.library import Array, Engine, Unimplemented
from tcbench.engine.accelerators.cpu.onednn.team import PrimitiveCall
from tcbench.engine.accelerators.cpu.onednn.tuning import Choice
from tcbench.engine.accelerators.cpu.reference.operands import compute, make_launch

_ROWS = 32
"""Rows of the chunk table per call: 0.5 ms of work, which is long compared with Python's overhead, and a short wait if
another thread has lost its core."""
CODES: dict[str, int] = {"float32": 0, "float16": 1, "bfloat16": 2}
"""The code of each dtype in C."""
_CHUNK = 1 << 14
"""The least values per chunk of a conversion, which has at most 64 chunks."""


def unscale(_: Engine, work: w.Unscale) -> Choice:
    """Return NumPy's Unscale, converting by update.c. Raises Unimplemented unless g and gx have one 16-bit dtype."""
    stored = work.operands[0].dtype
    if stored not in w.ITEM_BYTES or w.ITEM_BYTES[stored] != 2 or stored != work.operands[1].dtype:
        raise Unimplemented(stored)
    return _with_conversions(work, stored)


def _with_conversions(work: w.Unscale | w.PackGradients, stored: str) -> Choice:
    """Return NumPy's implementation, in which update.c converts between `stored` and float32. Raises Unimplemented."""
    functions = _functions()

    def convert(source: Array, target: Array) -> None:
        code = CODES[stored] if target.dtype == np.float32 else -CODES[stored]
        functions.convert(library.address(source), library.address(target), code, source.size)

    return Choice(functools.partial(make_launch, work, convert=convert), f"conversion of {stored}")


def cast(engine: Engine, source: Array, out: Array) -> None:
    """Copy a contiguous array to `out` and convert it between float32 and 16 bits. Uses update.c on all threads if it
    is compiled, else NumPy."""
    code = CODES[source.dtype.name] or -CODES[out.dtype.name]
    launch = _conversion(engine, library.address(source), library.address(out), code, source.size)
    if launch is None:
        compute((w.ToSingle if out.dtype == np.float32 else w.ToHalf)(source.size), source, out)
    else:
        launch()


@functools.lru_cache(1 << 12)
def _conversion(engine: Engine, source: int, out: int, code: int, size: int) -> Callable[[], int] | None:
    """Return the launch of a conversion of `size` values between two addresses, or None without update.c. `code` is the
    16-bit dtype's, negative for a conversion to 16 bits. The team runs `convert`, which has the signature EXECUTE."""
    functions = _compiled()
    if functions is None:
        return None
    from_bytes, to_bytes = (2, 4) if code > 0 else (4, 2)
    convert = ctypes.cast(functions.convert, ctypes.c_void_p)
    chunks = [
        [PrimitiveCall(convert, source + begin * from_bytes, out + begin * to_bytes, end - begin, code)]
        for begin, end in threads.spans(size, max(_CHUNK, -(-size // 64)))
    ]
    return engine.team.bind([chunks])


def batched(_: Engine, work: w.BatchedUpdate) -> Choice:
    """Return the batched update by update.c. Raises Unimplemented if this machine cannot compile it."""
    run = _by_c(_functions(), work)
    return Choice(lambda *arrays: functools.partial(run, *arrays), "C, one pass")


def _functions() -> ctypes.CDLL:
    """Return the functions of update.c. Raises Unimplemented if this machine cannot compile them."""
    if (functions := _compiled()) is None:
        raise Unimplemented("update.c")
    return functions


@functools.cache
def _compiled() -> ctypes.CDLL | None:
    """Return the functions of update.c, or None if this machine cannot compile them."""
    functions = compiled.load_library(Path(__file__).with_name("update.c"), _matches_numpy)
    return None if functions is None else _declared(functions)


def _declared(functions: ctypes.CDLL) -> ctypes.CDLL:
    """Set the argument and result types of the functions of update.c."""
    address, real, code, size = ctypes.c_void_p, ctypes.c_float, ctypes.c_int, ctypes.c_int64
    update = functions.batched_update
    update.argtypes = (address, address, size, address, address, real, real, real, address, code)
    update.restype = size
    functions.convert.argtypes = (address, address, code, address)
    return functions


def _by_c(functions: ctypes.CDLL, work: w.BatchedUpdate) -> Callable[..., None]:
    """Return a function that makes the batched update by update.c; it takes the operation's arrays."""
    parameters, function = work.parameters, functions.batched_update
    gradients = (ctypes.c_int * 2)(*(CODES[parameters.gradient_dtype(half)] for half in (False, True)))

    def run(table: Array, chunks: Array, master: Array, velocity: Array, state: Array) -> None:
        """Update all weights by chunks on the threads; skip the step if dynamic loss scaling found an overflow."""
        if work.dynamic and state[w.OVERFLOWS] > 0:
            return
        factors = work.momentum, -work.learning_rate / float(state[w.SCALE]), -work.learning_rate * work.weight_decay
        rest = library.address(master), library.address(velocity), *factors, gradients, CODES[parameters.half]
        addresses, rows = library.address(table), library.address(chunks)
        overflows: list[int] = []

        def update(span: tuple[int, int]) -> None:
            first, end = span
            overflows.append(function(addresses, rows + first * 4 * chunks.itemsize, end - first, *rest))

        threads.run(update, threads.spans(parameters.n_chunks, _ROWS))
        if not work.dynamic:
            state[w.OVERFLOWS] += sum(overflows)

    return run


def _matches_numpy(functions: ctypes.CDLL) -> bool:
    """Return whether all results of a compiled update.c are equal to NumPy's bit by bit.

    The cases include 16-bit and float32 parameters, values that overflow or are halfway between two 16-bit numbers, and
    gradients that are not finite."""
    rng = np.random.default_rng(0)
    _declared(functions)
    for half_dtype, weight_decay in zip(w.HALVES, (1e-4, 0.0), strict=True):
        parameters = w.Parameters((1500, 5, 700, 0, 1), (True, False, False, True, True), half_dtype)
        work = w.BatchedUpdate(parameters, 0.1, 0.9, weight_decay, dynamic=False)
        gradients = [
            (rng.standard_normal(size) * 10.0 ** rng.integers(-9, 3, size)).astype(parameters.gradient_dtype(is_half))
            for size, is_half in zip(parameters.sizes, parameters.halves, strict=True)
        ]
        gradients[0][:300], gradients[0][[3, 900]], gradients[2][7] = 0, (np.inf, np.nan), -np.inf
        chunks = np.array(list(parameters.chunks()), np.int64)
        master, velocity = rng.standard_normal((2, parameters.total)).astype(np.float32)
        master[:300], velocity[:300] = 1 + np.arange(300) / 256, 0  # halfway between two 16-bit numbers
        master[300:304] = 1e30, 1e-7, -1e-41, 65519.0
        results = []
        for update in (_by_c(functions, work), functools.partial(compute, work)):
            halves, state = np.zeros(parameters.total_half, half_dtype), np.array([128, 0, 0, 0], np.float32)
            table = np.array(
                [
                    (gradient.ctypes.data, halves[place:].ctypes.data if is_half else 0)
                    for gradient, place, is_half in zip(
                        gradients, parameters.half_places, parameters.halves, strict=True
                    )
                ]
            )
            arrays = master.copy(), velocity.copy(), state
            with np.errstate(all="ignore"):
                update(table, chunks, *arrays)
            results.append(b"".join(array.tobytes() for array in (*arrays, halves)))
        if results[0] != results[1] or not _conversions_match_numpy(functions, np.dtype(half_dtype)):
            return False
    return True


def _conversions_match_numpy(functions: ctypes.CDLL, stored: np.dtype[Any]) -> bool:
    """Return whether update.c converts like NumPy, to and from the 16-bit dtype `stored`. All 16-bit values are
    converted, and float32 numbers between them."""

    def agree(source: Array, target: Array, code: int) -> bool:
        """Return whether the C function converts every number like NumPy; all NaN count as equal."""
        with np.errstate(all="ignore"):
            actual, expected = np.empty_like(target), source.astype(target.dtype)
        functions.convert(source.ctypes.data, actual.ctypes.data, code, source.size)
        equal = actual.view(np.uint8).reshape(source.size, -1) == expected.view(np.uint8).reshape(source.size, -1)
        return bool((equal.all(axis=1) | (np.isnan(actual) & np.isnan(expected))).all())

    code, halves = CODES[stored.name], np.arange((1 << 16) - 1, dtype=np.uint16).view(stored)
    singles = halves.astype(np.float32)
    between = [
        (singles.view(np.uint32) + step).view(np.float32) for step in (0, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000)
    ]
    return agree(halves, singles, code) and agree(np.concatenate(between), np.empty(6 * halves.size, stored), -code)


def pack(_: Engine, work: w.PackGradients) -> Choice:
    """Return NumPy's PackGradients, converting by update.c.

    Raises Unimplemented if there is nothing to convert, or if `flat` has another 16-bit dtype than the gradients."""
    parameters = work.parameters
    if work.dtype == "float32" and not any(parameters.halves):
        raise Unimplemented("nothing to convert")
    if work.dtype not in ("float32", parameters.half):
        raise Unimplemented(f"{parameters.half} to {work.dtype}")
    return _with_conversions(work, parameters.half)
