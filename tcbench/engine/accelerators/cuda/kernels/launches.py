"""The kernel that does a piece of work, and its grid.

Owns the table from work to source file, function, definitions, grid and block. Standard library only: what a kernel's
arguments are follows from the work itself (its operands' addresses, then its scalars)."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tcbench.engine import work as w
from tcbench.engine.work.pointwise import Pointwise

BLOCK = 256
WARP = 32
MAX_GRID = 2**31 - 1
"""CUDA's limit on the first dimension of a grid; kernels whose grid may be cut stride over the rest."""
ROWS_PER_THREAD = 4
"""Pixels of one channel, or planes, for which a thread of batch_norm_apply keeps its factors."""

_CHUNK = f"CHUNK={w.CHUNK}"
C_TYPES = {
    "float16": "half",
    "bfloat16": "bfloat16",
    "float32": "float",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
}


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel and its grid: the same for the same work on every GPU. `source` is a file beside this module, `defines`
    are `NAME=value`."""

    source: str
    function: str
    defines: tuple[str, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


Rule = Callable[[Any], KernelLaunch]
_Rule = TypeVar("_Rule", bound=Rule)
_TABLE: dict[type[w.Work], Rule] = {}


@functools.cache
def launch_of(work: w.Work) -> KernelLaunch:
    """Raises TypeError for work that is no kernel's, ValueError for sizes that its kernel does not take."""
    try:
        rule = _TABLE[type(work)]
    except KeyError:
        raise TypeError(f"no kernel does {work.name}: it is a cuDNN {work.kind}") from None
    return rule(work)


def launches(*kinds: type[w.Work]) -> Callable[[_Rule], _Rule]:
    """Registers the rule that gives these works their kernel and grid; a rung that brings a kernel calls it too."""

    def register(rule: _Rule) -> _Rule:
        _TABLE.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def _linear(source: str, function: str, defines: tuple[str, ...], blocks: int, threads: int = BLOCK) -> KernelLaunch:
    return KernelLaunch(source, function, defines, (max(1, min(blocks, MAX_GRID)), 1, 1), (threads, 1, 1))


def _sized(work: w.Work, source: str, values: int, per_block: int, *defines: str, threads: int = BLOCK) -> KernelLaunch:
    return _linear(source, work.name, defines, _blocks(values, per_block), threads)


def _blocks(values: int, per_block: int) -> int:
    return -(-values // per_block)


def _type(dtype: w.DType) -> str:
    return f"DTYPE={C_TYPES[dtype]}"


def _layout(layout: w.Layout) -> str:
    return f"NHWC={int(layout == 'NHWC')}"


def _width(dtype: w.DType) -> int:
    """Values in 16 bytes."""
    return 16 // w.ITEM_BYTES[dtype]


def _vectors(channels: int, dtype: w.DType) -> int:
    """Accesses that a kernel needs for so many neighbouring values, in whole vectors or one by one."""
    width = _width(dtype)
    return channels // width if channels % width == 0 else channels


def _threads(values: int) -> int:
    """Whole warps for so many values, BLOCK at most."""
    return min(BLOCK, _blocks(max(values, 1), WARP) * WARP)


@launches(w.Relu, w.ReluBackward, w.Add, w.AddRelu)
def _elementwise(work: w.Relu | w.ReluBackward | w.Add | w.AddRelu) -> KernelLaunch:
    return pointwise(work, "elementwise.cu", "relu_forward" if work.name == "relu" else work.name)


def pointwise(work: Pointwise, source: str, function: str) -> KernelLaunch:
    """A kernel over values: one thread for every 16 bytes. Its source is given DTYPE and CHUNK."""
    blocks = _blocks(work.size, BLOCK * _width(work.dtype))
    return _linear(source, function, (_type(work.dtype), _CHUNK), blocks)


@launches(w.BatchNormApply)
def _apply(work: w.BatchNormApply) -> KernelLaunch:
    norm = work.norm
    defines = (_type(norm.dtype), _layout(norm.layout), f"ADD={int(norm.add)}", f"RELU={int(norm.relu)}")
    if norm.layout == "NHWC":
        across, rows = min(BLOCK, _vectors(norm.c, norm.dtype)), norm.count
    else:
        across, rows = _threads(_vectors(norm.h * norm.w, norm.dtype)), norm.n * norm.c
    down = BLOCK // across
    # A plane is long enough for a thread to use its factors often, a pixel is but one use.
    per_thread = ROWS_PER_THREAD if norm.layout == "NHWC" else 1
    grid = max(1, min(_blocks(rows, down * per_thread), MAX_GRID))
    return KernelLaunch("batch_norm_apply.cu", work.name, defines, (grid, 1, 1), (across, down, 1))


@launches(w.Im2col, w.Col2im)
def _im2col(work: w.Im2col | w.Col2im) -> KernelLaunch:
    conv = work.conv
    rows, columns, across = (conv.p, conv.q, conv.s) if isinstance(work, w.Im2col) else (conv.h, conv.w, 1)
    return _over_maps(work, "im2col.cu", conv, rows, columns, across)


def _over_maps(work: w.Work, source: str, maps: Any, rows: int, columns: int, across: int = 1) -> KernelLaunch:
    """A block for each row of pixels in NHWC, which may read `across` others each, and for each plane in NCHW. `maps`
    has their n, c, layout and dtype."""
    if maps.layout == "NHWC":
        blocks, values = maps.n * rows, columns * across * _vectors(maps.c, maps.dtype)
    else:
        blocks, values = maps.n * maps.c, rows * columns
    return _linear(source, work.name, (_type(maps.dtype), _layout(maps.layout)), blocks, _threads(values))


@launches(w.MaxPoolForward, w.MaxPoolBackward)
def _max_pool(work: w.MaxPoolForward | w.MaxPoolBackward) -> KernelLaunch:
    pool = work.pool
    if pool.ksize > 16 or not 0 <= pool.pad < pool.ksize:
        raise ValueError(f"{work.name}: ksize {pool.ksize} and pad {pool.pad}; expected 0 <= pad < ksize <= 16")
    rows, columns = (pool.p, pool.q) if isinstance(work, w.MaxPoolForward) else (pool.h, pool.w)
    return _over_maps(work, "pooling.cu", pool, rows, columns)


@launches(w.TiledAverageForward, w.TiledAverageBackward)
def _tiled_average(work: w.TiledAverageForward | w.TiledAverageBackward) -> KernelLaunch:
    side = work.out if isinstance(work, w.TiledAverageForward) else work.side
    return _over_maps(work, "tiled_average.cu", work, side, side)


@launches(w.GlobalAverageForward, w.GlobalAverageBackward)
def _global_average(work: w.GlobalAverageForward | w.GlobalAverageBackward) -> KernelLaunch:
    vectors = _vectors(work.c, work.dtype)
    if work.layout == "NCHW":
        blocks, threads = _blocks(work.n * work.c, BLOCK // WARP), BLOCK
    elif isinstance(work, w.GlobalAverageForward):
        # Small blocks, so that a small batch still reaches every multiprocessor.
        blocks, threads = _blocks(work.n * vectors, 2 * WARP), 2 * WARP
    else:
        blocks, threads = work.n * work.h * work.w, _threads(vectors)
    return _linear("pooling.cu", work.name, (_type(work.dtype), _layout(work.layout)), blocks, threads)


@launches(w.BiasGradient)
def _bias_gradient(work: w.BiasGradient) -> KernelLaunch:
    defines = (_type(work.dtype),)
    if work.pixels > 1:
        return _linear("bias.cu", "bias_gradient_of_maps", defines, work.slices * work.k)
    grid = (work.slices * _blocks(work.k, WARP), 1, 1)
    return KernelLaunch("bias.cu", work.name, defines, grid, (WARP, 16, 1))


@launches(w.BatchedUpdate, w.CheckFinite)
def _batched(work: w.BatchedUpdate | w.CheckFinite) -> KernelLaunch:
    of = work.parameters
    gradients = () if of.gradients is None else (f"GRADIENT={C_TYPES[of.gradients]}",)
    return _linear("update.cu", work.name, (_type(of.half), *gradients), of.n_chunks)


launches(w.Unscale)(lambda of: _sized(of, "elementwise.cu", of.size, w.CHUNK, _type(of.dtype), _CHUNK))
launches(w.ToSingle, w.ToHalf)(lambda of: _sized(of, "convert.cu", of.size, BLOCK * 8, _type(of.half)))
launches(w.WeightDecay, w.MomentumUpdate)(lambda of: _sized(of, "parameter.cu", of.size, BLOCK * 4))
launches(w.BatchNormFinalize)(lambda of: _sized(of, "batch_norm_finalize.cu", of.c, 64, threads=64))
launches(w.SoftmaxCrossEntropyForward, w.SoftmaxCrossEntropyBackward)(
    lambda of: _sized(of, "loss.cu", of.n, 1, _type(of.dtype), threads=_threads(of.k))
)
launches(w.AddBias, w.AddBiasRelu)(
    lambda of: _sized(of, "bias.cu", of.n * of.k * of.pixels, BLOCK * _width(of.dtype), _type(of.dtype))
)
launches(w.PutColumns, w.TakeColumns)(
    lambda of: _sized(of, "columns.cu", of.rows * of.width, BLOCK * _width(of.dtype), _type(of.dtype))
)
launches(w.LrnForward, w.LrnBackward)(
    lambda of: _sized(of, "lrn.cu", of.n * of.c * of.pixels, BLOCK, _type(of.dtype), _layout(of.layout))
)
launches(w.DropoutForward, w.DropoutBackward)(
    lambda of: _sized(of, "dropout.cu", of.size, BLOCK, _type(of.dtype), _layout(of.layout))
)
launches(w.MeanLoss)(lambda of: _sized(of, "mean_loss.cu", 1, 1, threads=_threads(of.n)))
launches(w.DampFactors)(lambda of: _sized(of, "kfac.cu", of.d + of.k, 1, threads=_threads(max(of.d, of.k))))
launches(w.BeginInverse, w.EndInverse)(lambda of: _sized(of, "kfac.cu", of.size**2, BLOCK * 4))
launches(w.PackGradients)(
    lambda of: _sized(of, "pack.cu", of.parameters.n_chunks, 1, _type(of.dtype), f"HALF={C_TYPES[of.parameters.half]}")
)
launches(w.AdjustScale)(lambda of: _sized(of, "update.cu", 1, 1, _type("float16"), threads=1))  # it reads no parameter
