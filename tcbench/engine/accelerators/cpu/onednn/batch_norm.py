"""Batch normalisation with or without ReLU, forward and backward, by batch_norm.c, oneDNN or NumPy.

batch_norm.c needs a C compiler and vectors of at least 256 bits. It is used for

- large NHWC arrays, since its forward pass reads them twice and oneDNN's reads them three times;
- 16-bit arrays in dtypes that oneDNN does not vectorise;
- arrays of medium size if it is faster than oneDNN (Zen 3 EPYC at 64x64, batch 8: 20 ms of a step become 11.5).

oneDNN's preferred implementation has several spin barriers per pass. Under other load on the same cores each barrier
costs a time slice of the scheduler, so that all passes of a step take 1.3 s instead of 7 ms. Therefore large arrays use
the implementation without barriers. Small arrays use the preferred one on a single thread, which is as fast there
(ResNet-50 in float32 at 64x64, batch 8, two threads: 9 ms a step)."""

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
from tcbench.engine.accelerators.cpu.onednn.team import PrimitiveCall, PythonTeam, Stages
from tcbench.engine.accelerators.cpu.onednn.tuning import NUMPY, SLOWER, Choice, descriptions, fastest
from tcbench.engine.accelerators.cpu.onednn.update import CODES
from tcbench.engine.accelerators.cpu.reference.operands import compute, make_launch
from tcbench.engine.accelerators.protocol import BatchNormRoute
from tcbench.engine.work import ITEM_BYTES, After, BatchNormBackward, BatchNormForward, DType, Norm
from tcbench.hardware import machine

_WITHOUT_BARRIERS = "bnorm_tbb_jit"
_LEAST_BYTES, _LARGE_BYTES = 1 << 17, 1 << 22
"""Arrays from the first size on may use batch_norm.c; arrays above the second always do."""
_Works = BatchNormForward | BatchNormBackward
_Bind = Callable[..., Callable[[], None]]


@functools.cache
def route(norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
    """Return the operations for a batch normalisation.

    The addition of a residual with ReLU is a separate operation, since oneDNN does not fuse it on CPUs."""
    unfused = replace(norm, after="none") if norm.add else norm
    after: After = "add_relu" if norm.add else "none"
    return BatchNormRoute(unfused, BatchNormForward(unfused, eps, momentum), BatchNormBackward(unfused), after)


def choose(engine: Engine, work: _Works) -> Choice:
    """Return the implementation of a batch normalisation without a residual, forward or backward."""
    norm, converts, timed = work.norm, engine.converts(work.norm.dtype), None
    n_bytes = norm.size * ITEM_BYTES[norm.dtype]
    in_c = norm.layout == "NHWC" and norm.c % _VALUES == 0 and norm.dtype in CODES and not norm.add
    in_c = in_c and (n_bytes >= _LEAST_BYTES or not converts) and _compiled() is not None
    if in_c and converts and n_bytes <= _LARGE_BYTES:
        # The forward pass decides for both, since backward reads forward's mask.
        timed = _faster_forward(engine, norm)
        in_c = timed.name == _IN_C
    if in_c:
        choice = _by_c(engine, work)
    elif not converts:
        return widened.choose(engine, work, choose)
    elif isinstance(work, BatchNormForward):
        choice = _forward_by_onednn(engine, work)
    else:
        choice = _backward_by_onednn(engine, work)
    return choice if timed is None else replace(choice, from_cache=timed.from_cache, provisional=timed.provisional)


def _forward_by_onednn(engine: Engine, work: BatchNormForward) -> Choice:
    """Return oneDNN's forward pass, or NumPy's if that is faster. NumPy updates the running statistics."""
    norm, momentum = work.norm, work.momentum
    primitive = _primitive(engine, norm, work.eps, backward=False)
    unbiased = momentum * norm.count / max(norm.count - 1, 1)
    channels = (slice(None),) if norm.layout == "NCHW" else (...,)

    def bind(x: Array, gamma: Array, beta: Array, *rest: Array) -> Callable[[], None]:
        """Bind arrays, and return a launch."""
        running_mean, running_var, y, mean, inv_std, *mask = rest
        normalise = primitive.bind(x, gamma, beta, y, mean, inv_std, *mask)  # writes the variance to inv_std
        y_maps, update = y.reshape(norm.shape), np.empty_like(mean)

        def run() -> None:
            """Normalise, update the running statistics, and turn the variance into 1 / standard deviation."""
            normalise()
            for running, batch, factor in ((running_mean, mean, momentum), (running_var, inv_std, unbiased)):
                np.multiply(running, np.float32(1 - momentum), out=running)
                np.multiply(batch, np.float32(factor), out=update)
                np.add(running, update, out=running)
            np.add(inv_std, np.float32(work.eps), out=inv_std)  # still the variance
            np.sqrt(inv_std, out=inv_std)
            np.reciprocal(inv_std, out=inv_std)
            if engine.has_nan(inv_std):
                y_maps[(*channels, np.isnan(inv_std))] = np.nan

        return run

    return _faster(engine, work, Choice(bind, primitive.name))


def _with_nan_check(engine: Engine, work: BatchNormForward, bind: _Bind) -> _Bind:
    """Return `bind` with launches that also record in `Engine.met_nan` whether the result has NaN."""
    inv_std_position = [operand.name for operand in work.operands].index("inv_std")

    def bind_checked(*arrays: Array) -> Callable[[], None]:
        """Bind arrays, and return a launch that also checks the statistics for NaN."""
        launch, inv_std = bind(*arrays), arrays[inv_std_position]

        def run() -> None:
            launch()
            engine.has_nan(inv_std)

        return run

    return bind_checked


def _backward_by_onednn(engine: Engine, work: BatchNormBackward) -> Choice:
    """Return oneDNN's backward pass, or NumPy's if that is faster."""
    primitive = _primitive(engine, work.norm, 0.0, backward=True)

    def bind(gy: Array, x: Array, gamma: Array, mean: Array, inv_std: Array, *rest: Array) -> Callable[[], None]:
        """Bind arrays, and return a launch."""
        variance = np.empty_like(inv_std)
        launch = primitive.bind(gy, x, gamma, mean, variance, *rest)

        def run() -> None:
            """Compute the variance from 1 / standard deviation, then the gradients."""
            # inv_std includes the forward pass's epsilon, so this variance does too, and oneDNN gets epsilon 0.
            np.multiply(inv_std, inv_std, out=variance)
            np.reciprocal(variance, out=variance)
            launch()

        return run

    return _faster(engine, work, Choice(bind, primitive.name))


def _faster_forward(engine: Engine, norm: Norm) -> Choice:
    """Return the faster forward pass of oneDNN's and batch_norm.c's, and store it in `engine.prepared`."""
    work = BatchNormForward(norm, eps=1e-5, momentum=0.1)
    if (key := f"batch_norm.c or oneDNN: {norm}") not in engine.prepared:
        with engine.restoring_scratch():
            alternatives = [_forward_by_onednn(engine, work), _by_c(engine, work)]
            engine.prepared[key] = fastest(engine, work, alternatives)
    choice: Choice = engine.prepared[key]
    return choice


_IN_C = "C, two passes"


def _by_c(engine: Engine, work: _Works) -> Choice:
    """Return the implementation by batch_norm.c. Its forward pass also checks for NaN (`Engine.met_nan`)."""
    functions = _compiled()
    assert functions is not None
    bind = _bind_to_c(functions, work, engine.team.bind, functools.partial(engine.scratch, "batch norm"))
    return Choice(_with_nan_check(engine, work, bind) if isinstance(work, BatchNormForward) else bind, _IN_C)


_VALUES = 16
"""The most values in a vector. The number of channels must be a multiple of it."""
_PART_BYTES, _PARTS = 1 << 17, 64
"""Rows are cut into at most _PARTS parts of at least _PART_BYTES."""
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


def _bind_to_c(
    functions: ctypes.CDLL, work: _Works, bind: Callable[[Stages], Callable[[], int]], scratch: Callable[[int], Array]
) -> _Bind:
    """Return a function that takes the operation's arrays and returns its launch.

    A launch runs batch_norm.c in three stages: partial sums over parts of the rows, factors from these sums, and parts
    of the result.

    Args:
        functions: the library compiled from batch_norm.c.
        bind: schedules stages on a thread team (`Team.bind`).
        scratch: returns a given number of bytes of scratch memory, which holds sums and factors."""
    norm, places = work.norm, [_ARRAYS.index(operand.name) for operand in work.operands]
    parts = max(1, min(norm.size * ITEM_BYTES[norm.dtype] // _PART_BYTES, _PARTS, norm.count))
    arguments = _CArguments(rows=norm.count, channels=norm.c, parts=parts)
    arguments.dtype, arguments.has_relu = CODES[norm.dtype], norm.relu
    if isinstance(work, BatchNormForward):
        arguments.eps, arguments.momentum = work.eps, work.momentum
    # Backward reads and writes three such arrays. If they exceed the cache, gx is written past it, which avoids reading
    # the cache lines first (arrays of 13 and 26 MB with a cache of 32 MB: 0.85 to 0.93 times as long).
    last_level = machine.last_level_cache_bytes()
    streams = 0 < last_level < 3 * norm.size * ITEM_BYTES[norm.dtype]
    factors_at = 2 * parts * norm.c * 4
    direction = "forward" if isinstance(work, BatchNormForward) else "backward"
    # The result starts with the part that was summed last, since it is still in the cache.
    stages = (("sums", range(parts)), ("factors", range(1)), ("apply", range(parts)[::-1]))
    arguments_address = ctypes.addressof(arguments)

    def call(stage: str, part: int) -> PrimitiveCall:
        return PrimitiveCall(ctypes.cast(functions[f"{direction}_{stage}"], c_void_p), arguments_address, part)

    launch = bind([[[call(stage, part)] for part in stage_parts] for stage, stage_parts in stages])

    def run_at(addresses: list[int]) -> None:
        """Launch the functions of batch_norm.c on arrays at these addresses."""
        for place, address in zip(places, addresses, strict=True):
            arguments.arrays[place] = address
        arguments.streams = streams and not (arguments.arrays[_GX] or 0) % _ALIGNED_TO
        arguments.sums = library.address(scratch(factors_at + 3 * norm.c * 4))
        arguments.factors = arguments.sums + factors_at
        launch()

    return lambda *arrays: functools.partial(run_at, [library.address(array) for array in arrays])


@functools.cache
def _compiled() -> ctypes.CDLL | None:
    """Return the functions of batch_norm.c, or None if this machine cannot compile them."""
    return compiled.load_library(Path(__file__).with_suffix(".c"), matches_numpy)


def matches_numpy(functions: ctypes.CDLL) -> bool:
    """Return whether the forward and backward pass of a compiled batch_norm.c agree with NumPy up to rounding."""
    rng, scratch = np.random.default_rng(0), np.empty(1 << 15, np.uint8)
    bind = PythonTeam(lambda _: None, None).bind
    tolerances: dict[DType, float] = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
    for dtype, tolerance in tolerances.items():
        norm = Norm(3, 48, 5, 7, "NHWC", dtype, "relu")
        inputs = {name: rng.standard_normal(norm.shape).astype(norm.dtype) for name in ("x", "gy")}
        inputs |= {name: rng.standard_normal(norm.c).astype(np.float32) for name in ("gamma", "beta")}
        inputs |= {name: np.full(norm.c, 2, np.float32) for name in ("running_mean", "running_var")}
        by_c, by_numpy = dict(inputs), dict(inputs)
        works: tuple[_Works, ...] = BatchNormForward(norm, 1e-3, 0.1), BatchNormBackward(norm)
        for work in works:
            for arrays in (by_c, by_numpy):
                arrays |= {o.name: np.array(arrays.get(o.name, np.zeros(o.shape, o.dtype))) for o in work.operands}
            names = [operand.name for operand in work.operands]
            _bind_to_c(functions, work, bind, lambda _: scratch)(*(by_c[name] for name in names))()
            compute(work, *(by_numpy[name] for name in names))
        for name in set(by_c) - {"mask"}:
            actual, expected = (np.asarray(arrays[name], np.float32) for arrays in (by_c, by_numpy))
            if not np.abs(actual - expected).max() <= tolerance * np.abs(expected).max():
                return False
    return True


def _faster(engine: Engine, work: _Works, choice: Choice) -> Choice:
    """Return `choice`, oneDNN's; if it is plain C++ on one thread, as in NCHW, the faster of it and NumPy's.

    Both then store ReLU's mask as one byte per value, so one can be used forward and the other backward."""
    if not choice.name.startswith(SLOWER):
        return choice
    bind = functools.partial(make_launch, work)
    by_numpy = _with_nan_check(engine, work, bind) if isinstance(work, BatchNormForward) else bind
    return fastest(engine, work, [choice, Choice(by_numpy, NUMPY)])


def _primitive(engine: Engine, norm: Norm, eps: float, *, backward: bool) -> Primitive:
    """Return oneDNN's primitive, which takes arrays in the order of the operation's operands. Raises Unimplemented."""
    if norm.add:
        raise Unimplemented("add_relu")
    sizes = (norm.n, norm.c, norm.h, norm.w)
    x = engine.descriptor(norm.dtype, sizes, strides(norm.layout, sizes))
    vector = engine.descriptor("float32", (norm.c,), (1,))
    flags = library.USE_SCALE | library.USE_SHIFT | (library.FUSE_RELU if norm.relu else 0)

    def describe(dtype: str) -> int:
        """Return oneDNN's description of the primitive for maps of this dtype."""
        stored = engine.descriptor(dtype, sizes, strides(norm.layout, sizes)).handle
        forward = engine.describe(
            "batch_normalization_forward", library.FORWARD_TRAINING, stored, stored, eps, flags, engine.plain
        )
        if not backward:
            return forward
        return engine.describe(
            "batch_normalization_backward", library.BACKWARD, stored, stored, stored, eps, flags, forward, engine.plain
        )

    def operands(described: int) -> list[Binding]:
        """Return the primitive's operands in the order in which arrays are passed."""

        mask: list[Binding] = []
        if norm.relu:
            mask = [Binding(library.WORKSPACE, engine.descriptor_of(described, library.WORKSPACE), not backward)]
        if backward:
            read, written = (library.SCALE, library.MEAN, library.VARIANCE), (library.DIFF_SCALE, library.DIFF_SHIFT)
            maps = [Binding(library.DIFF_DST, x), Binding(library.SRC, x)]
            vectors = [Binding(index, vector) for index in read]
            gradients = [Binding(index, vector, True) for index in written]
            return [*maps, *vectors, *mask, Binding(library.DIFF_SRC, x, True), *gradients]
        inputs = [Binding(library.SRC, x), Binding(library.SCALE, vector), Binding(library.SHIFT, vector)]
        statistics = (Binding(index, vector, True) for index in (library.MEAN, library.VARIANCE))
        return [*inputs, Binding(library.DST, x, True), *statistics, *mask]

    if x.bytes > _LARGE_BYTES:  # see the module's docstring
        with engine.threads(engine.n_threads):
            for described in descriptions(engine, norm.dtype, describe, most=8):
                if engine.implementation(described).startswith(_WITHOUT_BARRIERS):
                    return engine.primitive(described, operands(described))
    described = descriptions(engine, norm.dtype, describe)[0]
    return engine.primitive(described, operands(described))
