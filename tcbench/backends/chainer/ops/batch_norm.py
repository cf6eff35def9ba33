"""Batch normalisation alone, with ReLU, and with an addition and ReLU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcbench.backends.chainer.compat import chainer
from tcbench.backends.chainer.ops.cpu import batch_norm as kernels
from tcbench.backends.chainer.ops.node import ForwardNode, GradientNode, Variable, Variables
from tcbench.backends.chainer.ops.parallel import Array
from tcbench.backends.chainer.spec import Layout

EPS = 2e-5


@dataclass
class RunningStatistics:
    """Moving averages of mean and variance for evaluation, updated in place as Chainer's BatchNormalization does:
    running = decay * running + (1 - decay) * batch, the variance with the factor m / (m - 1).

    mean, var: float32 (C,).
    """

    mean: Array
    var: Array
    decay: float = 0.9

    def update(self, mean: Array, var: Array, count: int) -> None:
        """`var` is biased; `count` is the number of values per channel."""
        self.mean *= self.decay
        self.mean += ((1 - self.decay) * mean).astype(self.mean.dtype)
        self.var *= self.decay
        self.var += ((1 - self.decay) * (count / max(count - 1, 1)) * var).astype(self.var.dtype)


class BatchNorm(ForwardNode):
    """relu(bn(x) + residual), either or both of the latter absent. Inputs: x, gamma, beta[, residual]."""

    def __init__(self, running: RunningStatistics, layout: Layout, eps: float, relu: bool) -> None:
        self.running = running
        self.layout = layout
        self.eps = eps
        self.relu = relu
        self.train = bool(chainer.config.train)

    @property
    def label(self) -> str:
        return "BatchNormRelu" if self.relu else "BatchNorm"

    def forward_cpu(self, inputs: tuple[Array, ...]) -> tuple[Array]:
        x, gamma, beta, *rest = inputs
        channels = x.shape[1 if self.layout == "NCHW" else -1]
        if x.ndim != 4 or gamma.shape != (channels,) or beta.shape != (channels,):
            raise ValueError(
                f"batch_norm: x {x.shape}, gamma {gamma.shape}, beta {beta.shape} do not fit in {self.layout}"
            )
        residual = np.ascontiguousarray(rest[0]) if rest else None
        if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
            raise ValueError(
                f"batch_norm_add_relu: residual {residual.shape} {residual.dtype}, expected {x.shape} {x.dtype}"
            )
        self.x = x = np.ascontiguousarray(x)
        self.gamma = gamma
        if self.train:
            statistics = kernels.statistics(x, self.layout)
            self.running.update(statistics.mean, statistics.var, x.size // channels)
        else:
            mean, var = self.running.mean.astype(np.float64), self.running.var.astype(np.float64)
            statistics = kernels.Statistics(mean, var, bool(np.any(mean * mean > kernels.CENTRE_ABOVE * var)))
        self.statistics = statistics
        self.inv_std = 1 / np.sqrt(statistics.var + self.eps)
        scale = gamma * self.inv_std
        centred = statistics.centred
        y = kernels.normalise(
            x,
            scale,
            beta if centred else beta - scale * statistics.mean,
            self.layout,
            relu=self.relu,
            residual=residual,
            centre=statistics.mean if centred else None,
        )
        self.y = y if self.relu else None
        return (y,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        gradients = BatchNormBackward(self, with_residual=3 in indexes).apply(gys)
        if self.relu is False and 3 in indexes:
            gradients = (*gradients, gys[0])
        return tuple(gradients[i] for i in indexes)


class BatchNormBackward(GradientNode):
    """gx, ggamma, gbeta[, gresidual] of gy."""

    def __init__(self, forward_node: BatchNorm, with_residual: bool) -> None:
        self.of = forward_node
        self.with_residual = with_residual and forward_node.relu

    def forward_cpu(self, inputs: tuple[Array]) -> tuple[Array, ...]:
        of = self.of
        gx, ggamma, gbeta, gresidual = kernels.gradients(
            inputs[0],
            of.x,
            of.statistics,
            of.inv_std,
            of.gamma,
            of.layout,
            y=of.y,
            keep_masked=self.with_residual,
            constant=not of.train,
        )
        dtype = of.gamma.dtype
        result = (gx, ggamma.astype(dtype), gbeta.astype(dtype))
        return result if gresidual is None else (*result, gresidual)


def batch_norm(
    x: Variable, gamma: Variable, beta: Variable, running: RunningStatistics, *, layout: Layout, eps: float = EPS
) -> Variable:
    """gamma * (x - mean) / sqrt(var + eps) + beta per channel. gamma, beta (C,), float32 even if x is float16.

    While chainer.config.train is set, with the batch's statistics, and `running` follows; else with `running`'s.
    """
    return BatchNorm(running, layout, eps, relu=False).apply((x, gamma, beta))[0]


def batch_norm_relu(
    x: Variable, gamma: Variable, beta: Variable, running: RunningStatistics, *, layout: Layout, eps: float = EPS
) -> Variable:
    """relu(batch_norm(x))"""
    return BatchNorm(running, layout, eps, relu=True).apply((x, gamma, beta))[0]


def batch_norm_add_relu(
    x: Variable,
    gamma: Variable,
    beta: Variable,
    residual: Variable,
    running: RunningStatistics,
    *,
    layout: Layout,
    eps: float = EPS,
) -> Variable:
    """relu(batch_norm(x) + residual); residual has x's shape and dtype."""
    return BatchNorm(running, layout, eps, relu=True).apply((x, gamma, beta, residual))[0]
