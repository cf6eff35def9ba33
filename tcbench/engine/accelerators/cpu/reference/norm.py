"""Batch normalisation over all axes but the channels', with an addition and a ReLU where the work asks for them.

With xhat = (x - mean) * inv_std:  y = gamma * xhat + beta, and
gx = gamma * inv_std * (gy - mean(gy) - xhat * mean(gy * xhat))   (Ioffe and Szegedy, 2015)
Each thread takes some channels. Sums over an image (NCHW) or a row (NHWC) are added up in float64."""

import numpy as np

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.operands import CHUNK, Operands, computes, where_set
from tcbench.engine.accelerators.cpu.threads import Array
from tcbench.engine.work import BatchNormApply, BatchNormBackward, BatchNormFinalize, BatchNormForward, Norm

_LEAST_CHANNELS = 32
"""In NHWC a part has at least so many channels, which are NumPy's inner loops."""
_FEW_PIXELS = 64
"""In NCHW, vectors are repeated for each pixel of maps that have no more: NumPy's inner loops would be short."""


@computes(BatchNormForward)
def forward(work: BatchNormForward, a: Operands) -> None:
    """Normalise with the batch's own mean and variance."""
    norm = work.norm

    def compute(part: Operands) -> None:
        mean = _sum(norm, part.x) / norm.count
        y = np.subtract(part.x, _per_channel(norm, mean.astype(a.gamma.dtype)), out=part.result("y"))
        var = _sum(norm, y, y) / norm.count
        _follow(part, mean, var, norm.count, work.momentum)
        part.write(mean=mean, inv_std=1 / np.sqrt(var + work.eps))
        # inv_std was rounded when it was written, as backward will see it.
        _finish(norm, part, y, part.gamma * part.inv_std, part.beta)

    threads.run(compute, _parts(norm, a))


@computes(BatchNormFinalize)
def finalize(work: BatchNormFinalize, a: Operands) -> None:
    """Take mean and variance from a convolution's sums."""
    mean = a.sum.astype(np.float64) / work.count
    var = np.maximum(a.square_sum.astype(np.float64) / work.count - mean * mean, 0)
    _follow(a, mean, var, work.count, work.momentum)
    inv_std = 1 / np.sqrt(var + work.eps)
    scale = a.gamma * inv_std
    a.write(mean=mean, inv_std=inv_std, scale=scale, bias=a.beta - mean * scale)


@computes(BatchNormApply)
def apply(work: BatchNormApply, a: Operands) -> None:
    """y = scale * x + bias."""
    parts = _parts(work.norm, a)
    threads.run(lambda part: _finish(work.norm, part, part.x.copy(), part.scale, part.bias), parts)


@computes(BatchNormBackward)
def backward(work: BatchNormBackward, a: Operands) -> None:
    """gx, ggamma and gbeta from gy, taken as 0 where the mask is not set."""
    norm = work.norm

    def compute(part: Operands) -> None:
        gy = where_set(part.raw("mask"), part.gy) if norm.relu else part.gy
        gx = np.subtract(part.x, _per_channel(norm, part.mean), out=part.result("gx"))
        inv_std = part.inv_std.astype(np.float64)
        gbeta, ggamma = _sum(norm, gy), _sum(norm, gy, gx) * inv_std
        part.write(gbeta=gbeta, ggamma=ggamma)
        if norm.add:
            part.write(gresidual=gy)
        scale, slope, offset = (
            _per_channel(norm, (part.gamma * inv_std * values).astype(a.gamma.dtype))
            for values in (1, -ggamma * inv_std / norm.count, -gbeta / norm.count)
        )
        gx *= slope
        gx += offset
        gx += scale * gy
        part.write(gx=gx)

    threads.run(compute, _parts(norm, a))


def _parts(norm: Norm, a: Operands) -> list[Operands]:
    """Return operands that have some of the channels each."""
    at_once = max(CHUNK // norm.count, 1 if norm.layout == "NCHW" else _LEAST_CHANNELS)

    def part(channels: slice) -> Operands:
        maps = (slice(None), channels) if norm.layout == "NCHW" else (..., channels)
        return a.indexed(lambda array: array[maps if array.ndim > 1 else channels])

    return [part(slice(begin, begin + at_once)) for begin in range(0, norm.c, at_once)]


def _per_channel(norm: Norm, vector: Array) -> Array:
    """Return the vector of some channels in a shape that broadcasts against their maps."""
    if norm.layout == "NHWC":
        return vector
    if norm.pixels > _FEW_PIXELS:
        return vector[:, None, None]
    return np.repeat(vector, norm.pixels).reshape(-1, norm.h, norm.w)


def _finish(norm: Norm, a: Operands, y: Array, scale: Array, shift: Array) -> None:
    """Write scale * y + shift, with what follows the norm."""
    y *= _per_channel(norm, scale)
    y += _per_channel(norm, shift)
    if norm.add:
        y += a.residual
    a.write(y=np.maximum(y, 0, out=y) if norm.relu else y)
    if "mask" in a:
        np.greater(a.raw("y"), 0, out=a.raw("mask"))


def _sum(norm: Norm, *factors: Array) -> Array:
    """Return the sum over each channel of the product of all factors."""
    rows = "nc" if norm.layout == "NCHW" else "nhc"
    sums = np.einsum(f"{','.join([norm.layout.lower()] * len(factors))}->{rows}", *factors)
    return np.asarray(sums.reshape(-1, sums.shape[-1]).sum(0, np.float64))


def _follow(a: Operands, mean: Array, var: Array, count: int, momentum: float) -> None:
    """Let the running statistics follow the batch's mean and unbiased variance."""
    a.write(
        running_mean=(1 - momentum) * a.running_mean + momentum * mean,
        running_var=(1 - momentum) * a.running_var + momentum * var * (count / max(count - 1, 1)),
    )
