"""Batch normalisation, with addition of a residual and ReLU if the operation includes them.

With xhat = (x - mean) * inv_std:  y = gamma * xhat + beta, and
gx = gamma * inv_std * (gy - mean(gy) - xhat * mean(gy * xhat))   (Ioffe and Szegedy, 2015)
Each thread processes some of the channels. Sums over an image (NCHW) or a row (NHWC) are added up in float64."""

import numpy as np

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.operands import CHUNK, Operands, computes, where_set
from tcbench.engine.accelerators.cpu.threads import Array
from tcbench.engine.work import BatchNormApply, BatchNormBackward, BatchNormFinalize, BatchNormForward, Norm

_LEAST_CHANNELS = 32
"""The least channels per part in NHWC, where channels are NumPy's inner loops."""
_FEW_PIXELS = 64
"""Up to this many pixels per map in NCHW, per-channel vectors are repeated for each pixel, since the inner loops of
broadcasting would be short."""


@computes(BatchNormForward)
def forward(work: BatchNormForward, a: Operands) -> None:
    """Normalise with the mean and variance of the batch."""
    norm = work.norm

    def compute(part: Operands) -> None:
        """Normalise these channels and update their running statistics."""
        mean = _sum(norm, part.x) / norm.count
        y = np.subtract(part.x, _per_channel(norm, mean.astype(a.gamma.dtype)), out=part.result("y"))
        var = _sum(norm, y, y) / norm.count
        _update_running_statistics(part, mean, var, norm.count, work.momentum)
        part.write(mean=mean, inv_std=1 / np.sqrt(var + work.eps))
        # part.inv_std is rounded, as backward reads it.
        _finish(norm, part, y, part.gamma * part.inv_std, part.beta)

    threads.run(compute, _parts(norm, a))


@computes(BatchNormFinalize)
def finalize(work: BatchNormFinalize, a: Operands) -> None:
    """Compute mean and 1 / standard deviation per channel from a convolution's sums, and the factors of `apply`.

    The convolution has summed its outputs and their squares. The running statistics are updated too."""
    mean = a.sum.astype(np.float64) / work.count
    var = np.maximum(a.square_sum.astype(np.float64) / work.count - mean * mean, 0)
    _update_running_statistics(a, mean, var, work.count, work.momentum)
    inv_std = 1 / np.sqrt(var + work.eps)
    scale = a.gamma * inv_std
    a.write(mean=mean, inv_std=inv_std, scale=scale, bias=a.beta - mean * scale)


@computes(BatchNormApply)
def apply(work: BatchNormApply, a: Operands) -> None:
    """Compute y = scale * x + bias, with residual and ReLU if the operation includes them."""
    parts = _parts(work.norm, a)
    threads.run(lambda part: _finish(work.norm, part, part.x.copy(), part.scale, part.bias), parts)


@computes(BatchNormBackward)
def backward(work: BatchNormBackward, a: Operands) -> None:
    """Compute gx, ggamma and gbeta from gy, which counts as 0 where the mask is not set."""
    norm = work.norm

    def compute(part: Operands) -> None:
        """Compute the gradients of these channels."""
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
    """Return parts of the operands with some of the channels each."""
    at_once = max(CHUNK // norm.count, 1 if norm.layout == "NCHW" else _LEAST_CHANNELS)

    def part(channels: slice) -> Operands:
        maps = (slice(None), channels) if norm.layout == "NCHW" else (..., channels)
        return a.indexed(lambda array: array[maps if array.ndim > 1 else channels])

    return [part(slice(begin, begin + at_once)) for begin in range(0, norm.c, at_once)]


def _per_channel(norm: Norm, vector: Array) -> Array:
    """Return a vector with one value per channel in a shape that broadcasts against maps."""
    if norm.layout == "NHWC":
        return vector
    if norm.pixels > _FEW_PIXELS:
        return vector[:, None, None]
    return np.repeat(vector, norm.pixels).reshape(-1, norm.h, norm.w)


def _finish(norm: Norm, a: Operands, y: Array, scale: Array, shift: Array) -> None:
    """Write y = scale * y + shift, then add the residual and apply ReLU if the operation includes them."""
    y *= _per_channel(norm, scale)
    y += _per_channel(norm, shift)
    if norm.add:
        y += a.residual
    a.write(y=np.maximum(y, 0, out=y) if norm.relu else y)
    if "mask" in a:
        np.greater(a.raw("y"), 0, out=a.raw("mask"))


def _sum(norm: Norm, *factors: Array) -> Array:
    """Return for each channel the sum of the product of all factors."""
    rows = "nc" if norm.layout == "NCHW" else "nhc"
    sums = np.einsum(f"{','.join([norm.layout.lower()] * len(factors))}->{rows}", *factors)
    return np.asarray(sums.reshape(-1, sums.shape[-1]).sum(0, np.float64))


def _update_running_statistics(a: Operands, mean: Array, var: Array, count: int, momentum: float) -> None:
    """Update the running statistics with the mean and the unbiased variance of the batch."""
    a.write(
        running_mean=(1 - momentum) * a.running_mean + momentum * mean,
        running_var=(1 - momentum) * a.running_var + momentum * var * (count / max(count - 1, 1)),
    )
