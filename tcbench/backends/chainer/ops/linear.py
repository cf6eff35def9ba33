"""The classifier's matrix product, cut along columns for the threads."""

from __future__ import annotations

import numpy as np

from tcbench.backends.chainer.ops import half, parallel
from tcbench.backends.chainer.ops.node import ForwardNode, GradientNode, Variable, Variables
from tcbench.backends.chainer.ops.parallel import Array


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
    """x @ w.T + b"""

    def forward_cpu(self, inputs: tuple[Array, Array, Array]) -> tuple[Array]:
        x, w, b = inputs
        if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1] or b.shape != (w.shape[0],) or x.dtype != w.dtype:
            raise ValueError(
                f"linear: x {x.shape} {x.dtype}, w {w.shape} {w.dtype}, b {b.shape} do not fit: "
                "expected x (N, C) and w (K, C) of one dtype, b (K,)"
            )
        self.x, self.w, self.bias_dtype = x, w, b.dtype
        y = _product(_compute(x), _compute(w).T)
        y += b
        return (half.cast(y, x.dtype),)

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


class LinearWgrad(_LinearGradient):
    """gw of gy."""

    def forward_cpu(self, inputs: tuple[Array]) -> tuple[Array]:
        gy = inputs[0]
        return (half.cast(_product(_compute(gy).T, _compute(self.of.x)), gy.dtype),)


class LinearBiasGradient(_LinearGradient):
    """gb of gy."""

    def forward_cpu(self, inputs: tuple[Array]) -> tuple[Array]:
        return (_compute(inputs[0]).sum(axis=0).astype(self.of.bias_dtype),)


def linear(x: Variable, w: Variable, b: Variable) -> Variable:
    """x @ w.T + b: x (N, C), w (K, C) of one dtype, b (K,) float32 even if x is float16."""
    return Linear().apply((x, w, b))[0]
