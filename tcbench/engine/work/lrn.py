"""Local response normalisation across channels.

y = x * s ** -beta, where s = k + alpha * the sum of squares over `size` neighbouring channels. (Caffe and PyTorch
divide alpha by `size`.)

Source: A. Krizhevsky, I. Sutskever, G. Hinton, "ImageNet Classification with Deep Convolutional Neural Networks", 2012,
section 3.3."""

from dataclasses import dataclass

from tcbench.engine.work.base import Array, DType, Layout, Work, reads, wide, writes


@dataclass(frozen=True)
class _Lrn(Work):
    """Base class for x (N, C, `pixels`) in `layout`. `size` is odd and includes the channel itself."""

    numbers = ("n", "c", "pixels", "size", "alpha", "beta", "k")
    n: int
    c: int
    pixels: int
    layout: Layout
    dtype: DType
    size: int
    alpha: float
    beta: float
    k: float

    def array(self, name: str) -> Array:
        shape = (self.n, self.c, self.pixels) if self.layout == "NCHW" else (self.n, self.pixels, self.c)
        return shape, wide(self.dtype) if name == "sums" else self.dtype

    @property
    def flops(self) -> int:
        return 2 * (self.size + 2) * self.n * self.c * self.pixels


class LrnForward(_Lrn):
    """y = x * s ** -beta; sums = s, float32 (float64 if x is float64), which the backward pass reads."""

    roles = reads("x") | writes("y", "sums")


class LrnBackward(_Lrn):
    """gx = gy * s ** -beta - 2 * alpha * beta * x * (the sum of gy * x * s ** (-beta - 1) over the same channels)."""

    roles = reads("gy", "x", "sums") | writes("gx")
