"""Lowering of a convolution to a matrix product (im2col).

The columns are one matrix for the whole batch: for each output pixel, the input values that the filter covers there.
The convolution becomes a 1x1 convolution of the columns (`product`), which is a matrix product."""

from dataclasses import dataclass, replace

from tcbench.engine.work.base import Array, Work, reads, writes
from tcbench.engine.work.convolution import Conv2d


def product(conv: Conv2d) -> Conv2d:
    """Return the 1x1 convolution that applies the filter of `conv` to its im2col columns.

    Its input channels are the filter's values in memory order: (C, R, S) in NCHW, (R, S, C) in NHWC. It has a single
    image of N * P rows, so its arrays are matrices. In NCHW its output is (K, N, P, Q); see `channel_transpose`."""
    return replace(conv, n=1, c=conv.c * conv.r * conv.s, h=conv.n * conv.p, w=conv.q, r=1, s=1, stride=1, pad=0)


def channel_transpose(conv: Conv2d) -> Conv2d:
    """Return the 1x1 convolution whose `Im2col` transposes y (N, K, P, Q) to (K, N, P, Q); `Col2im` undoes that."""
    return replace(conv, c=conv.k, h=conv.p, w=conv.q, r=1, s=1, stride=1, pad=0)


@dataclass(frozen=True)
class _ColumnsWork(Work):
    """Base class for conversions between images and columns."""

    numbers = tuple(f"conv.{name}" for name in ("n", "c", "h", "w", "p", "q", "r", "s", "stride", "pad"))
    conv: Conv2d

    def array(self, name: str) -> Array:
        return (product(self.conv) if name.endswith("columns") else self.conv).x_shape, self.conv.dtype


class Im2col(_ColumnsWork):
    """columns = im2col of x: (C * R * S, N * P * Q) in NCHW, (N * P * Q, R * S * C) in NHWC; padding is zero."""

    roles = reads("x") | writes("columns")


class Col2im(_ColumnsWork):
    """gx = col2im of gcolumns: the gradient of each pixel is the sum, in float32, over its copies in the columns."""

    roles = reads("gcolumns") | writes("gx")
