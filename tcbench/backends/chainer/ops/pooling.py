"""Max pooling and global average pooling."""

from __future__ import annotations

import numpy as np

from tcbench import work
from tcbench.accelerators.numpy import pooling as kernels
from tcbench.accelerators.numpy.parallel import Array
from tcbench.accelerators.protocol import Accelerator
from tcbench.backends.chainer.ops.node import ForwardNode, GradientNode, Variable, Variables, dtype_of
from tcbench.backends.spec import Layout

max_pool_forward = work.shared(work.MaxPoolForward)
max_pool_backward = work.shared(work.MaxPoolBackward)
global_average_forward = work.shared(work.GlobalAverageForward)
global_average_backward = work.shared(work.GlobalAverageBackward)


def _logical(shape: tuple[int, ...], layout: Layout) -> tuple[int, int, int, int]:
    """(N, C, H, W) of a stored shape."""
    if layout == "NCHW":
        n, c, h, w = shape
    else:
        n, h, w, c = shape
    return n, c, h, w


class MaxPooling(ForwardNode):
    """On the host it keeps input and output, and the gradient finds the maximum's place again; on a GPU, the place."""

    def __init__(self, ksize: int, stride: int, pad: int, layout: Layout) -> None:
        if pad >= ksize:
            raise ValueError(f"max_pooling_2d: pad {pad}, expected less than ksize {ksize}: windows would be empty")
        self.ksize = ksize
        self.stride = stride
        self.pad = pad
        self.layout = layout

    def forward_cpu(self, inputs: tuple[Array]) -> tuple[Array]:
        self.x = np.ascontiguousarray(inputs[0])
        self.y = kernels.max_pooling(self.x, self.ksize, self.stride, self.pad, self.layout)
        return (self.y,)

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (x,) = inputs
        size = _logical(x.shape, self.layout)
        self.pool = work.Pool(*size, self.ksize, self.stride, self.pad, self.layout, dtype_of(x))
        y = accelerator.empty(self.pool.y_shape, x.dtype)
        self.place = accelerator.empty(self.pool.y_shape, "uint8")
        accelerator.launch(max_pool_forward(self.pool), x, y, self.place)
        return (y,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return MaxPoolingGradient(self).apply(gys)  # type: ignore[no-any-return]


class MaxPoolingGradient(GradientNode):
    """gx of gy."""

    def __init__(self, forward_node: MaxPooling) -> None:
        self.of = forward_node

    def forward_cpu(self, inputs: tuple[Array]) -> tuple[Array]:
        of = self.of
        return (kernels.max_pooling_gradient(inputs[0], of.x, of.y, of.ksize, of.stride, of.pad, of.layout),)

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (gy,) = inputs
        gx = accelerator.empty(self.of.pool.x_shape, gy.dtype)
        accelerator.launch(max_pool_backward(self.of.pool), gy, self.of.place, gx)
        return (gx,)


class GlobalAveragePooling(ForwardNode):
    """(N, C) means of x."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def forward_cpu(self, inputs: tuple[Array]) -> tuple[Array]:
        self.shape = inputs[0].shape
        return (kernels.global_average(inputs[0], self.layout),)

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (x,) = inputs
        self.shape = x.shape
        self.size = _logical(x.shape, self.layout)
        y = accelerator.empty(self.size[:2], x.dtype)
        accelerator.launch(global_average_forward(*self.size, self.layout, dtype_of(x)), x, y)
        return (y,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return GlobalAveragePoolingGradient(self).apply(gys)  # type: ignore[no-any-return]


class GlobalAveragePoolingGradient(GradientNode):
    """gx of gy."""

    def __init__(self, forward_node: GlobalAveragePooling) -> None:
        self.of = forward_node

    def forward_cpu(self, inputs: tuple[Array]) -> tuple[Array]:
        return (kernels.global_average_gradient(inputs[0], self.of.shape, self.of.layout),)

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (gy,) = inputs
        gx = accelerator.empty(self.of.shape, gy.dtype)
        accelerator.launch(global_average_backward(*self.of.size, self.of.layout, dtype_of(gy)), gy, gx)
        return (gx,)


def max_pooling_2d(x: Variable, *, ksize: int, stride: int, pad: int, layout: Layout) -> Variable:
    """Output size floor((H + 2 pad - ksize) / stride) + 1: windows that would start in the far padding are left out
    (PyTorch's rule; Chainer calls it cover_all=False)."""
    return MaxPooling(ksize, stride, pad, layout).apply((x,))[0]


def global_average_pooling_2d(x: Variable, *, layout: Layout) -> Variable:
    """(N, C): the mean over all pixels."""
    return GlobalAveragePooling(layout).apply((x,))[0]
