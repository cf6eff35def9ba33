"""Max pooling, global average pooling, and averages over windows."""

from __future__ import annotations

from tcbench import work
from tcbench.accelerators.protocol import Accelerator, Array
from tcbench.backends.chainer.ops.node import ForwardNode, GradientNode, Variable, Variables, dtype_of
from tcbench.backends.spec import Layout

max_pool_forward = work.shared(work.MaxPoolForward)
max_pool_backward = work.shared(work.MaxPoolBackward)
global_average_forward = work.shared(work.GlobalAverageForward)
global_average_backward = work.shared(work.GlobalAverageBackward)
tiled_average_forward = work.shared(work.TiledAverageForward)
tiled_average_backward = work.shared(work.TiledAverageBackward)


def _logical(shape: tuple[int, ...], layout: Layout) -> tuple[int, int, int, int]:
    """(N, C, H, W) of a stored shape."""
    if layout == "NCHW":
        n, c, h, w = shape
    else:
        n, h, w, c = shape
    return n, c, h, w


class MaxPooling(ForwardNode):
    """Keeps where in its window each maximum stands."""

    def __init__(self, ksize: int, stride: int, pad: int, layout: Layout, ceil: bool = False) -> None:
        if pad >= ksize:
            raise ValueError(f"max_pooling_2d: pad {pad}, expected less than ksize {ksize}: windows would be empty")
        self.ksize = ksize
        self.stride = stride
        self.pad = pad
        self.layout = layout
        self.ceil = ceil

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (x,) = inputs
        size = _logical(x.shape, self.layout)
        self.pool = work.Pool(*size, self.ksize, self.stride, self.pad, self.layout, dtype_of(x), self.ceil)
        y = accelerator.empty(self.pool.y_shape, x.dtype)
        self.place = accelerator.empty(self.pool.y_shape, "uint8")
        accelerator.launch(max_pool_forward(self.pool), x, y, self.place)
        return (y,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return MaxPoolingGradient(self).apply(gys)


class MaxPoolingGradient(GradientNode):
    """gx of gy."""

    def __init__(self, forward_node: MaxPooling) -> None:
        self.of = forward_node

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (gy,) = inputs
        gx = accelerator.empty(self.of.pool.x_shape, gy.dtype)
        accelerator.launch(max_pool_backward(self.of.pool), gy, self.of.place, gx)
        return (gx,)


class GlobalAveragePooling(ForwardNode):
    """(N, C) means of x."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (x,) = inputs
        self.shape = x.shape
        self.size = _logical(x.shape, self.layout)
        y = accelerator.empty(self.size[:2], x.dtype)
        accelerator.launch(global_average_forward(*self.size, self.layout, dtype_of(x)), x, y)
        return (y,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return GlobalAveragePoolingGradient(self).apply(gys)


class GlobalAveragePoolingGradient(GradientNode):
    """gx of gy."""

    def __init__(self, forward_node: GlobalAveragePooling) -> None:
        self.of = forward_node

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (gy,) = inputs
        gx = accelerator.empty(self.of.shape, gy.dtype)
        accelerator.launch(global_average_backward(*self.of.size, self.of.layout, dtype_of(gy)), gy, gx)
        return (gx,)


class TiledAveragePooling(ForwardNode):
    """Means over windows."""

    def __init__(self, out: int, layout: Layout) -> None:
        self.out = out
        self.layout = layout

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (x,) = inputs
        n, c, h, w = _logical(x.shape, self.layout)
        if h != w:
            raise ValueError(f"tiled_average_pooling_2d: expected square maps, got {h}x{w}")
        self.shape = x.shape
        self.described = n, c, h, self.out, self.layout, dtype_of(x)
        y = accelerator.empty(work.stored(self.layout, n, c, self.out, self.out), x.dtype)
        accelerator.launch(tiled_average_forward(*self.described), x, y)
        return (y,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return TiledAveragePoolingGradient(self).apply(gys)


class TiledAveragePoolingGradient(GradientNode):
    """gx of gy."""

    def __init__(self, forward_node: TiledAveragePooling) -> None:
        self.of = forward_node

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (gy,) = inputs
        gx = accelerator.empty(self.of.shape, gy.dtype)
        accelerator.launch(tiled_average_backward(*self.of.described), gy, gx)
        return (gx,)


def max_pooling_2d(x: Variable, *, ksize: int, stride: int, pad: int, layout: Layout, ceil: bool = False) -> Variable:
    """Output size floor((H + 2 pad - ksize) / stride) + 1: windows that would start in the far padding are left out
    (PyTorch's rule; Chainer calls it cover_all=False). `ceil` as in `work.Pool`."""
    return MaxPooling(ksize, stride, pad, layout, ceil).apply((x,))[0]


def tiled_average_pooling_2d(x: Variable, *, out: int, layout: Layout) -> Variable:
    """Maps of `out` x `out` pixels, whose windows `work.TiledAverageForward` gives."""
    return TiledAveragePooling(out, layout).apply((x,))[0]


def global_average_pooling_2d(x: Variable, *, layout: Layout) -> Variable:
    """(N, C): the mean over all pixels."""
    return GlobalAveragePooling(layout).apply((x,))[0]
