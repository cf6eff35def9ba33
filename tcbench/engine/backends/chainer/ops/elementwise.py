"""Elementwise operations: ReLU and addition."""

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.ops.node import ForwardNode, Variable, Variables, add_arrays, dtype_of


def relu_gradient(accelerator: Accelerator, gy: Array, y: Array) -> Array:
    """Return ReLU's gradient: gy where the output y is above 0, else 0."""
    gx: Array = accelerator.empty(y.shape, y.dtype)
    accelerator.launch(work.ReluBackward.interned(y.size, dtype_of(y)), gy, y, gx)
    return gx


class Relu(ForwardNode):
    """The node of ReLU. It keeps the output because the gradient needs its sign."""

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (x,) = inputs
        self.y = accelerator.empty(x.shape, x.dtype)
        accelerator.launch(work.Relu.interned(x.size, dtype_of(x)), x, self.y)
        return (self.y,)

    def gradients(self, accelerator: Accelerator, gy: Array) -> tuple[Array]:
        return (relu_gradient(accelerator, gy, self.y),)


class AddNode(ForwardNode):
    """The node of a + b, whose gradient is that of both inputs."""

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        a, b = inputs
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(f"add: expected equal shapes and dtypes, got {a.shape} {a.dtype} and {b.shape} {b.dtype}")
        return add_arrays(accelerator, a, b)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return gys * len(indexes)


def relu(x: Variable) -> Variable:
    """Return max(x, 0); NaN stays NaN."""
    return Relu().apply((x,))[0]


def add(a: Variable, b: Variable) -> Variable:
    """Return a + b for equal shapes and dtypes; float16 is added in float32 and rounded once."""
    return AddNode().apply((a, b))[0]
