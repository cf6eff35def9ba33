"""Local response normalisation across channels."""

from __future__ import annotations

from tcbench import work
from tcbench.accelerators.protocol import Accelerator, Array
from tcbench.backends.chainer.ops.node import ForwardNode, GradientNode, Variable, Variables, dtype_of
from tcbench.backends.spec import Layout

lrn_forward = work.shared(work.LrnForward)
lrn_backward = work.shared(work.LrnBackward)


class LocalResponseNormalization(ForwardNode):
    """Keeps its input, and the sums of squares."""

    def __init__(self, layout: Layout, size: int, alpha: float, beta: float, k: float) -> None:
        self.layout = layout
        self.settings = size, alpha, beta, k

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (self.x,) = inputs
        shape, dtype = self.x.shape, dtype_of(self.x)
        n, c, h, w = shape if self.layout == "NCHW" else (shape[0], shape[3], shape[1], shape[2])
        self.described = n, c, h * w, self.layout, dtype, *self.settings
        y, self.sums = accelerator.empty(shape, self.x.dtype), accelerator.empty(shape, work.wide(dtype))
        accelerator.launch(lrn_forward(*self.described), self.x, y, self.sums)
        return (y,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return LocalResponseNormalizationGradient(self).apply(gys)


class LocalResponseNormalizationGradient(GradientNode):
    """gx of gy."""

    def __init__(self, forward_node: LocalResponseNormalization) -> None:
        self.of = forward_node

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (gy,), of = inputs, self.of
        gx = accelerator.empty(gy.shape, gy.dtype)
        accelerator.launch(lrn_backward(*of.described), gy, of.x, of.sums, gx)
        return (gx,)


def local_response_normalization(
    x: Variable, *, size: int, alpha: float, beta: float, k: float, layout: Layout
) -> Variable:
    """x / (k + alpha * the sum of squares over `size` neighbouring channels) ** beta."""
    return LocalResponseNormalization(layout, size, alpha, beta, k).apply((x,))[0]
