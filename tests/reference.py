"""Every piece of work, computed the plain way: NumPy, float64, one rounding at the end.

`REFERENCE[work.name](work, *arrays)` takes arrays in the order of `work.operands` (NumPy, C-contiguous, any shape of
the operand's size) and writes those that are `out` or `inout` in place. It is what kernels, cuDNN graphs and fused
operations are checked against, so it shares no code with them and is not tuned.

The bits of a mask and of a reserve space are cuDNN's own; here they are a byte and a bit per value, y > 0.
"""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.engine import work as w

Array = np.ndarray[Any, Any]
Reference = Callable[..., None]

REFERENCE: dict[str, Reference] = {}


class Arrays:
    """The arrays of one piece of work by the names of its operands, in the operands' shapes."""

    def __init__(self, work: w.Work, arrays: tuple[Array, ...]) -> None:
        operands = work.operands
        if len(arrays) != len(operands):
            raise TypeError(f"{work.name} takes {len(operands)} arrays, not {len(arrays)}")
        self._arrays = {}
        for operand, array in zip(operands, arrays, strict=True):
            if array.size != operand.size or array.dtype != operand.dtype or not array.flags.c_contiguous:
                raise TypeError(f"{work.name}: {array.shape} {array.dtype} is no {operand}")
            self._arrays[operand.name] = array.reshape(operand.shape)

    def __getattr__(self, name: str) -> Array:
        """What an input holds, as float64."""
        return self._arrays[name].astype(np.float64)

    def raw(self, name: str) -> Array:
        """The array itself."""
        return self._arrays[name]

    def write(self, **values: Any) -> None:
        """Round each value to its array's dtype, once."""
        for name, value in values.items():
            self._arrays[name][...] = value


def _computes(kind: type[w.Work]) -> Callable[[Callable[[Any, Arrays], None]], Reference]:
    def register(compute: Callable[[Any, Arrays], None]) -> Reference:
        def reference(work: w.Work, *arrays: Array) -> None:
            with np.errstate(all="ignore"):
                compute(work, Arrays(work, arrays))

        REFERENCE[kind.name] = reference
        return reference

    return register


# -- convolution: one matrix product per tap (r, s), channels last ---------------------------------------------------


def _nhwc(array: Array, layout: w.Layout) -> Array:
    return array.transpose(0, 2, 3, 1) if layout == "NCHW" else array


def _stored(array: Array, layout: w.Layout) -> Array:
    return array.transpose(0, 3, 1, 2) if layout == "NCHW" else array


def _padded(x: Array, pad: int) -> Array:
    """x (N, H, W, C)."""
    return np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))


def _tap(conv: w.Conv2d | w.Pool, padded: Array, r: int, s: int) -> Array:
    """The (N, P, Q, C) pixels of padded x that tap (r, s) meets, as a view."""
    rows = slice(r, r + conv.stride * (conv.p - 1) + 1, conv.stride)
    columns = slice(s, s + conv.stride * (conv.q - 1) + 1, conv.stride)
    return padded[:, rows, columns]


def _inside(of: w.Conv2d | w.Pool, padded: Array) -> Array:
    """The pixels of padded x, as they are stored."""
    return _stored(padded[:, of.pad : of.pad + of.h, of.pad : of.pad + of.w], of.layout)


def _fprop(conv: w.Conv2d, a: Arrays) -> Array:
    """y (N, P, Q, K)."""
    x = _padded(_nhwc(a.x, conv.layout), conv.pad)
    weights = _nhwc(a.w, conv.layout)
    y = np.zeros((conv.n, conv.p, conv.q, conv.k))
    for r, s in np.ndindex(conv.r, conv.s):
        y += _tap(conv, x, r, s) @ weights[:, r, s].T
    return y


@_computes(w.ConvFpropStats)
def conv_fprop_stats(work: w.ConvFpropStats, a: Arrays) -> None:
    y = _fprop(work.conv, a)
    a.write(y=_stored(y, work.conv.layout), sum=y.sum((0, 1, 2)), square_sum=(y * y).sum((0, 1, 2)))


def _dgrad(conv: w.Conv2d, a: Arrays) -> Array:
    """gx as it is stored."""
    gy, weights = _nhwc(a.gy, conv.layout), _nhwc(a.w, conv.layout)
    gx = np.zeros((conv.n, conv.h + 2 * conv.pad, conv.w + 2 * conv.pad, conv.c))
    for r, s in np.ndindex(conv.r, conv.s):
        _tap(conv, gx, r, s)[...] += gy @ weights[:, r, s]
    return _inside(conv, gx)


@_computes(w.ConvWgrad)
def conv_wgrad(work: w.ConvWgrad, a: Arrays) -> None:
    conv = work.conv
    x = _padded(_nhwc(a.x, conv.layout), conv.pad)
    gy = _nhwc(a.gy, conv.layout).reshape(-1, conv.k)
    gw = np.empty((conv.k, conv.r, conv.s, conv.c))
    for r, s in np.ndindex(conv.r, conv.s):
        gw[:, r, s] = gy.T @ _tap(conv, x, r, s).reshape(-1, conv.c)
    a.write(gw=_stored(gw, conv.layout))


@_computes(w.Im2col)
def im2col(work: w.Im2col, a: Arrays) -> None:
    conv = work.conv
    x = _padded(_nhwc(a.x, conv.layout), conv.pad)
    taps = np.stack([_tap(conv, x, r, s) for r in range(conv.r) for s in range(conv.s)])  # (R * S, N, P, Q, C)
    # The columns' channels: (R, S, C) in NHWC, (C, R, S) in NCHW.
    by_tap = taps.transpose(1, 2, 3, 0, 4) if conv.layout == "NHWC" else taps.transpose(4, 0, 1, 2, 3)
    a.write(columns=by_tap.reshape(a.raw("columns").shape))


@_computes(w.Col2im)
def col2im(work: w.Col2im, a: Arrays) -> None:
    conv = work.conv
    if conv.layout == "NHWC":
        taps = a.gcolumns.reshape(conv.n, conv.p, conv.q, conv.r * conv.s, conv.c).transpose(3, 0, 1, 2, 4)
    else:
        taps = a.gcolumns.reshape(conv.c, conv.r * conv.s, conv.n, conv.p, conv.q).transpose(1, 2, 3, 4, 0)
    gx = np.zeros((conv.n, conv.h + 2 * conv.pad, conv.w + 2 * conv.pad, conv.c))
    for i, tap in enumerate(taps):
        _tap(conv, gx, *divmod(i, conv.s))[...] += tap
    a.write(gx=_inside(conv, gx))


# -- batch normalisation ---------------------------------------------------------------------------------------------


def _per_channel(vector: Array, layout: w.Layout) -> Array:
    return vector.reshape(1, -1, 1, 1) if layout == "NCHW" else vector.reshape(1, 1, 1, -1)


def _other_axes(layout: w.Layout) -> tuple[int, int, int]:
    return (0, 2, 3) if layout == "NCHW" else (0, 1, 2)


def _write_running(a: Arrays, mean: Array, var: Array, count: int, momentum: float) -> None:
    a.write(
        running_mean=(1 - momentum) * a.running_mean + momentum * mean,
        running_var=(1 - momentum) * a.running_var + momentum * var * count / max(count - 1, 1),
    )


def _norm_forward(work: w.BatchNormForward | w.BatchNormCallForward, a: Arrays) -> Array:
    """Writes all but the mask or reserve, and returns where y, as it is stored, is positive."""
    norm = work.norm
    x = a.x
    mean, var = x.mean(_other_axes(norm.layout)), x.var(_other_axes(norm.layout))
    inv_std = 1 / np.sqrt(var + work.eps)
    scale, bias = a.gamma * inv_std, a.beta
    y = (x - _per_channel(mean, norm.layout)) * _per_channel(scale, norm.layout) + _per_channel(bias, norm.layout)
    if norm.add:
        y += a.residual
    if norm.relu:
        y = np.maximum(y, 0)
    _write_running(a, mean, var, norm.count, work.momentum)
    a.write(y=y, mean=mean, inv_std=inv_std)
    return np.asarray(a.raw("y") > 0)


def _norm_backward(norm: w.Norm, a: Arrays, positive: Array | None) -> None:
    layout = norm.layout
    gy = a.gy if positive is None else np.where(positive, a.gy, 0)
    normalised = (a.x - _per_channel(a.mean, layout)) * _per_channel(a.inv_std, layout)
    gbeta, ggamma = gy.sum(_other_axes(layout)), (gy * normalised).sum(_other_axes(layout))
    gx = gy - (_per_channel(gbeta, layout) + normalised * _per_channel(ggamma, layout)) / norm.count
    gx *= _per_channel(a.gamma * a.inv_std, layout)
    a.write(gx=gx, ggamma=ggamma, gbeta=gbeta)
    if norm.add:
        a.write(gresidual=gy)


@_computes(w.BatchNormForward)
def batch_norm_forward(work: w.BatchNormForward, a: Arrays) -> None:
    positive = _norm_forward(work, a)
    if work.norm.relu:
        a.write(mask=positive)


@_computes(w.BatchNormBackward)
def batch_norm_backward(work: w.BatchNormBackward, a: Arrays) -> None:
    _norm_backward(work.norm, a, a.raw("mask") if work.norm.relu else None)


@_computes(w.BatchNormCallForward)
def batch_norm_call_forward(work: w.BatchNormCallForward, a: Arrays) -> None:
    positive = _norm_forward(work, a)
    if work.norm.relu:
        bits = np.packbits(positive)
        a.raw("reserve")[: bits.size] = bits


@_computes(w.BatchNormCallBackward)
def batch_norm_call_backward(work: w.BatchNormCallBackward, a: Arrays) -> None:
    norm = work.norm
    positive = None
    if norm.relu:
        positive = np.unpackbits(a.raw("reserve"), count=norm.size).reshape(norm.shape).astype(bool)
    _norm_backward(norm, a, positive)


@_computes(w.BatchNormFinalize)
def batch_norm_finalize(work: w.BatchNormFinalize, a: Arrays) -> None:
    mean = a.sum / work.count
    var = np.maximum(a.square_sum / work.count - mean * mean, 0)
    inv_std = 1 / np.sqrt(var + work.eps)
    scale = a.gamma * inv_std
    _write_running(a, mean, var, work.count, work.momentum)
    a.write(mean=mean, inv_std=inv_std, scale=scale, bias=a.beta - mean * scale)


@_computes(w.BatchNormApply)
def batch_norm_apply(work: w.BatchNormApply, a: Arrays) -> None:
    norm = work.norm
    y = _per_channel(a.scale, norm.layout) * a.x + _per_channel(a.bias, norm.layout)
    if norm.add:
        y += a.residual
    a.write(y=np.maximum(y, 0) if norm.relu else y)


# -- pooling ---------------------------------------------------------------------------------------------------------


def _pads(pool: w.Pool) -> tuple[tuple[int, int], tuple[int, int]]:
    """What stands before and behind the image's rows and columns, as far as windows reach."""
    reach = ((outputs - 1) * pool.stride + pool.ksize for outputs in (pool.p, pool.q))
    rows, columns = (max(0, end - size - pool.pad) for end, size in zip(reach, (pool.h, pool.w), strict=True))
    return (pool.pad, rows), (pool.pad, columns)


def _windows(pool: w.Pool, x: Array, outside: float) -> Array:
    """(N, H, W, C) -> (ksize * ksize, N, P, Q, C), with what the padding holds."""
    padded = np.pad(x, ((0, 0), *_pads(pool), (0, 0)), constant_values=outside)
    taps = [_tap(pool, padded, r, s) for r in range(pool.ksize) for s in range(pool.ksize)]
    return np.stack(taps)


@_computes(w.MaxPoolForward)
def max_pool_forward(work: w.MaxPoolForward, a: Arrays) -> None:
    pool = work.pool
    x = _nhwc(a.x, pool.layout)
    values = _windows(pool, x, -np.inf)
    inside = _windows(pool, np.ones_like(x), 0).astype(bool)
    maximum = values.max(0)
    hits = inside & ((values == maximum) | (np.isnan(values) & np.isnan(maximum)))
    a.write(y=_stored(maximum, pool.layout), place=_stored(hits.argmax(0), pool.layout))


@_computes(w.MaxPoolBackward)
def max_pool_backward(work: w.MaxPoolBackward, a: Arrays) -> None:
    pool = work.pool
    gy, place = _nhwc(a.gy, pool.layout), _nhwc(a.raw("place"), pool.layout)
    (above, below), (left, right) = _pads(pool)
    gx = np.zeros((pool.n, above + pool.h + below, left + pool.w + right, pool.c))
    for tap in range(pool.ksize**2):
        _tap(pool, gx, *divmod(tap, pool.ksize))[...] += np.where(place == tap, gy, 0)
    a.write(gx=_inside(pool, gx))


def _tiles(work: Any) -> list[tuple[int, slice]]:
    """Output and pixels of each window along one side."""
    return [(i, slice(i * work.stride, i * work.stride + work.ksize)) for i in range(work.out)]


@_computes(w.TiledAverageForward)
def tiled_average_forward(work: w.TiledAverageForward, a: Arrays) -> None:
    x = _nhwc(a.x, work.layout)
    y = np.stack([np.stack([x[:, r, s].mean((1, 2)) for _, s in _tiles(work)], 1) for _, r in _tiles(work)], 1)
    a.write(y=_stored(y, work.layout))


@_computes(w.TiledAverageBackward)
def tiled_average_backward(work: w.TiledAverageBackward, a: Arrays) -> None:
    gy = _nhwc(a.gy, work.layout)
    gx = np.zeros((work.n, work.side, work.side, work.c))
    for (p, rows), (q, columns) in itertools.product(_tiles(work), _tiles(work)):
        gx[:, rows, columns] += gy[:, p, None, q, None] / work.ksize**2
    a.write(gx=_stored(gx, work.layout))


# -- concatenation, normalisation across channels, dropout ----------------------------------------------------------


@_computes(w.PutColumns)
def put_columns(work: w.PutColumns, a: Arrays) -> None:
    a.raw("y")[:, work.first : work.first + work.width] = a.raw("x")


def _neighbours(work: Any, values: Array) -> Array:
    """Sums over `size` channels around each; channels are the axis that the layout says."""
    axis = 1 if work.layout == "NCHW" else 2
    values = np.moveaxis(values, axis, -1)
    half = work.size // 2
    sums = np.stack([values[..., max(0, i - half) : i + half + 1].sum(-1) for i in range(work.c)], -1)
    return np.moveaxis(sums, -1, axis)


@_computes(w.LrnForward)
def lrn_forward(work: w.LrnForward, a: Arrays) -> None:
    sums = work.k + work.alpha * _neighbours(work, a.x**2)
    a.write(y=a.x * sums**-work.beta, sums=sums)


@_computes(w.LrnBackward)
def lrn_backward(work: w.LrnBackward, a: Arrays) -> None:
    across = _neighbours(work, a.gy * a.x * a.sums ** (-work.beta - 1))
    a.write(gx=a.gy * a.sums**-work.beta - 2 * work.alpha * work.beta * a.x * across)


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 in plain integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def kept_values(work: Any, seed: int, count: int) -> Array:
    """1 or 0 for every value as it is stored."""
    blocks = [philox((i, 0, count, 0), (seed, 0)) for i in range(-(-work.size // 4))]
    kept = (np.array(blocks).reshape(-1)[: work.size] >= round(work.ratio * 2**32)).reshape(work.n, work.c, -1)
    return (kept if work.layout == "NCHW" else kept.transpose(0, 2, 1)).reshape(-1)


@_computes(w.DropoutForward)
def dropout_forward(work: w.DropoutForward, a: Arrays) -> None:
    seed, count = a.raw("counter").tolist()
    kept = kept_values(work, seed, count)
    a.write(y=np.where(kept, a.x / (1 - work.ratio), 0), kept=kept)


@_computes(w.DropoutBackward)
def dropout_backward(work: w.DropoutBackward, a: Arrays) -> None:
    a.raw("counter")[1] += 1
    a.write(gx=np.where(a.raw("kept"), a.gy / (1 - work.ratio), 0))


# -- classifier and loss ---------------------------------------------------------------------------------------------


def _biased(work: Any, a: Arrays) -> Array:
    return np.asarray((a.y.reshape(work.n, work.k, -1) + a.b[:, None]).reshape(a.y.shape))


def _one_hot(labels: Array, k: int) -> Array:
    """(N, K); no one at all for a label out of range."""
    return np.asarray(labels[:, None] == np.arange(k))


@_computes(w.SoftmaxCrossEntropyForward)
def softmax_cross_entropy_forward(work: w.SoftmaxCrossEntropyForward, a: Arrays) -> None:
    x = a.x - a.x.max(1, keepdims=True)
    log_p = x - np.log(np.exp(x).sum(1, keepdims=True))
    labels = a.raw("t")
    in_range = (labels >= 0) & (labels < work.k)
    at_label = log_p[np.arange(work.n), np.where(in_range, labels, 0)]
    a.write(log_p=log_p, losses=np.where(in_range, -at_label, np.nan))


# -- Kronecker factors -----------------------------------------------------------------------------------------------


@_computes(w.KroneckerFactor)
def kronecker_factor(work: w.KroneckerFactor, a: Arrays) -> None:
    x = a.x if work.layout == "NCHW" else a.x.T
    moment = work.scale * x @ x.T + (work.decay * a.factor if work.decay else 0)
    a.write(factor=np.where(np.tri(work.size, dtype=bool), moment, a.factor))


@_computes(w.DampFactors)
def damp_factors(work: w.DampFactors, a: Arrays) -> None:
    mean_a, mean_g = np.trace(a.a) / work.d, np.trace(a.g) / work.k
    pi = np.sqrt(mean_a / mean_g) if mean_a > 0 and mean_g > 0 else np.float64(1)
    root = np.sqrt(work.damping)
    a.write(damped_a=a.a + np.diag([pi * root] * work.d), damped_g=a.g + np.diag([root / pi] * work.k))


@_computes(w.BeginInverse)
def begin_inverse(work: w.BeginInverse, a: Arrays) -> None:
    a.write(factor=a.x, x=np.eye(work.size))


@_computes(w.EndInverse)
def end_inverse(work: w.EndInverse, a: Arrays) -> None:
    if a.raw("minor")[0]:
        a.write(x=np.nan, info=a.raw("minor"))


# -- weight update ---------------------------------------------------------------------------------------------------


@_computes(w.Unscale)
def unscale(work: w.Unscale, a: Arrays) -> None:
    state = a.raw("state")
    gx = (a.g / float(state[w.SCALE])).astype(work.dtype)
    finite = np.isfinite(gx)
    a.write(gx=np.where(finite, gx, 0))
    state[w.OVERFLOWS] += sum(not finite[begin : begin + w.CHUNK].all() for begin in range(0, work.size, w.CHUNK))


@_computes(w.MomentumUpdate)
def momentum_update(work: w.MomentumUpdate, a: Arrays) -> None:
    v = work.momentum * a.v - work.learning_rate * a.g
    a.write(w=a.w + v, v=v)


def _at(address: int, size: int, dtype: str) -> Array:
    """The host memory that an entry of a pointer table names."""
    memory = (ctypes.c_char * (size * w.ITEM_BYTES[dtype])).from_address(address)
    return np.frombuffer(memory, dtype=dtype)


def _gradients(work: w.BatchedUpdate | w.CheckFinite | w.PackGradients, a: Arrays) -> list[Array]:
    of = work.parameters
    return [
        _at(int(address), size, of.gradients or (of.half if half_weights else "float32"))
        for size, (address, half_weights) in zip(work.parameters.sizes, a.raw("table"), strict=True)
    ]


def _overflowing_chunks(work: w.BatchedUpdate | w.CheckFinite, gradients: list[Array], scale: float) -> int:
    return sum(
        not np.isfinite((gradients[index][begin:end] / np.float64(scale)).astype(np.float32)).all()
        for index, begin, end, _ in work.parameters.chunks()
    )


@_computes(w.BatchedUpdate)
def batched_update(work: w.BatchedUpdate, a: Arrays) -> None:
    state, gradients = a.raw("state"), _gradients(work, a)
    scale = float(state[w.SCALE])
    if work.dynamic:
        if state[w.OVERFLOWS] > 0:
            return
    else:
        state[w.OVERFLOWS] += _overflowing_chunks(work, gradients, scale)
    rows = zip(work.parameters.sizes, work.parameters.places, gradients, a.raw("table")[:, 1], strict=True)
    for size, place, gradient, half_weights in rows:
        master = a.raw("master")[place : place + size]
        velocity = a.raw("velocity")[place : place + size]
        g = gradient.astype(np.float64) / scale
        finite = np.isfinite(g.astype(np.float32))
        v = work.momentum * velocity.astype(np.float64)
        v -= work.learning_rate * (g + work.weight_decay * master.astype(np.float64))
        master[...] = np.where(finite, master + v, master)
        velocity[...] = np.where(finite, v, velocity)
        if half_weights:
            _at(int(half_weights), size, work.parameters.half)[...] = master


@_computes(w.CheckFinite)
def check_finite(work: w.CheckFinite, a: Arrays) -> None:
    a.raw("state")[w.OVERFLOWS] += _overflowing_chunks(work, _gradients(work, a), 1.0)


@_computes(w.PackGradients)
def pack_gradients(work: w.PackGradients, a: Arrays) -> None:
    for place, gradient in zip(work.parameters.places, _gradients(work, a), strict=True):
        a.raw("flat")[place : place + gradient.size] = gradient.astype(np.float32) * np.float32(work.factor)


@_computes(w.AdjustScale)
def adjust_scale(work: w.AdjustScale, a: Arrays) -> None:
    state = a.raw("state")
    if state[w.OVERFLOWS] > 0:
        state[w.SCALE] = max(state[w.SCALE] / 2, 1)
        state[w.SKIPPED] += 1
        state[w.GOOD_STEPS] = 0
    else:
        state[w.GOOD_STEPS] += 1
        if state[w.GOOD_STEPS] >= work.interval:
            state[w.SCALE] = min(state[w.SCALE] * 2, 2**24)
            state[w.GOOD_STEPS] = 0
    state[w.OVERFLOWS] = 0


# -- work whose one output is one expression -------------------------------------------------------------------------

_EXPRESSIONS: tuple[tuple[type[w.Work], str, Callable[[Any, Arrays], Any]], ...] = (
    (w.ConvFprop, "y", lambda work, a: _stored(_fprop(work.conv, a), work.conv.layout)),
    (w.ConvDgrad, "gx", lambda work, a: _dgrad(work.conv, a)),
    (w.ConvDgradAdd, "gx", lambda work, a: _dgrad(work.conv, a) + a.other),
    (w.Relu, "y", lambda _, a: np.maximum(a.x, 0)),
    (w.ReluBackward, "gx", lambda _, a: np.where(a.y > 0, a.gy, 0)),
    (w.Add, "c", lambda _, a: a.a + a.b),
    (w.AddRelu, "y", lambda _, a: np.maximum(a.a + a.b, 0)),
    (w.GlobalAverageForward, "y", lambda work, a: _nhwc(a.x, work.layout).mean((1, 2))),
    (w.GlobalAverageBackward, "gx", lambda work, a: _stored(a.gy[:, None, None, :] / (work.h * work.w), work.layout)),
    (w.TakeColumns, "gx", lambda work, a: a.gy[:, work.first : work.first + work.width]),
    (w.AddBias, "y", lambda work, a: _biased(work, a)),
    (w.AddBiasRelu, "y", lambda work, a: np.maximum(_biased(work, a), 0)),
    (w.BiasGradient, "gb", lambda work, a: a.gy.reshape(work.slices, -1, work.k, work.pixels).sum((1, 3))),
    (w.MeanLoss, "loss", lambda work, a: a.losses.mean() * work.weight),
    (
        w.SoftmaxCrossEntropyBackward,
        "gx",
        lambda work, a: (np.exp(a.log_p) - _one_hot(a.raw("t"), work.k)) * a.gloss * work.weight / work.n,
    ),
    (w.CholeskyInverse, "x", lambda _, a: np.linalg.inv(np.tril(a.x) + np.tril(a.x, -1).T)),
    (w.ToSingle, "y", lambda _, a: a.x),
    (w.ToHalf, "y", lambda _, a: a.x),
    (w.WeightDecay, "g", lambda work, a: a.g + work.weight_decay * a.w),
)
for _kind, _output, _of in _EXPRESSIONS:
    _computes(_kind)(lambda work, a, output=_output, of=_of: a.write(**{output: of(work, a)}))
