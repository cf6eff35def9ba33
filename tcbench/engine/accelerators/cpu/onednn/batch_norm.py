"""Batch normalisation with or without ReLU, forward and backward.

Large arrays in NHWC go through batch_norm.c where this machine compiles it and has vectors of 256 bits or more: forward
reads them twice where oneDNN reads them three times. So do all of 16 bits that oneDNN has no vectors of, and those of
middling size if that is faster here (an EPYC of Zen 3 at 64x64, batch 8: 20 ms of a step become 11.5).

oneDNN's first implementation lets its threads meet at barriers that spin, several to a pass: beside other work on the
same cores each costs a time slice of the scheduler, and all of a step's passes together 1.3 s in place of 7 ms. This
takes the one that has none, and for small arrays the first one on a single thread, as long as both have the same speed
there (ResNet-50 in float32 at 64x64, batch 8, two threads: 9 ms a step)."""

import ctypes
import functools
from collections.abc import Callable
from ctypes import c_float, c_int64, c_void_p
from dataclasses import replace
from pathlib import Path

import numpy as np

from tcbench.engine.accelerators.cpu import compiled
from tcbench.engine.accelerators.cpu.onednn import library, widened
from tcbench.engine.accelerators.cpu.onednn.convolution import strides
from tcbench.engine.accelerators.cpu.onednn.library import Array, Binding, Engine, Primitive, Unimplemented
from tcbench.engine.accelerators.cpu.onednn.team import EXECUTE, PrimitiveCall, Stages
from tcbench.engine.accelerators.cpu.onednn.tuning import NUMPY, SLOWER, Choice, descriptions, fastest
from tcbench.engine.accelerators.cpu.onednn.update import CODES
from tcbench.engine.accelerators.cpu.reference.operands import compute, make_launch
from tcbench.engine.accelerators.protocol import BatchNormRoute
from tcbench.engine.work import ITEM_BYTES, After, BatchNormBackward, BatchNormForward, DType, Norm
from tcbench.hardware import machine

_WITHOUT_BARRIERS = "bnorm_tbb_jit"
_LEAST_BYTES, _LARGE_BYTES = 1 << 17, 1 << 22
"""Of arrays that may go through C, and of those that always do."""
_Works = BatchNormForward | BatchNormBackward


@functools.cache
def route(norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
    """The addition of a residual is work of its own, with ReLU: oneDNN does not fuse it on processors."""
    alone = replace(norm, after="none") if norm.add else norm
    then: After = "add_relu" if norm.add else "none"
    return BatchNormRoute(alone, BatchNormForward(alone, eps, momentum), BatchNormBackward(alone), then)


def forward(engine: Engine, work: BatchNormForward) -> Choice:
    """See BatchNormForward, without a residual."""
    if _goes_through_c(engine, work.norm):
        return _as_timed(engine, work.norm, _in_c(engine, work))
    if not engine.converts(work.norm.dtype):
        return widened.choose(engine, work, forward)
    return _as_timed(engine, work.norm, _forward_by_onednn(engine, work))


def _forward_by_onednn(engine: Engine, work: BatchNormForward) -> Choice:
    norm, momentum = work.norm, work.momentum
    primitive = _primitive(engine, norm, work.eps, backward=False)
    unbiased = momentum * norm.count / max(norm.count - 1, 1)

    channels = (slice(None),) if norm.layout == "NCHW" else (...,)

    def bind(x: Array, gamma: Array, beta: Array, *rest: Array) -> Callable[[], None]:
        running_mean, running_var, y, mean, inv_std, *mask = rest
        normalise = primitive.bind(x, gamma, beta, y, mean, inv_std, *mask)  # where inv_std is to stand, the variance
        values, part = y.reshape(norm.shape), np.empty_like(mean)

        def run() -> None:
            normalise()
            for running, batch, factor in ((running_mean, mean, momentum), (running_var, inv_std, unbiased)):
                np.multiply(running, np.float32(1 - momentum), out=running)
                np.multiply(batch, np.float32(factor), out=part)
                np.add(running, part, out=running)
            np.add(inv_std, np.float32(work.eps), out=inv_std)
            np.sqrt(inv_std, out=inv_std)
            np.reciprocal(inv_std, out=inv_std)
            if np.isnan(inv_std.sum()):
                engine.met_nan = True
                values[(*channels, np.isnan(inv_std))] = np.nan

        return run

    def bind_numpys(*arrays: Array) -> Callable[[], None]:
        launch, inv_std = make_launch(work, *arrays), arrays[-2] if norm.relu else arrays[-1]

        def run() -> None:
            launch()
            engine.met_nan |= bool(np.isnan(inv_std.sum()))

        return run

    return _faster(engine, work, Choice(bind, primitive.name), bind_numpys)


def backward(engine: Engine, work: BatchNormBackward) -> Choice:
    """See BatchNormBackward, without a residual."""
    if _goes_through_c(engine, work.norm):
        return _as_timed(engine, work.norm, _in_c(engine, work))
    if not engine.converts(work.norm.dtype):
        return widened.choose(engine, work, backward)
    return _as_timed(engine, work.norm, _backward_by_onednn(engine, work))


def _backward_by_onednn(engine: Engine, work: BatchNormBackward) -> Choice:
    primitive = _primitive(engine, work.norm, 0.0, backward=True)

    def bind(gy: Array, x: Array, gamma: Array, mean: Array, inv_std: Array, *rest: Array) -> Callable[[], None]:
        variance = np.empty_like(inv_std)
        launch = primitive.bind(gy, x, gamma, mean, variance, *rest)

        def run() -> None:
            # Forward's epsilon is within inv_std, so the variance is taken with it, and epsilon is 0.
            np.multiply(inv_std, inv_std, out=variance)
            np.reciprocal(variance, out=variance)
            launch()

        return run

    return _faster(engine, work, Choice(bind, primitive.name), functools.partial(make_launch, work))


def _goes_through_c(engine: Engine, norm: Norm) -> bool:
    """Not where that cannot be had, or where waking the other threads takes longer than they save, unless oneDNN would
    take conversions. The same for forward and backward, which read each other's mask: by forward's time."""
    if engine.team is None or norm.add or norm.layout != "NHWC" or norm.c % _VALUES or norm.dtype not in CODES:
        return False
    n_bytes, converts = norm.size * ITEM_BYTES[norm.dtype], engine.converts(norm.dtype)
    if (converts and n_bytes < _LEAST_BYTES) or _compiled() is None:
        return False
    return not converts or n_bytes > _LARGE_BYTES or _timed(engine, norm).name == _IN_C


def _timed(engine: Engine, norm: Norm) -> Choice:
    """The faster way forward of a norm that may go either."""
    work = BatchNormForward(norm, eps=1e-5, momentum=0.1)
    if (asked := _asked(norm)) not in engine.prepared:
        with engine.rooms_given_back():
            ways = [_forward_by_onednn(engine, work), _in_c(engine, work)]
            engine.prepared[asked] = fastest(engine, work, ways)
    chosen: Choice = engine.prepared[asked]
    return chosen


def _asked(norm: Norm) -> str:
    return f"way of {norm}"


def _as_timed(engine: Engine, norm: Norm, choice: Choice) -> Choice:
    """The same, and by whose times it was chosen, where there were any."""
    timed = engine.prepared.get(_asked(norm))
    return choice if timed is None else replace(choice, from_cache=timed.from_cache, provisional=timed.provisional)


_IN_C = "C, two passes"


def _in_c(engine: Engine, work: _Works) -> Choice:
    made, team = _compiled(), engine.team
    assert made is not None and team is not None
    launch = _launch_in_c(made, work, team.bind, functools.partial(engine.room, "batch norm"))
    inv_std = [operand.name for operand in work.operands].index("inv_std")

    def bind(*arrays: Array) -> Callable[[], None]:
        run, kept = launch(*arrays), arrays[inv_std]

        def forward() -> None:
            run()
            engine.met_nan |= bool(np.isnan(kept.sum()))

        return forward if isinstance(work, BatchNormForward) else run

    return Choice(bind, _IN_C)


_VALUES = 16
"""Of a vector, at most: as many channels, or a multiple."""
_PART_BYTES, _PARTS = 1 << 17, 64
"""Parts of the rows have at least so many bytes; so many at most."""
_ARRAYS = ["x", "gamma", "beta", "running_mean", "running_var", "y", "mean", "inv_std", "mask", "gy", "gx"]
_ARRAYS += ["ggamma", "gbeta"]
_GX, _ALIGNED_TO = _ARRAYS.index("gx"), 64


class _CArguments(ctypes.Structure):
    """`struct norm` of batch_norm.c."""

    _fields_ = (
        *(("arrays", c_void_p * len(_ARRAYS)), ("sums", c_void_p), ("factors", c_void_p)),
        *((name, c_int64) for name in ("rows", "channels", "parts", "dtype", "has_relu", "streams")),
        *((name, c_float) for name in ("eps", "momentum")),
    )


def _launch_in_c(
    made: ctypes.CDLL, work: _Works, bind: Callable[[Stages], Callable[[], int]], room: Callable[[int], Array]
) -> Callable[..., Callable[[], None]]:
    """Of arrays the launch on them: sums of parts of the rows, factors from these, parts of the result, by the
    functions of batch_norm.c. `bind`: of a team. `room`: of so many bytes, the memory for sums and factors."""
    norm, places = work.norm, [_ARRAYS.index(operand.name) for operand in work.operands]
    parts = max(1, min(norm.size * ITEM_BYTES[norm.dtype] // _PART_BYTES, _PARTS, norm.count))
    arguments = _CArguments(rows=norm.count, channels=norm.c, parts=parts)
    arguments.dtype, arguments.has_relu = CODES[norm.dtype], norm.relu
    if isinstance(work, BatchNormForward):
        arguments.eps, arguments.momentum = work.eps, work.momentum
    # Backward reads and writes three such arrays: what does not stay in the cache need not be read into it to be
    # written (13 and 26 MB with a cache of 32: 0.85 to 0.93 times as long).
    last_level = machine.last_level_cache_bytes()
    streams = 0 < last_level < 3 * norm.size * ITEM_BYTES[norm.dtype]
    factors_at = 2 * parts * norm.c * 4
    way = "forward" if isinstance(work, BatchNormForward) else "backward"
    # The latest part of the sums is the first of the result: it is in the cache.
    stages = (("sums", range(parts)), ("factors", range(1)), ("apply", range(parts)[::-1]))
    address = ctypes.addressof(arguments)
    launch = bind(
        [
            [[PrimitiveCall(ctypes.cast(made[f"{way}_{name}"], c_void_p), address, part)] for part in of]
            for name, of in stages
        ]
    )

    def at(addresses: list[int]) -> None:
        for place, given in zip(places, addresses, strict=True):
            arguments.arrays[place] = given
        arguments.streams = streams and not (arguments.arrays[_GX] or 0) % _ALIGNED_TO
        arguments.sums = library.address(room(factors_at + 3 * norm.c * 4))
        arguments.factors = arguments.sums + factors_at
        launch()

    return lambda *arrays: functools.partial(at, [library.address(array) for array in arrays])


@functools.cache
def _compiled() -> ctypes.CDLL | None:
    """The functions of batch_norm.c; None where they cannot be had."""
    return compiled.library(Path(__file__).with_suffix(".c"), does_as_numpy)


def does_as_numpy(made: ctypes.CDLL) -> bool:
    """Whether both ways give what NumPy's kernels give, to the rounding of their sums."""
    rng, room = np.random.default_rng(0), np.empty(1 << 15, np.uint8)
    shares: dict[DType, float] = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
    for dtype, share in shares.items():
        norm = Norm(3, 48, 5, 7, "NHWC", dtype, "relu")
        given = {name: rng.standard_normal(norm.shape).astype(norm.dtype) for name in ("x", "gy")}
        given |= {name: rng.standard_normal(norm.c).astype(np.float32) for name in ("gamma", "beta")}
        given |= {name: np.full(norm.c, 2, np.float32) for name in ("running_mean", "running_var")}
        ours, expected = dict(given), dict(given)
        works: tuple[_Works, ...] = BatchNormForward(norm, 1e-3, 0.1), BatchNormBackward(norm)
        for work in works:
            for arrays in (ours, expected):
                arrays |= {o.name: np.array(arrays.get(o.name, np.zeros(o.shape, o.dtype))) for o in work.operands}
            names = [operand.name for operand in work.operands]
            _launch_in_c(made, work, _one_after_another, lambda _: room)(*(ours[name] for name in names))()
            compute(work, *(expected[name] for name in names))
        for name in set(ours) - {"mask"}:
            mine, theirs = (np.asarray(arrays[name], np.float32) for arrays in (ours, expected))
            if not np.abs(mine - theirs).max() <= share * np.abs(theirs).max():
                return False
    return True


def _one_after_another(stages: Stages) -> Callable[[], int]:
    calls = [call for stage in stages for chunk in stage for call in chunk]
    return lambda: max(EXECUTE(call.execute)(call.primitive, call.stream, 0, None) for call in calls)


def _faster(engine: Engine, work: _Works, choice: Choice, bind_numpys: Callable[..., Callable[[], None]]) -> Choice:
    """oneDNN's, or NumPy's operation where oneDNN has plain C++ on one thread, as in NCHW, and that is slower. Of
    ReLU's mask both keep a byte for each value there, so that either goes on with the other's."""
    if not choice.name.startswith(SLOWER):
        return choice
    return fastest(engine, work, [choice, Choice(bind_numpys, NUMPY)])


def _primitive(engine: Engine, norm: Norm, eps: float, *, backward: bool) -> Primitive:
    """Forward or backward, on arrays in the order of the work's operands. Raises Unimplemented."""
    if norm.add:
        raise Unimplemented("add_relu")
    sizes = (norm.n, norm.c, norm.h, norm.w)
    x = engine.descriptor(norm.dtype, sizes, strides(norm.layout, sizes))
    vector = engine.descriptor("float32", (norm.c,), (1,))
    flags = library.USE_SCALE | library.USE_SHIFT | (library.FUSE_RELU if norm.relu else 0)

    def describe(dtype: str) -> int:
        stored = engine.descriptor(dtype, sizes, strides(norm.layout, sizes)).handle
        made = engine.describe(
            "batch_normalization_forward", library.FORWARD_TRAINING, stored, stored, eps, flags, engine.plain
        )
        if backward:
            made = engine.describe(
                "batch_normalization_backward", library.BACKWARD, stored, stored, stored, eps, flags, made, engine.plain
            )
        return made

    def operands(described: int) -> list[Binding]:
        kept: list[Binding] = []
        if norm.relu:
            kept = [Binding(library.WORKSPACE, engine.descriptor_of(described, library.WORKSPACE), not backward)]
        if backward:
            read, written = (library.SCALE, library.MEAN, library.VARIANCE), (library.DIFF_SCALE, library.DIFF_SHIFT)
            given = [
                Binding(library.DIFF_DST, x),
                Binding(library.SRC, x),
                *(Binding(index, vector) for index in read),
                *kept,
            ]
            return [*given, Binding(library.DIFF_SRC, x, True), *(Binding(index, vector, True) for index in written)]
        given = [Binding(library.SRC, x), Binding(library.SCALE, vector), Binding(library.SHIFT, vector)]
        statistics = (Binding(index, vector, True) for index in (library.MEAN, library.VARIANCE))
        return [*given, Binding(library.DST, x, True), *statistics, *kept]

    if x.bytes > _LARGE_BYTES:
        with engine.threads(engine.n_threads):
            for described in descriptions(engine, norm.dtype, describe, most=8):
                if engine.implementation(described).startswith(_WITHOUT_BARRIERS):
                    return engine.primitive(described, operands(described))
    described = descriptions(engine, norm.dtype, describe)[0]
    return engine.primitive(described, operands(described))
