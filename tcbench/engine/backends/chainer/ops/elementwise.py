"""relu and add."""

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.ops.node import ForwardNode, Variable, Variables, added, dtype_of


def relu_backward_on(accelerator: Accelerator, gy: Array, y: Array) -> Array:
    """gy where y > 0, else 0."""
    gx: Array = accelerator.empty(y.shape, y.dtype)
    accelerator.launch(work.ReluBackward.interned(y.size, dtype_of(y)), gy, y, gx)
    return gx


class Relu(ForwardNode):
    """Keeps its output, whose sign its gradient needs."""

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (x,) = inputs
        self.y = accelerator.empty(x.shape, x.dtype)
        accelerator.launch(work.Relu.interned(x.size, dtype_of(x)), x, self.y)
        return (self.y,)

    def gradients(self, accelerator: Accelerator, gy: Array) -> tuple[Array]:
        return (relu_backward_on(accelerator, gy, self.y),)


class AddNode(ForwardNode):
    """a + b; hands its gradient on to both."""

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        a, b = inputs
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(f"add: expected equal shapes and dtypes, got {a.shape} {a.dtype} and {b.shape} {b.dtype}")
        return added(accelerator, a, b)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return gys * len(indexes)


def relu(x: Variable) -> Variable:
    """max(x, 0); NaN stays NaN."""
    return Relu().apply((x,))[0]


def add(a: Variable, b: Variable) -> Variable:
    """a + b of equal shapes; float16 is added in float32 and rounded once."""
    return AddNode().apply((a, b))[0]
