"""Batch normalisation, optionally followed by an addition and ReLU."""

import functools
from dataclasses import dataclass, replace

import numpy as np

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array, BatchNormRoute
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.ops.elementwise import relu_gradient
from tcbench.engine.backends.chainer.ops.node import ForwardNode, Variable, Variables, dtype_of, logical
from tcbench.engine.work import After, DType, Layout

EPS = 2e-5
"""Chainer's default epsilon of batch normalisation."""


@dataclass
class RunningStatistics:
    """Moving averages of mean and variance, float32 (C,), for evaluation.

    They are updated in place as in Chainer's BatchNormalization: running = decay * running + (1 - decay) * batch, with
    the factor m / (m - 1) for the variance of m values."""

    mean: Array
    var: Array
    decay: float = 0.9


class BatchNorm(ForwardNode):
    """The node of relu(bn(x) + residual), where ReLU and residual are optional. Inputs: x, gamma, beta[, residual]."""

    route: BatchNormRoute
    with_residual: bool

    def __init__(self, running: RunningStatistics, layout: Layout, relu: bool) -> None:
        self.running = running
        self.layout = layout
        self.relu = relu
        self.train = bool(chainer.config.train)

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        """Normalise x, and keep what the gradient needs. In evaluation, use the running statistics."""
        x, gamma, beta, *residuals = self._checked(inputs)
        if not self.train:
            return self._evaluate_on(accelerator, x, gamma, beta, *residuals)
        self.route = route = accelerator.batch_norm(self._norm(x), EPS, 1 - self.running.decay)
        self.x, self.gamma, self.beta = x, gamma, beta
        y = accelerator.empty(x.shape, x.dtype)
        self.mean, self.inv_std = (accelerator.empty(gamma.shape, gamma.dtype) for _ in range(2))
        self.saved = () if route.saved is None else (accelerator.empty(*route.saved),)
        fused = residuals if route.forward.norm.add else ()
        running = (self.running.mean, self.running.var)
        accelerator.launch(route.forward, x, *fused, gamma, beta, *running, y, self.mean, self.inv_std, *self.saved)
        if route.then == "relu":
            accelerator.launch(work.Relu.interned(y.size, dtype_of(y)), y, y)
        elif route.then == "add_relu":
            accelerator.launch(work.AddRelu.interned(y.size, dtype_of(y)), y, *residuals, y)
        self.y = y if self.relu else None
        return (y,)

    def _evaluate_on(
        self, accelerator: Accelerator, x: Array, gamma: Array, beta: Array, *residuals: Array
    ) -> tuple[Array]:
        """Normalise with the running statistics, for inference only: there is no gradient. Waits for the device,
        because scale and bias (C,) are computed on the host."""
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
        y = accelerator.empty(x.shape, x.dtype)
        apply = work.BatchNormApply.interned(self._norm(x))
        accelerator.launch(apply, x, *residuals, *map(accelerator.upload, vectors), y)
        return (y,)

    def _norm(self, x: Array) -> work.Norm:
        """Return the description of this normalisation of x."""
        after: After = "none" if not self.relu else "add_relu" if self.with_residual else "relu"
        return norm_of(x.shape, self.layout, dtype_of(x), after)

    def _checked(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the inputs, and set `with_residual`. Raises ValueError if their shapes or dtypes do not fit."""
        x, gamma, beta, *residuals = inputs
        channels = x.shape[1 if self.layout == "NCHW" else -1]
        if x.ndim != 4 or gamma.shape != (channels,) or beta.shape != (channels,):
            raise ValueError(
                f"batch_norm: x {x.shape}, gamma {gamma.shape}, beta {beta.shape} do not fit in {self.layout}"
            )
        self.with_residual = bool(residuals)
        for residual in residuals:
            if residual.shape != x.shape or residual.dtype != x.dtype:
                raise ValueError(
                    f"batch_norm: residual {residual.shape} {residual.dtype}, expected {x.shape} {x.dtype}"
                )
        return inputs

    def gradients(self, accelerator: Accelerator, gy: Array) -> tuple[Array, ...]:
        """Return the gradients of x, gamma, beta[, residual] from gy."""
        backward = self.route.backward
        if self.route.then != "none":
            gy = relu_gradient(accelerator, gy, self.y)
        gx = accelerator.empty(gy.shape, gy.dtype)
        ggamma, gbeta = (accelerator.empty(self.gamma.shape, self.gamma.dtype) for _ in range(2))
        gresidual = (accelerator.empty(gy.shape, gy.dtype),) if backward.norm.add else ()
        # A library call that fused ReLU recomputes ReLU's mask from beta and y.
        call = isinstance(backward, work.BatchNormCallBackward) and backward.norm.relu
        mask_operands = (self.beta, self.y) if call else ()
        operands = (self.x, self.gamma, self.mean, self.inv_std, *mask_operands, *self.saved)
        accelerator.launch(backward, gy, *operands, gx, ggamma, gbeta, *gresidual)
        return gx, ggamma, gbeta, *(gresidual or (gy,) * self.with_residual)


class BatchNormFromSums(BatchNorm):
    """Batch normalisation that saves a pass over x: the preceding convolution has computed the channels' sums.

    Inputs: x, sum, sum of squares, gamma, beta[, residual]. The sums get no gradient."""

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        """Compute scale and bias from the sums, and apply them to x. In evaluation, use the running statistics."""
        x, total, squares, *rest = inputs
        x, gamma, beta, *residuals = self._checked((x, *rest))
        if not self.train:
            return self._evaluate_on(accelerator, x, gamma, beta, *residuals)
        momentum = 1 - self.running.decay
        self.route = route = _from_sums(self._norm(x))
        self.x, self.gamma, self.saved = x, gamma, ()
        self.mean, self.inv_std, scale, bias = (accelerator.empty(gamma.shape, gamma.dtype) for _ in range(4))
        running = (self.running.mean, self.running.var)
        accelerator.launch(
            work.BatchNormFinalize.interned(gamma.size, route.norm.count, EPS, momentum, dtype_of(gamma)),
            *(total, squares, gamma, beta, *running, self.mean, self.inv_std, scale, bias),
        )
        y = accelerator.empty(x.shape, x.dtype)
        accelerator.launch(work.BatchNormApply.interned(route.norm), x, *residuals, scale, bias, y)
        self.y = y if self.relu else None
        return (y,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        """Return the gradients at `indexes`; those of the sums are None."""
        positions = {0: 0, 3: 1, 4: 2, 5: 3}  # index of an input -> that of its gradient in `gradients`
        selected = tuple(positions[i] for i in indexes if i in positions)
        gradients = iter(super().backward(selected, gys))
        return tuple(next(gradients) if i in positions else None for i in indexes)


@functools.cache
def norm_of(shape: tuple[int, ...], layout: Layout, dtype: DType, after: After) -> work.Norm:
    """Return the geometry of the batch normalisation of an array stored in this shape, and of what follows. Cached."""
    return work.Norm(*logical(shape, layout), layout, dtype, after)


@functools.cache
def _from_sums(norm: work.Norm) -> BatchNormRoute:
    """Return the route of a normalisation whose statistics the convolution has computed.

    Only its backward part is used; `forward` is never launched. There is no saved mask, so ReLU's gradient is launched
    separately."""
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
    """Return gamma * (x - mean) / sqrt(var + EPS) + beta per channel, followed by ReLU if `relu`.

    With a `residual` of x's shape and dtype it returns the ReLU of that plus the residual. gamma and beta are (C,), and
    float32 even if x is float16. If x is the tuple that `convolution_2d_stats` returns, its sums are used. In training
    (chainer.config.train) it uses the batch's statistics and updates `running`; otherwise it uses `running`."""
    residuals = () if residual is None else (residual,)
    node, inputs = (BatchNormFromSums, x) if isinstance(x, tuple) else (BatchNorm, (x,))
    return node(running, layout, relu or bool(residuals)).apply((*inputs, gamma, beta, *residuals))[0]
