"""The classifier's matrix product."""

from __future__ import annotations

from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.ops.bias import add_bias, bias_gradient
from tcbench.engine.backends.chainer.ops.convolution import ConvWorks, works_of
from tcbench.engine.backends.chainer.ops.node import (
    ForwardNode,
    GradientNode,
    Variable,
    Variables,
    dtype_of,
    filter_gradient,
)
from tcbench.engine.work import Math


class Linear(ForwardNode):
    """x @ w.T + b, as a 1x1 convolution, so that cuDNN does it: cuBLAS cannot be captured in a graph."""

    works: ConvWorks

    def __init__(self, math: Math) -> None:
        self.math = math

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        x, w, b = self._checked(inputs)
        n, k, dtype = x.shape[0], w.shape[0], dtype_of(x)
        c = x.size // n
        self.works = works_of((n, 1, 1, c), (k, 1, 1, c), 1, 0, "NHWC", dtype, self.math)
        y = accelerator.empty((n, k), x.dtype)
        accelerator.launch(self.works.fprop, x, w, y)
        accelerator.launch(add_bias(n, k, dtype), y, b)
        return (y,)

    def _checked(self, inputs: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        x, w, b = inputs
        if x.ndim < 2 or x.shape[1:] != w.shape[1:] or b.shape != (w.shape[0],) or x.dtype != w.dtype:
            raise ValueError(
                f"linear: x {x.shape} {x.dtype}, w {w.shape} {w.dtype}, b {b.shape} do not fit: "
                "expected x (N, ...) and w (K, ...) alike and of one dtype, b (K,)"
            )
        self.x, self.w, self.bias_dtype = x, w, b.dtype
        return x, w, b

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        nodes = (LinearDgrad, LinearWgrad, LinearBiasGradient)
        return tuple(nodes[i](self).apply(gys)[0] for i in indexes)


class LinearDgrad(GradientNode):
    """gx of gy."""

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        gx = accelerator.empty(self.of.x.shape, self.of.x.dtype)
        accelerator.launch(self.of.works.dgrad, inputs[0], self.of.w, gx)
        return (gx,)


class LinearWgrad(GradientNode):
    """gw of gy."""

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        gw = accelerator.empty(self.of.w.shape, self.of.w.dtype)
        accelerator.launch(self.of.works.wgrad, self.of.x, inputs[0], gw)
        filter_gradient(self.of, inputs[0])
        return (gw,)


class LinearBiasGradient(GradientNode):
    """gb of gy."""

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (gy,) = inputs
        gb = accelerator.empty((gy.shape[1],), self.of.bias_dtype)
        accelerator.launch(bias_gradient(*gy.shape, dtype_of(gy)), gy, gb)
        return (gb,)


def linear(x: Variable, w: Variable, b: Variable, *, math: Math = "strict") -> Variable:
    """x @ w.T + b: x (N, ...), w (K, ...) alike and of one dtype, such as maps in either layout; b (K,) float32 even if
    x is float16. `math` as in convolution_2d."""
    return Linear(math).apply((x, w, b))[0]
