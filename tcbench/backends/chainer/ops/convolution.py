"""Two-dimensional convolution without bias."""

from __future__ import annotations

from types import ModuleType

from tcbench.backends.chainer.ops.cpu import conv_nchw, conv_nhwc
from tcbench.backends.chainer.ops.node import ForwardNode, GradientNode, Variable, Variables
from tcbench.backends.chainer.ops.parallel import Array
from tcbench.backends.chainer.spec import Layout

_KERNELS: dict[Layout, ModuleType] = {"NCHW": conv_nchw, "NHWC": conv_nhwc}


class Convolution(ForwardNode):
    """y of x and w."""

    def __init__(self, stride: int, pad: int, layout: Layout) -> None:
        self.stride = stride
        self.pad = pad
        self.layout = layout
        self.kernels = _KERNELS[layout]

    def forward_cpu(self, inputs: tuple[Array, Array]) -> tuple[Array]:
        self.x, self.w = inputs
        axis = 1 if self.layout == "NCHW" else 3
        if self.x.ndim != 4 or self.w.ndim != 4 or self.x.shape[axis] != self.w.shape[axis]:
            raise ValueError(
                f"convolution_2d: x {self.x.shape} and w {self.w.shape} do not fit in {self.layout}: "
                f"expected four axes each and as many channels in axis {axis}"
            )
        if self.x.dtype != self.w.dtype:
            raise ValueError(f"convolution_2d: x is {self.x.dtype}, w is {self.w.dtype}: expected one dtype")
        return (self.kernels.fprop(self.x, self.w, self.stride, self.pad),)

    @property
    def kernel(self) -> tuple[int, int]:
        shape = self.w.shape
        return (shape[2], shape[3]) if self.layout == "NCHW" else (shape[1], shape[2])

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        return tuple((ConvolutionWgrad if i else ConvolutionDgrad)(self).apply(gys)[0] for i in indexes)

    def backward_accumulate(
        self, indexes: tuple[int, ...], gys: Variables, accumulated: tuple[Variable | None, ...]
    ) -> Variables:
        if 0 not in indexes or accumulated[0] is None:
            return super().backward_accumulate(indexes, gys, accumulated)
        # The other gradient of x, of the shortcut, is added while the product's block is in cache.
        gx = ConvolutionDgrad(self).apply((*gys, accumulated[0]))
        return gx + super().backward_accumulate(indexes[1:], gys, accumulated[1:])  # type: ignore[no-any-return]


class ConvolutionDgrad(GradientNode):
    """gx of gy; of (gy, another gradient of x) their sum."""

    def __init__(self, forward_node: Convolution) -> None:
        self.of = forward_node

    def forward_cpu(self, inputs: tuple[Array, ...]) -> tuple[Array]:
        of = self.of
        return (of.kernels.dgrad(inputs[0], of.w, of.x.shape, of.stride, of.pad, *inputs[1:]),)


class ConvolutionWgrad(GradientNode):
    """gw of gy."""

    def __init__(self, forward_node: Convolution) -> None:
        self.of = forward_node

    def forward_cpu(self, inputs: tuple[Array]) -> tuple[Array]:
        of = self.of
        return (of.kernels.wgrad(of.x, inputs[0], of.kernel, of.stride, of.pad),)


def convolution_2d(x: Variable, w: Variable, *, stride: int, pad: int, layout: Layout) -> Variable:
    """NCHW: x (N, C, H, W), w (K, C, R, S). NHWC: x (N, H, W, C), w (K, R, S, C). Raises ValueError if they do not
    fit."""
    return Convolution(stride, pad, layout).apply((x, w))[0]
