"""Batch normalisation over all axes but the channels', fused at will with an addition and a ReLU.

Every pass runs chunk by chunk, so that each array is read from memory once per pass, whatever is computed from it.
Mean and variance come from per-chunk sums (BLAS does them: ones @ x), combined in float64.

With xhat = (x - mean) * inv_std:  y = gamma * xhat + beta, and
gx = gamma * inv_std * (gy - mean(gy) - xhat * mean(gy * xhat))   (Ioffe and Szegedy, 2015)"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.elementwise import is_positive, keep_where, zeros
from tcbench.engine.accelerators.cpu.reference.half import compute_dtype, convert, load
from tcbench.engine.accelerators.cpu.threads import Array, scratch
from tcbench.engine.work import BatchNormApply, BatchNormBackward, BatchNormFinalize, BatchNormForward, Layout, Norm

CHUNK = 1 << 18
"""Elements per chunk. Shorter ones stay in L2, but then threads meet at the interpreter lock too often."""
SHORT_PLANE = 64
"""NCHW planes of at most so many pixels are handled as rows of C * H * W numbers: their inner loops would be short."""
CENTRE_ABOVE = 16.0
"""Sums of squares about zero lose digits when mean**2 is far above the variance: from this ratio on, about a centre."""


@dataclass(frozen=True)
class View:
    """Channels of x in chunks: x as `shape`, a chunk being an index into it; per-channel numbers broadcast to it. rows:
    shape (rows, C * repeat) where each row holds `repeat` numbers of each channel (NHWC: whole pixels laid end to end
    so that inner loops are long; NCHW with short planes: one image). planes: shape (N, C, H * W)."""

    shape: tuple[int, ...]
    channels: int
    count: int
    layout: Layout
    chunks: tuple[tuple[slice | int, ...], ...]

    @property
    def planes(self) -> bool:
        return len(self.shape) == 3

    def expand(self, values: Array, dtype: Any) -> Array:
        """(C,) as an array that broadcasts against chunks, before `of_chunk`."""
        values = values.astype(dtype)
        if self.planes:
            return values[:, None]
        times = self.shape[1] // self.channels
        return np.tile(values, times) if self.layout == "NHWC" else np.repeat(values, times)

    def of_chunk(self, expanded: Array, chunk: tuple[slice | int, ...]) -> Array:
        return expanded[chunk[1]] if self.planes else expanded

    def sums(self, part: Array) -> Array:
        """A chunk's sum per channel: (C,), or for planes the channels of the chunk."""
        total: Array
        if self.planes:
            total = np.matmul(part, np.ones(part.shape[1], part.dtype))
            return total
        total = np.matmul(np.ones(part.shape[0], part.dtype), part)
        if self.layout == "NHWC":
            total = total.reshape(-1, self.channels).sum(axis=0)
        else:
            total = total.reshape(self.channels, -1).sum(axis=1)
        return total


def view_of(shape: tuple[int, ...], layout: Layout) -> View:
    """The order in which to walk an array of `shape`: chunks of about CHUNK numbers, with long inner loops."""
    if layout == "NCHW":
        n, c, h, w = shape
        if h * w > SHORT_PLANE:
            step = max(1, CHUNK // (h * w))
            planes = tuple((i, slice(*span)) for i in range(n) for span in threads.spans(c, step))
            return View((n, c, h * w), c, n * h * w, layout, planes)
        flat = (n, c * h * w)
    else:
        n, h, w, c = shape
        rows, repeat = n * h * w, 1
        while c * repeat < 1024 and rows % 2 == 0 and rows > 256:
            rows, repeat = rows // 2, repeat * 2
        flat = (rows, c * repeat)
    chunks = tuple((slice(*span),) for span in threads.spans(flat[0], max(1, CHUNK // flat[1])))
    return View(flat, c, n * h * w, layout, chunks)


def _collect(view: View, function: Callable[[Any], tuple[Array, ...]]) -> list[Array]:
    """Per-channel totals in float64 of what `function` returns for each chunk, added in the chunks' order."""
    results: list[tuple[Array, ...] | None] = [None] * len(view.chunks)

    def compute(i: int) -> None:
        results[i] = function(view.chunks[i])

    threads.run(compute, range(len(view.chunks)))
    n = len(results[0] or ())
    totals = [np.zeros(view.channels, np.float64) for _ in range(n)]
    for chunk, result in zip(view.chunks, results, strict=True):
        target = chunk[1] if view.planes else slice(None)
        for total, part in zip(totals, result or (), strict=True):
            total[target] += part
    return totals


def sums(x: Array, view: View) -> list[Array]:
    """Sum and sum of squares of each channel, accumulated in float64 from chunk to chunk."""
    x = x.reshape(view.shape)

    def of_chunk(chunk: Any) -> tuple[Array, Array]:
        part = load(x[chunk], "bn.x")
        square = scratch("bn.square", part.shape, part.dtype)
        np.multiply(part, part, out=square)
        return view.sums(part), view.sums(square)

    return _collect(view, of_chunk)


def statistics(x: Array, layout: Layout) -> tuple[Array, Array, bool]:
    """Mean and (biased) variance per channel, in float64; and whether x - mean must be computed before anything is
    summed."""
    view = view_of(x.shape, layout)
    total, squares = sums(x, view)
    x = x.reshape(view.shape)
    mean = total / view.count
    var = squares / view.count - mean * mean
    with np.errstate(invalid="ignore"):
        if not np.any(mean * mean > CENTRE_ABOVE * var):  # NaN compares false
            return mean, np.maximum(var, 0), False

    centre = view.expand(mean, compute_dtype(x.dtype))

    def about_centre(chunk: Any) -> tuple[Array, Array]:
        part = load(x[chunk], "bn.x")
        difference = scratch("bn.square", part.shape, part.dtype)
        np.subtract(part, view.of_chunk(centre, chunk), out=difference)
        first = view.sums(difference)
        np.multiply(difference, difference, out=difference)
        return first, view.sums(difference)

    rest, squares = _collect(view, about_centre)
    used = mean.astype(compute_dtype(x.dtype)).astype(np.float64)
    var = squares / view.count - (rest / view.count) ** 2
    return used + rest / view.count, np.maximum(var, 0), True


def forward(work: BatchNormForward, x: Array, *arrays: Array) -> None:
    """See BatchNormForward."""
    norm = work.norm
    residual, rest = (arrays[0], arrays[1:]) if norm.add else (None, arrays)
    gamma, beta, running_mean, running_var, y, mean, inv_std, *mask = rest
    batch_mean, var, centred = statistics(x, norm.layout)
    _follow(running_mean, running_var, batch_mean, var, norm.count, work.momentum)
    mean[...] = batch_mean
    inv_std[...] = 1 / np.sqrt(var + work.eps)
    # From here on with the rounded numbers that backward will see.
    scale = gamma.astype(np.float64) * inv_std
    centre = mean if centred else None
    shift = beta if centred else beta - scale * mean
    _normalise(norm, x, scale, shift, y, residual, centre, mask[0] if mask else None)


def _follow(running_mean: Array, running_var: Array, mean: Array, var: Array, count: int, momentum: float) -> None:
    """Moving averages of the batches' mean and (unbiased) variance, in place."""
    for running, value in ((running_mean, mean), (running_var, var * (count / max(count - 1, 1)))):
        running *= 1 - momentum
        running += (momentum * value).astype(running.dtype)


def finalize(work: BatchNormFinalize, *arrays: Array) -> None:
    """See BatchNormFinalize."""
    total, squares, gamma, beta, running_mean, running_var, mean, inv_std, scale, bias = arrays
    batch_mean = total.astype(np.float64) / work.count
    var = np.maximum(squares.astype(np.float64) / work.count - batch_mean * batch_mean, 0)
    _follow(running_mean, running_var, batch_mean, var, work.count, work.momentum)
    wide = 1 / np.sqrt(var + work.eps)
    mean[...], inv_std[...], scale[...] = batch_mean, wide, gamma * wide
    bias[...] = beta - batch_mean * gamma * wide


def apply(work: BatchNormApply, x: Array, *arrays: Array) -> None:
    """See BatchNormApply."""
    residual, (scale, bias, y) = (arrays[0], arrays[1:]) if work.norm.add else (None, arrays)
    _normalise(work.norm, x, scale, bias, y, residual, None, None)


def _normalise(
    norm: Norm,
    x: Array,
    scale: Array,
    shift: Array,
    y: Array,
    residual: Array | None,
    centre: Array | None,
    mask: Array | None,
) -> None:
    """y = (x - centre) * scale + shift (+ residual), then max(., 0) if the norm has a ReLU, rounded once; and `mask`,
    where that is above 0."""
    view = view_of(x.shape, norm.layout)
    dtype = compute_dtype(x.dtype)
    xs, ys = x.reshape(view.shape), y.reshape(view.shape)
    rs = None if residual is None else residual.reshape(view.shape)
    masks = None if mask is None else mask.reshape(view.shape)
    scales, shifts = view.expand(scale, dtype), view.expand(shift, dtype)
    centres = None if centre is None else view.expand(centre, dtype)

    def compute(chunk: Any) -> None:
        part, out = load(xs[chunk], "bn.x"), ys[chunk]
        work = out if out.dtype == dtype else scratch("bn.work", out.shape, dtype)
        if centres is not None:
            part = np.subtract(part, view.of_chunk(centres, chunk), out=work)
        np.multiply(part, view.of_chunk(scales, chunk), out=work)
        np.add(work, view.of_chunk(shifts, chunk), out=work)
        if rs is not None:
            np.add(work, load(rs[chunk], "bn.residual"), out=work)
        if norm.relu:
            flat = work.reshape(-1)
            np.maximum(flat, zeros(flat.size, dtype), out=flat)
        if work is not out:
            convert(work, out)
        if masks is not None:
            is_positive(out, masks[chunk])

    threads.run(compute, view.chunks)


def backward(work: BatchNormBackward, gy: Array, x: Array, *arrays: Array) -> None:
    """See BatchNormBackward."""
    norm = work.norm
    gamma, mean, inv_std, *rest = arrays
    mask = rest.pop(0) if norm.relu else None
    gx, ggamma, gbeta, *gresidual = rest
    mean, inv_std = mean.astype(np.float64), inv_std.astype(np.float64)
    with np.errstate(invalid="ignore"):
        centred = bool(np.any(mean * mean * inv_std * inv_std > CENTRE_ABOVE))  # NaN compares false

    view = view_of(x.shape, norm.layout)
    dtype = compute_dtype(x.dtype)
    masked = gresidual[0] if gresidual else gx
    xs, gs, gxs, ms = (array.reshape(view.shape) for array in (x, gy, gx, masked))
    masks = None if mask is None else mask.reshape(view.shape)
    means = view.expand(mean, dtype) if centred else None

    def reduce(chunk: Any) -> tuple[Array, Array]:
        g = gs[chunk]
        if masks is not None:
            keep_where(masks[chunk], g, ms[chunk])
            g = ms[chunk]
        g, part = load(g, "bn.g"), load(xs[chunk], "bn.x")
        product = scratch("bn.square", part.shape, dtype)
        if means is not None:
            part = np.subtract(part, view.of_chunk(means, chunk), out=product)
        np.multiply(g, part, out=product)
        return view.sums(g), view.sums(product)

    total, moment = _collect(view, reduce)
    if not centred:
        moment = moment - mean * total
    wide_ggamma = moment * inv_std
    ggamma[...], gbeta[...] = wide_ggamma, total

    a = gamma.astype(np.float64) * inv_std
    b = -a * inv_std * wide_ggamma / view.count
    c = -a * total / view.count
    if not centred:
        c = c - b * mean
    scale, slope, offset = (view.expand(values, dtype) for values in (a, b, c))

    def compute(chunk: Any) -> None:
        g = load((gs if masks is None else ms)[chunk], "bn.g")
        part, out = load(xs[chunk], "bn.x"), gxs[chunk]
        work = out if out.dtype == dtype else scratch("bn.work", out.shape, dtype)
        line = scratch("bn.square", part.shape, dtype)
        if means is not None:
            part = np.subtract(part, view.of_chunk(means, chunk), out=line)
        np.multiply(part, view.of_chunk(slope, chunk), out=line)
        np.add(line, view.of_chunk(offset, chunk), out=line)
        np.multiply(g, view.of_chunk(scale, chunk), out=work)
        np.add(work, line, out=work)
        if work is not out:
            convert(work, out)

    threads.run(compute, view.chunks)
