"""The kernel and the grid for each piece of work.

Owns the table from work to source file, function, macros, grid and block. A kernel's arguments follow from the work:
the addresses of its operands, then its scalars. Standard library only."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tcbench.engine import work as w
from tcbench.engine.work.pointwise import Pointwise

BLOCK = 256
WARP = 32
MAX_GRID = 2**31 - 1
"""CUDA's limit on the first dimension of a grid. Kernels whose grid may reach it loop over the remaining values."""
ROWS_PER_THREAD = 4
"""Pixels for which a thread of batch_norm_apply reuses the factors of its channel in NHWC."""

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
    """A kernel with its grid and block, which depend on the work but not on the GPU.

    `source`: a file in this folder. `defines`: macros as "NAME=value"."""

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
    """Return the launch for an operation. Raises TypeError if no kernel does it, ValueError for unsupported sizes."""
    try:
        rule = _TABLE[type(work)]
    except KeyError:
        raise TypeError(f"no kernel does {work.name}: it is a cuDNN {work.kind}") from None
    return rule(work)


def launches(*kinds: type[w.Work]) -> Callable[[_Rule], _Rule]:
    """Return a decorator that registers a rule: a function that returns the launch for operations of these types."""

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
    """Return the number of values in 16 bytes, the widest memory access of a thread."""
    return 16 // w.ITEM_BYTES[dtype]


def _vectors(channels: int, dtype: w.DType) -> int:
    """Return the number of accesses for `channels` adjacent values: vectors of 16 bytes, or single values."""
    width = _width(dtype)
    return channels // width if channels % width == 0 else channels


def _threads(values: int) -> int:
    """Return the threads for `values`, one each: a multiple of WARP, at most BLOCK."""
    return min(BLOCK, _blocks(max(values, 1), WARP) * WARP)


@launches(w.Relu, w.ReluBackward, w.Add, w.AddRelu)
def _elementwise(work: w.Relu | w.ReluBackward | w.Add | w.AddRelu) -> KernelLaunch:
    return pointwise(work, "elementwise.cu", "relu_forward" if work.name == "relu" else work.name)


def pointwise(work: Pointwise, source: str, function: str) -> KernelLaunch:
    """Return the launch of an elementwise kernel: one thread per 16 bytes. Its source may use DTYPE and CHUNK."""
    blocks = _blocks(work.size, BLOCK * _width(work.dtype))
    return _linear(source, function, (_type(work.dtype), _CHUNK), blocks)


@launches(w.BatchNormApply)
def _apply(work: w.BatchNormApply) -> KernelLaunch:
    """Return the launch that applies a batch normalisation. A block spans channels (NHWC) or pixels (NCHW)."""
    norm = work.norm
    defines = (_type(norm.dtype), _layout(norm.layout), f"ADD={int(norm.add)}", f"RELU={int(norm.relu)}")
    if norm.layout == "NHWC":
        across, rows = min(BLOCK, _vectors(norm.c, norm.dtype)), norm.count
    else:
        across, rows = _threads(_vectors(norm.h * norm.w, norm.dtype)), norm.n * norm.c
    down = BLOCK // across
    # In NCHW a thread uses its factors often, along its plane. In NHWC it uses them once per pixel.
    per_thread = ROWS_PER_THREAD if norm.layout == "NHWC" else 1
    grid = max(1, min(_blocks(rows, down * per_thread), MAX_GRID))
    return KernelLaunch("batch_norm_apply.cu", work.name, defines, (grid, 1, 1), (across, down, 1))


@launches(w.Im2col, w.Col2im)
def _im2col(work: w.Im2col | w.Col2im) -> KernelLaunch:
    conv = work.conv
    rows, columns, across = (conv.p, conv.q, conv.s) if isinstance(work, w.Im2col) else (conv.h, conv.w, 1)
    return _over_maps(work, "im2col.cu", conv, rows, columns, across)


def _over_maps(work: w.Work, source: str, maps: Any, rows: int, columns: int, across: int = 1) -> KernelLaunch:
    """Return a launch with one block per row of pixels in NHWC, or per plane in NCHW.

    `maps` has n, c, layout and dtype. `across`: the values per channel that a pixel stands for (im2col: the filter's
    width)."""
    if maps.layout == "NHWC":
        blocks, values = maps.n * rows, columns * across * _vectors(maps.c, maps.dtype)
    else:
        blocks, values = maps.n * maps.c, rows * columns
    return _linear(source, work.name, (_type(maps.dtype), _layout(maps.layout)), blocks, _threads(values))


@launches(w.MaxPoolForward, w.MaxPoolBackward)
def _max_pool(work: w.MaxPoolForward | w.MaxPoolBackward) -> KernelLaunch:
    """Return the launch of a max pooling or its gradient. Raises ValueError for windows that the kernel does not
    support."""
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
    """Return the launch of a global average or its gradient."""
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
    """Return the launch that sums a bias's gradient."""
    defines = (_type(work.dtype),)
    if work.pixels > 1:
        return _linear("bias.cu", "bias_gradient_of_maps", defines, work.slices * work.k)
    grid = (work.slices * _blocks(work.k, WARP), 1, 1)
    return KernelLaunch("bias.cu", work.name, defines, grid, (WARP, 16, 1))


@launches(w.BatchedUpdate, w.CheckFinite)
def _batched(work: w.BatchedUpdate | w.CheckFinite) -> KernelLaunch:
    parameters = work.parameters
    gradients = () if parameters.gradients is None else (f"GRADIENT={C_TYPES[parameters.gradients]}",)
    return _linear("update.cu", work.name, (_type(parameters.half), *gradients), parameters.n_chunks)


launches(w.Unscale)(lambda work: _sized(work, "elementwise.cu", work.size, w.CHUNK, _type(work.dtype), _CHUNK))
launches(w.ToSingle, w.ToHalf)(lambda work: _sized(work, "convert.cu", work.size, BLOCK * 8, _type(work.half)))
launches(w.WeightDecay, w.MomentumUpdate)(lambda work: _sized(work, "parameter.cu", work.size, BLOCK * 4))
launches(w.BatchNormFinalize)(lambda work: _sized(work, "batch_norm_finalize.cu", work.c, 64, threads=64))
launches(w.SoftmaxCrossEntropyForward, w.SoftmaxCrossEntropyBackward)(
    lambda work: _sized(work, "loss.cu", work.n, 1, _type(work.dtype), threads=_threads(work.k))
)
launches(w.AddBias, w.AddBiasRelu)(
    lambda work: _sized(work, "bias.cu", work.n * work.k * work.pixels, BLOCK * _width(work.dtype), _type(work.dtype))
)
launches(w.PutColumns, w.TakeColumns)(
    lambda work: _sized(work, "columns.cu", work.rows * work.width, BLOCK * _width(work.dtype), _type(work.dtype))
)
launches(w.LrnForward, w.LrnBackward)(
    lambda work: _sized(work, "lrn.cu", work.n * work.c * work.pixels, BLOCK, _type(work.dtype), _layout(work.layout))
)
launches(w.DropoutForward, w.DropoutBackward)(
    lambda work: _sized(work, "dropout.cu", work.size, BLOCK, _type(work.dtype), _layout(work.layout))
)
launches(w.MeanLoss)(lambda work: _sized(work, "mean_loss.cu", 1, 1, threads=_threads(work.n)))
launches(w.DampFactors)(lambda work: _sized(work, "kfac.cu", work.d + work.k, 1, threads=_threads(max(work.d, work.k))))
launches(w.BeginInverse, w.EndInverse)(lambda work: _sized(work, "kfac.cu", work.size**2, BLOCK * 4))
launches(w.PackGradients)(
    lambda work: _sized(
        work, "pack.cu", work.parameters.n_chunks, 1, _type(work.dtype), f"HALF={C_TYPES[work.parameters.half]}"
    )
)
launches(w.AdjustScale)(
    lambda work: _sized(work, "update.cu", 1, 1, _type("float16"), threads=1)
)  # it reads no parameter
