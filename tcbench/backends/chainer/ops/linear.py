"""The classifier's matrix product, cut along columns for the threads."""

from __future__ import annotations

import numpy as np

from tcbench import work
from tcbench.accelerators.numpy import half, parallel
from tcbench.accelerators.numpy.parallel import Array
from tcbench.accelerators.protocol import Accelerator
from tcbench.backends.chainer.ops.convolution import ConvWorks, works_of
from tcbench.backends.chainer.ops.node import ForwardNode, GradientNode, Variable, Variables, dtype_of
from tcbench.work import Math

add_bias = work.shared(work.AddBias)
bias_gradient = work.shared(work.BiasGradient)


def _compute(array: Array) -> Array:
    return half.cast(array, half.compute_dtype(array.dtype))


COLUMNS = 256
"""Per product: 2 to 8 of them for ImageNet's 1000 classes and ResNet-50's 2048 features."""


def _product(a: Array, b: Array) -> Array:
    """a @ b."""
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)

    def compute(span: tuple[int, int]) -> None:
        columns = slice(*span)
        np.matmul(a, b[:, columns], out=out[:, columns])

    parallel.run(compute, parallel.spans(b.shape[1], COLUMNS))
    return out


class Linear(ForwardNode):
    """x @ w.T + b. On a GPU a 1x1 convolution, so that cuDNN does it: cuBLAS cannot be captured in a graph."""

    works: ConvWorks

    def __init__(self, math: Math) -> None:
        self.math = math

    def forward_cpu(self, inputs: tuple[Array, Array, Array]) -> tuple[Array]:
        x, w, b = self._checked(inputs)
        y = _product(_compute(x), _compute(w).T)
        y += b
        return (half.cast(y, x.dtype),)

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        x, w, b = self._checked(inputs)
        (n, c), k, dtype = x.shape, w.shape[0], dtype_of(x)
        self.works = works_of((n, 1, 1, c), (k, 1, 1, c), 1, 0, "NHWC", dtype, self.math)
        y = accelerator.empty((n, k), x.dtype)
        accelerator.launch(self.works.fprop, x, w, y)
        accelerator.launch(add_bias(n, k, dtype), y, b)
        return (y,)

    def _checked(self, inputs: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        x, w, b = inputs
        if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1] or b.shape != (w.shape[0],) or x.dtype != w.dtype:
            raise ValueError(
                f"linear: x {x.shape} {x.dtype}, w {w.shape} {w.dtype}, b {b.shape} do not fit: "
                "expected x (N, C) and w (K, C) of one dtype, b (K,)"
            )
        self.x, self.w, self.bias_dtype = x, w, b.dtype
        return x, w, b

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        nodes = (LinearDgrad, LinearWgrad, LinearBiasGradient)
        return tuple(nodes[i](self).apply(gys)[0] for i in indexes)


class _LinearGradient(GradientNode):
    def __init__(self, forward_node: Linear) -> None:
        self.of = forward_node


class LinearDgrad(_LinearGradient):
    """gx of gy."""

    def forward_cpu(self, inputs: tuple[Array]) -> tuple[Array]:
        gy = inputs[0]
        return (half.cast(_product(_compute(gy), _compute(self.of.w)), gy.dtype),)

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        gx = accelerator.empty(self.of.x.shape, self.of.x.dtype)
        accelerator.launch(self.of.works.dgrad, inputs[0], self.of.w, gx)
        return (gx,)


class LinearWgrad(_LinearGradient):
    """gw of gy."""

    def forward_cpu(self, inputs: tuple[Array]) -> tuple[Array]:
        gy = inputs[0]
        return (half.cast(_product(_compute(gy).T, _compute(self.of.x)), gy.dtype),)

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        gw = accelerator.empty(self.of.w.shape, self.of.w.dtype)
        accelerator.launch(self.of.works.wgrad, self.of.x, inputs[0], gw)
        return (gw,)


class LinearBiasGradient(_LinearGradient):
    """gb of gy."""

    def forward_cpu(self, inputs: tuple[Array]) -> tuple[Array]:
        return (_compute(inputs[0]).sum(axis=0).astype(self.of.bias_dtype),)

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (gy,) = inputs
        gb = accelerator.empty((gy.shape[1],), self.of.bias_dtype)
        accelerator.launch(bias_gradient(*gy.shape, dtype_of(gy)), gy, gb)
        return (gb,)


def linear(x: Variable, w: Variable, b: Variable, *, math: Math = "strict") -> Variable:
    """x @ w.T + b: x (N, C), w (K, C) of one dtype, b (K,) float32 even if x is float16. `math` as in
    convolution_2d."""
    return Linear(math).apply((x, w, b))[0]
