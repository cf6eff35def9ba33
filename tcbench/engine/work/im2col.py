"""Lowering of a convolution to a matrix product: what its filter meets at each output pixel, side by side in memory.

Columns are one matrix of the whole batch. With x so laid out the convolution is one of 1x1 (`product`): a product of
two matrices, whoever computes it."""

from dataclasses import dataclass, replace

from tcbench.engine.work.base import Array, Work, reads, writes
from tcbench.engine.work.convolution import Conv2d


def product(conv: Conv2d) -> Conv2d:
    """The 1x1 convolution of columns by the same filter. Its channels are the filter's values, in the order in which
    the filter is stored: (C, R, S) in NCHW, (R, S, C) in NHWC. It is one of a single image, N * P rows high: its arrays
    are matrices. In NCHW they have a row per channel, from which y has yet to be put in its place."""
    return replace(conv, n=1, c=conv.c * conv.r * conv.s, h=conv.n * conv.p, w=conv.q, r=1, s=1, stride=1, pad=0)


def channel_transpose(conv: Conv2d) -> Conv2d:
    """The 1x1 convolution whose `Im2col` takes y (N, K, P, Q) to (K, N, P, Q), and whose `Col2im` takes it back."""
    return replace(conv, c=conv.k, h=conv.p, w=conv.q, r=1, s=1, stride=1, pad=0)


@dataclass(frozen=True)
class _ColumnsWork(Work):
    numbers = tuple(f"conv.{name}" for name in ("n", "c", "h", "w", "p", "q", "r", "s", "stride", "pad"))
    conv: Conv2d

    def array(self, name: str) -> Array:
        return (product(self.conv) if name.endswith("columns") else self.conv).x_shape, self.conv.dtype


class Im2col(_ColumnsWork):
    """columns of x: (C * R * S, N * P * Q) in NCHW, (N * P * Q, R * S * C) in NHWC; zero at padding."""

    roles = reads("x") | writes("columns")


class Col2im(_ColumnsWork):
    """gx, of the gradient of columns: each pixel sums, in float32, what the filters that met it have for it."""

    roles = reads("gcolumns") | writes("gx")
