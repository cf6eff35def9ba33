"""relu and add."""

from __future__ import annotations

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.ops.node import (
    ForwardNode,
    GradientNode,
    Variable,
    Variables,
    add_on,
    dtype_of,
)

relu_work = work.shared(work.Relu)
relu_backward_work = work.shared(work.ReluBackward)
add_relu_work = work.shared(work.AddRelu)


def relu_backward_on(accelerator: Accelerator, gy: Array, y: Array) -> Array:
    """gy where y > 0, else 0."""
    gx: Array = accelerator.empty(y.shape, y.dtype)
    accelerator.launch(relu_backward_work(y.size, dtype_of(y)), gy, y, gx)
    return gx


class Relu(ForwardNode):
    """Keeps its output, whose sign its gradient needs."""

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (x,) = inputs
        self.y = accelerator.empty(x.shape, x.dtype)
        accelerator.launch(relu_work(x.size, dtype_of(x)), x, self.y)
        return (self.y,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return ReluGradient(self).apply(gys)


class ReluGradient(GradientNode):
    """gx of gy."""

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        return (relu_backward_on(accelerator, inputs[0], self.of.y),)


class AddNode(ForwardNode):
    """a + b; hands its gradient on to both."""

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        a, b = self._checked(inputs)
        return add_on(accelerator, a, b, accelerator.empty(a.shape, a.dtype))

    def _checked(self, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        a, b = inputs
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(f"add: expected equal shapes and dtypes, got {a.shape} {a.dtype} and {b.shape} {b.dtype}")
        return a, b

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return gys * len(indexes)


def relu(x: Variable) -> Variable:
    """max(x, 0); NaN stays NaN."""
    return Relu().apply((x,))[0]


def add(a: Variable, b: Variable) -> Variable:
    """a + b of equal shapes; float16 is added in float32 and rounded once."""
    return AddNode().apply((a, b))[0]
