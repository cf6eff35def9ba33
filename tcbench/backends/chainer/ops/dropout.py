"""Dropout."""

from __future__ import annotations

from tcbench import work
from tcbench.accelerators.protocol import Accelerator, Array
from tcbench.backends.chainer.compat import chainer
from tcbench.backends.chainer.ops.node import ForwardNode, GradientNode, Variable, Variables, dtype_of
from tcbench.backends.spec import Layout

dropout_forward = work.shared(work.DropoutForward)
dropout_backward = work.shared(work.DropoutBackward)


class Dropout(ForwardNode):
    """Keeps which values it kept. `counter`: seed and count on the device; the gradient counts on."""

    def __init__(self, ratio: float, counter: Array, layout: Layout) -> None:
        self.ratio = ratio
        self.counter = counter
        self.layout = layout

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (x,) = inputs
        last = self.layout == "NHWC" and x.ndim == 4
        n, c = x.shape[0], x.shape[-1 if last else 1]
        self.described = n, c, x.size // (n * c), "NHWC" if last else "NCHW", dtype_of(x), self.ratio
        y, self.kept = accelerator.empty(x.shape, x.dtype), accelerator.empty(x.shape, "uint8")
        accelerator.launch(dropout_forward(*self.described), x, self.counter, y, self.kept)
        return (y,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return DropoutGradient(self).apply(gys)


class DropoutGradient(GradientNode):
    """gx of gy."""

    def __init__(self, forward_node: Dropout) -> None:
        self.of = forward_node

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (gy,), of = inputs, self.of
        gx = accelerator.empty(gy.shape, gy.dtype)
        accelerator.launch(dropout_backward(*of.described), gy, of.kept, of.counter, gx)
        return (gx,)


def dropout(x: Variable, ratio: float, counter: Array, *, layout: Layout) -> Variable:
    """While chainer.config.train is set: zero with probability `ratio`, else x / (1 - ratio). `counter`, int64 (2,): a
    seed, and a count that rises with each gradient, so that the next step drops others. x: maps in the layout, or (N,
    C)."""
    return Dropout(ratio, counter, layout).apply((x,))[0] if chainer.config.train else x
