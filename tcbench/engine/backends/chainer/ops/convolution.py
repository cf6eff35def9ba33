"""Two-dimensional convolution without bias."""

import functools
from dataclasses import dataclass

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.ops import node
from tcbench.engine.backends.chainer.ops.node import ForwardNode, Gradient, Variable, Variables, dtype_of, logical
from tcbench.engine.work import DType, Layout, Math


@dataclass(frozen=True)
class ConvWorks:
    """The forward and backward operations of one convolution."""

    fprop: work.ConvFprop
    stats: work.ConvFpropStats
    dgrad: work.ConvDgrad
    dgrad_add: work.ConvDgradAdd
    wgrad: work.ConvWgrad


@functools.cache
def works_of(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], stride: int, pad: int, layout: Layout, dtype: DType, math: Math
) -> ConvWorks:
    """Return the operations of a convolution of arrays stored in these shapes. Cached."""
    (n, c, h, w), (k, _, r, s) = logical(x_shape, layout), logical(w_shape, layout)
    conv = work.Conv2d(n, c, h, w, k, r, s, stride, pad, layout, dtype, math)
    return ConvWorks(
        work.ConvFprop(conv),
        work.ConvFpropStats(conv),
        work.ConvDgrad(conv),
        work.ConvDgradAdd(conv),
        work.ConvWgrad(conv),
    )


class Filtered(ForwardNode):
    """The base class of nodes that apply a filter or matrix w to x. `works` are the operations of a convolution."""

    works: ConvWorks

    def dgrad(self, accelerator: Accelerator, gy: Array, accumulated: Array | None = None) -> tuple[Array]:
        """Return the gradient of x from gy, plus the gradient `accumulated` so far if there is one."""
        gx = accelerator.empty(self.x.shape, self.x.dtype)
        if accumulated is not None and self.adds_to_dgrad(accelerator):
            accelerator.launch(self.works.dgrad_add, gy, self.w, accumulated, gx)
            return (gx,)
        self.write_dgrad(accelerator, gy, gx)
        return (gx,) if accumulated is None else node.add_into(accelerator, gx, accumulated, gx)

    def wgrad(self, accelerator: Accelerator, gy: Array) -> tuple[Array]:
        """Return the gradient of w from gy, and call the listener of `node.on_filter_gradient`."""
        gw = accelerator.empty(self.w.shape, self.w.dtype)
        self.write_wgrad(accelerator, gy, gw)
        node.notify_filter_gradient(self, gy)
        return (gw,)

    def write_dgrad(self, accelerator: Accelerator, gy: Array, gx: Array) -> None:
        """Write the gradient of x into `gx`."""
        accelerator.launch(self.works.dgrad, gy, self.w, gx)

    def write_wgrad(self, accelerator: Accelerator, gy: Array, gw: Array) -> None:
        """Write the gradient of w into `gw`."""
        accelerator.launch(self.works.wgrad, self.x, gy, gw)

    def adds_to_dgrad(self, accelerator: Accelerator) -> bool:
        """Return whether ConvDgradAdd can add another gradient of x in the same launch."""
        return accelerator.adds_to_dgrad


class Convolution(Filtered):
    """The node of a convolution of x with w."""

    def __init__(self, stride: int, pad: int, layout: Layout, math: Math) -> None:
        self.stride = stride
        self.pad = pad
        self.layout = layout
        self.math = math

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        self._keep(inputs)
        self._choose_works()
        y = accelerator.empty(self.works.fprop.conv.y_shape, self.x.dtype)
        return (y, *self.fprop(accelerator, y))

    def fprop(self, accelerator: Accelerator, y: Array) -> tuple[Array, ...]:
        """Write the output into `y`, and return further outputs."""
        accelerator.launch(self.works.fprop, self.x, self.w, y)
        return ()

    def _choose_works(self) -> None:
        self.works = works_of(
            self.x.shape, self.w.shape, self.stride, self.pad, self.layout, dtype_of(self.x), self.math
        )

    def _keep(self, inputs: tuple[Array, ...]) -> None:
        """Keep x and w for the gradients. Raises ValueError if their shapes or dtypes do not fit."""
        self.x, self.w = inputs
        axis = 1 if self.layout == "NCHW" else 3
        if self.x.ndim != 4 or self.w.ndim != 4 or self.x.shape[axis] != self.w.shape[axis]:
            raise ValueError(
                f"convolution_2d: x {self.x.shape} and w {self.w.shape} do not fit in {self.layout}: "
                f"expected four axes each and as many channels in axis {axis}"
            )
        if self.x.dtype != self.w.dtype:
            raise ValueError(f"convolution_2d: x is {self.x.dtype}, w is {self.w.dtype}: expected one dtype")

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return tuple(Gradient(self.wgrad if i else self.dgrad).apply(gys[:1])[0] for i in indexes)

    def backward_accumulate(
        self, indexes: tuple[int, ...], gys: Variables, accumulated: tuple[Variable | None, ...]
    ) -> Variables:
        """Return the gradients plus those accumulated so far, adding that of x within its own launch."""
        if 0 not in indexes or accumulated[0] is None:
            return super().backward_accumulate(indexes, gys, accumulated)
        # Adding the shortcut's gradient of x in the same launch saves a pass: blocks of the product are still in cache.
        gx = Gradient(self.dgrad).apply((gys[0], accumulated[0]))
        return gx + super().backward_accumulate(indexes[1:], gys, accumulated[1:])


class ConvolutionStats(Convolution):
    """The node of a convolution that also returns each output channel's sum and sum of squares, (K,).

    The sums get no gradient of their own, because batch normalisation's gradient flows through y."""

    def fprop(self, accelerator: Accelerator, y: Array) -> tuple[Array, ...]:
        """Write the output into `y`, and return its channels' sums and sums of squares."""
        conv = self.works.stats.conv
        sums = tuple(accelerator.empty((conv.k,), work.wide(conv.dtype)) for _ in range(2))
        accelerator.launch(self.works.stats, self.x, self.w, y, *sums)
        return sums


def convolution_2d(
    x: Variable, w: Variable, *, stride: int, pad: int, layout: Layout, math: Math = "strict"
) -> Variable:
    """Return the convolution of x with w. Raises ValueError if their shapes or dtypes do not fit.

    NCHW: x (N, C, H, W), w (K, C, R, S). NHWC: x (N, H, W, C), w (K, R, S, C). `math` says whether a GPU may round
    float32 inputs to TensorFloat-32."""
    return Convolution(stride, pad, layout, math).apply((x, w))[0]


def convolution_2d_stats(
    x: Variable, w: Variable, *, stride: int, pad: int, layout: Layout, math: Math = "strict"
) -> Variables:
    """Return (y, sum, square_sum): a convolution, and the sum and sum of squares of each output channel."""
    return ConvolutionStats(stride, pad, layout, math).apply((x, w))
