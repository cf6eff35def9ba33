"""Batch normalisation with or without ReLU, forward and backward.

oneDNN's first implementation lets its threads meet at barriers that spin, several to a pass: beside other work on the
same cores each costs a time slice of the scheduler, and all of a step's passes together 1.3 s in place of 7 ms. This
takes the one that has none, and for small arrays the first one on a single thread, as long as both have the same speed
there (ResNet-50 in float32 at 64x64, batch 8, two threads: 9 ms a step).
"""

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.onednn import library as dnnl
from tcbench.engine.accelerators.cpu.onednn.convolution import strides
from tcbench.engine.accelerators.cpu.onednn.library import Array, Binding, Engine, Primitive, Unimplemented
from tcbench.engine.accelerators.cpu.onednn.tuning import NUMPY, SLOWER, Choice, descriptions, fastest
from tcbench.engine.accelerators.cpu.reference import batch_norm as numpy_batch_norm
from tcbench.engine.accelerators.protocol import BatchNormRoute

_WITHOUT_BARRIERS = "bnorm_tbb_jit"
_LARGE_BYTES = 1 << 22


@functools.cache
def route(norm: w.Norm, eps: float, momentum: float) -> BatchNormRoute:
    """The addition of a residual is work of its own, with ReLU: oneDNN does not fuse it on processors."""
    alone = replace(norm, after="none") if norm.add else norm
    then: w.After = "add_relu" if norm.add else "none"
    return BatchNormRoute(alone, w.BatchNormForward(alone, eps, momentum), w.BatchNormBackward(alone), then)


def forward(engine: Engine, work: w.BatchNormForward) -> Choice:
    """See BatchNormForward, without a residual."""
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

    def numpys(*arrays: Array) -> None:
        numpy_batch_norm.forward(work, *arrays)
        inv_std = arrays[-2] if norm.relu else arrays[-1]
        engine.met_nan |= bool(np.isnan(inv_std.sum()))

    return _faster(engine, work, Choice(bind, primitive.name), numpys)


def backward(engine: Engine, work: w.BatchNormBackward) -> Choice:
    """See BatchNormBackward, without a residual."""
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

    return _faster(engine, work, Choice(bind, primitive.name), functools.partial(numpy_batch_norm.backward, work))


def _faster(
    engine: Engine, work: w.BatchNormForward | w.BatchNormBackward, choice: Choice, kernel: Callable[..., None]
) -> Choice:
    """oneDNN's, or NumPy's kernel where oneDNN has plain C++ on one thread, as in NCHW, and that is slower. Of
    ReLU's mask both keep a byte for each value there, so that either goes on with the other's."""
    if not choice.name.startswith(SLOWER):
        return choice
    shapes = [operand.shape for operand in work.operands]

    def bind(*arrays: Array) -> Callable[[], None]:
        return functools.partial(kernel, *(array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)))

    return fastest(engine, work, [choice, Choice(bind, NUMPY)])


def _primitive(engine: Engine, norm: w.Norm, eps: float, *, backward: bool) -> Primitive:
    """Forward or backward, on arrays in the order of the work's operands. Raises Unimplemented."""
    if norm.add:
        raise Unimplemented("add_relu")
    sizes = (norm.n, norm.c, norm.h, norm.w)
    x = engine.descriptor(norm.dtype, sizes, strides(norm.layout, sizes))
    vector = engine.descriptor("float32", (norm.c,), (1,))
    flags = dnnl.USE_SCALE | dnnl.USE_SHIFT | (dnnl.FUSE_RELU if norm.relu else 0)

    def describe(dtype: str) -> int:
        stored = engine.descriptor(dtype, sizes, strides(norm.layout, sizes)).handle
        made = engine.describe(
            "batch_normalization_forward", dnnl.FORWARD_TRAINING, stored, stored, eps, flags, engine.plain
        )
        if backward:
            made = engine.describe(
                "batch_normalization_backward", dnnl.BACKWARD, stored, stored, stored, eps, flags, made, engine.plain
            )
        return made

    def operands(described: int) -> list[Binding]:
        kept = (
            [Binding(dnnl.WORKSPACE, engine.descriptor_of(described, dnnl.WORKSPACE), not backward)]
            if norm.relu
            else []
        )
        if backward:
            return [
                *(Binding(dnnl.DIFF_DST, x), Binding(dnnl.SRC, x), Binding(dnnl.SCALE, vector)),
                *(Binding(dnnl.MEAN, vector), Binding(dnnl.VARIANCE, vector), *kept),
                *(
                    Binding(dnnl.DIFF_SRC, x, True),
                    Binding(dnnl.DIFF_SCALE, vector, True),
                    Binding(dnnl.DIFF_SHIFT, vector, True),
                ),
            ]
        return [
            *(
                Binding(dnnl.SRC, x),
                Binding(dnnl.SCALE, vector),
                Binding(dnnl.SHIFT, vector),
                Binding(dnnl.DST, x, True),
            ),
            *(Binding(dnnl.MEAN, vector, True), Binding(dnnl.VARIANCE, vector, True), *kept),
        ]

    if x.bytes > _LARGE_BYTES:
        with engine.threads(engine.n_threads):
            for described in descriptions(engine, norm.dtype, describe, most=8):
                if engine.implementation(described).startswith(_WITHOUT_BARRIERS):
                    return engine.primitive(described, operands(described))
    described = descriptions(engine, norm.dtype, describe)[0]
    return engine.primitive(described, operands(described))
