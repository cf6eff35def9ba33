"""Batch normalisation alone, with ReLU, and with an addition and ReLU."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array, BatchNormRoute
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.ops.elementwise import relu_backward_on
from tcbench.engine.backends.chainer.ops.node import ForwardNode, Variable, Variables, dtype_of, logical
from tcbench.engine.work import After, DType, Layout

EPS = 2e-5
"""Chainer's own batch-normalisation epsilon."""


@dataclass
class RunningStatistics:
    """Moving averages of mean and variance for evaluation, updated in place as Chainer's BatchNormalization does:
    running = decay * running + (1 - decay) * batch, the variance with the factor m / (m - 1). mean, var: float32
    (C,)."""

    mean: Array
    var: Array
    decay: float = 0.9


class BatchNorm(ForwardNode):
    """relu(bn(x) + residual), either or both of the latter absent. Inputs: x, gamma, beta[, residual]."""

    route: BatchNormRoute
    with_residual: bool

    def __init__(self, running: RunningStatistics, layout: Layout, relu: bool) -> None:
        self.running = running
        self.layout = layout
        self.relu = relu
        self.train = bool(chainer.config.train)

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        x, gamma, beta, residual = self._checked(inputs)
        if not self.train:
            return self._evaluate_on(accelerator, x, gamma, beta, residual)
        norm = norm_of(x.shape, self.layout, dtype_of(x), self._after)
        self.route = route = accelerator.batch_norm(norm, EPS, 1 - self.running.decay)
        self.x, self.gamma, self.beta = x, gamma, beta
        y = accelerator.empty(x.shape, x.dtype)
        self.mean, self.inv_std = (accelerator.empty(gamma.shape, gamma.dtype) for _ in range(2))
        self.kept = () if route.saved is None else (accelerator.empty(*route.saved),)
        added = (residual,) if route.forward.norm.add else ()
        running = (self.running.mean, self.running.var)
        accelerator.launch(route.forward, x, *added, gamma, beta, *running, y, self.mean, self.inv_std, *self.kept)
        if route.then == "relu":
            accelerator.launch(work.Relu.interned(y.size, dtype_of(y)), y, y)
        elif route.then == "add_relu":
            accelerator.launch(work.AddRelu.interned(y.size, dtype_of(y)), y, residual, y)
        self.y = y if self.relu else None
        return (y,)

    def _evaluate_on(
        self, accelerator: Accelerator, x: Array, gamma: Array, beta: Array, residual: Any
    ) -> tuple[Array]:
        """With the running statistics, for inference alone: there is no gradient. Waits for the device, since scale and
        bias (C,) are computed on the host."""
        if chainer.config.enable_backprop:
            raise NotImplementedError(
                "batch_norm: evaluation has no gradient: call it under chainer.no_backprop_mode()"
            )
        mean, var, gamma64, beta64 = (
            accelerator.download(array).astype(np.float64)
            for array in (self.running.mean, self.running.var, gamma, beta)
        )
        scale = gamma64 / np.sqrt(var + EPS)
        vectors = (scale.astype(gamma.dtype), (beta64 - scale * mean).astype(gamma.dtype))
        norm = norm_of(x.shape, self.layout, dtype_of(x), self._after)
        y = accelerator.empty(x.shape, x.dtype)
        added = () if residual is None else (residual,)
        accelerator.launch(work.BatchNormApply.interned(norm), x, *added, *map(accelerator.upload, vectors), y)
        return (y,)

    @property
    def _after(self) -> After:
        return "none" if not self.relu else "add_relu" if self.with_residual else "relu"

    def _checked(self, inputs: tuple[Array, ...]) -> tuple[Array, Array, Array, Any]:
        """x, gamma, beta and the residual or None, which fit each other."""
        x, gamma, beta, *rest = inputs
        channels = x.shape[1 if self.layout == "NCHW" else -1]
        if x.ndim != 4 or gamma.shape != (channels,) or beta.shape != (channels,):
            raise ValueError(
                f"batch_norm: x {x.shape}, gamma {gamma.shape}, beta {beta.shape} do not fit in {self.layout}"
            )
        residual = rest[0] if rest else None
        if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
            raise ValueError(f"batch_norm: residual {residual.shape} {residual.dtype}, expected {x.shape} {x.dtype}")
        self.with_residual = residual is not None
        return x, gamma, beta, residual

    def gradients(self, accelerator: Accelerator, gy: Array) -> tuple[Array, ...]:
        """gx, ggamma, gbeta[, gresidual] of gy."""
        backward = self.route.backward
        if self.route.then != "none":
            gy = relu_backward_on(accelerator, gy, self.y)
        gx = accelerator.empty(gy.shape, gy.dtype)
        ggamma, gbeta = (accelerator.empty(self.gamma.shape, self.gamma.dtype) for _ in range(2))
        added = (accelerator.empty(gy.shape, gy.dtype),) if backward.norm.add else ()
        # A call that fused ReLU computes its mask again from what it was of.
        call = isinstance(backward, work.BatchNormCallBackward) and backward.norm.relu
        again = (self.beta, self.y) if call else ()
        kept = (self.x, self.gamma, self.mean, self.inv_std, *again, *self.kept)
        accelerator.launch(backward, gy, *kept, gx, ggamma, gbeta, *added)
        return gx, ggamma, gbeta, *(added or (gy,) * self.with_residual)


class BatchNormFromSums(BatchNorm):
    """The same from each channel's sum and sum of squares, which the convolution before has taken: one pass over x
    less. Inputs: x, sum, square_sum, gamma, beta[, residual]; the sums get no gradient."""

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        x, total, squares, *rest = inputs
        x, gamma, beta, residual = self._checked((x, *rest))
        if not self.train:
            return self._evaluate_on(accelerator, x, gamma, beta, residual)
        momentum = 1 - self.running.decay
        self.route = route = _from_sums(norm_of(x.shape, self.layout, dtype_of(x), self._after))
        self.x, self.gamma, self.kept = x, gamma, ()
        self.mean, self.inv_std, scale, bias = (accelerator.empty(gamma.shape, gamma.dtype) for _ in range(4))
        running = (self.running.mean, self.running.var)
        accelerator.launch(
            work.BatchNormFinalize.interned(gamma.size, route.norm.count, EPS, momentum, dtype_of(gamma)),
            *(total, squares, gamma, beta, *running, self.mean, self.inv_std, scale, bias),
        )
        y = accelerator.empty(x.shape, x.dtype)
        added = () if residual is None else (residual,)
        accelerator.launch(work.BatchNormApply.interned(route.norm), x, *added, scale, bias, y)
        self.y = y if self.relu else None
        return (y,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        place = {0: 0, 3: 1, 4: 2, 5: 3}
        wanted = tuple(place[i] for i in indexes if i in place)
        gradients = iter(super().backward(wanted, gys))
        return tuple(next(gradients) if i in place else None for i in indexes)


@functools.cache
def norm_of(shape: tuple[int, ...], layout: Layout, dtype: DType, after: After) -> work.Norm:
    """The batch normalisation of an array of this shape; the same object for the same arguments."""
    return work.Norm(*logical(shape, layout), layout, dtype, after)


@functools.cache
def _from_sums(norm: work.Norm) -> BatchNormRoute:
    """The route back where the convolution has taken the statistics: there is no mask, so ReLU's gradient is work of
    its own. `forward` is what it stands in for and is not launched."""
    alone = replace(norm, after="none")
    return BatchNormRoute(norm, work.BatchNormForward(alone, 0.0, 0.0), work.BatchNormBackward(alone), norm.after)


def batch_norm(
    x: Variable | Variables,
    gamma: Variable,
    beta: Variable,
    running: RunningStatistics,
    *,
    layout: Layout,
    relu: bool = False,
    residual: Variable | None = None,
) -> Variable:
    """gamma * (x - mean) / sqrt(var + EPS) + beta per channel, then ReLU if `relu`; with a residual of x's shape and
    dtype, relu(that + residual). gamma, beta (C,), float32 even if x is float16. Of `convolution_2d_stats`' results (x,
    and per channel its sum and sum of squares) the sums are used. While chainer.config.train is set, with the batch's
    statistics, and `running` follows; else with `running`'s."""
    added = () if residual is None else (residual,)
    node, inputs = (BatchNormFromSums, x) if isinstance(x, tuple) else (BatchNorm, (x,))
    return node(running, layout, relu or bool(added)).apply((*inputs, gamma, beta, *added))[0]
