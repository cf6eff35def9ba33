"""Convolutions without bias: forward (fprop), and the gradients of data (dgrad) and filters (wgrad)."""

from dataclasses import dataclass

from tcbench.engine.work.base import Array, DType, Layout, Math, Work, check_dtype, reads, stored, wide, writes


@dataclass(frozen=True)
class Conv2d:
    """The geometry of a convolution without bias: x (N, C, H, W) * w (K, C, R, S) -> y (N, K, P, Q).

    These are logical sizes; `layout` selects the order in memory, NCHW with KCRS filters or NHWC with KRSC filters.
    x, w and y have the same dtype."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int
    pad: int
    layout: Layout
    dtype: DType
    math: Math = "strict"

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        if min(self.p, self.q) < 1:
            size = f"{self.r}x{self.s}/{self.stride} over {self.h}x{self.w} pixels, pad {self.pad}"
            raise ValueError(f"convolution {size}: output would be empty")

    def __str__(self) -> str:
        """Return a description such as "64x128x28x28 k128 3x3/1 NHWC float16", with the size of x as NxCxHxW."""
        math = " tf32" if self.math == "tf32" else ""
        size = f"{self.n}x{self.c}x{self.h}x{self.w}"
        return f"{size} k{self.k} {self.r}x{self.s}/{self.stride} {self.layout} {self.dtype}{math}"

    @property
    def p(self) -> int:
        return (self.h + 2 * self.pad - self.r) // self.stride + 1

    @property
    def q(self) -> int:
        return (self.w + 2 * self.pad - self.s) // self.stride + 1

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        return stored(self.layout, self.n, self.c, self.h, self.w)

    @property
    def w_shape(self) -> tuple[int, int, int, int]:
        return stored(self.layout, self.k, self.c, self.r, self.s)

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        return stored(self.layout, self.n, self.k, self.p, self.q)

    @property
    def flops(self) -> int:
        return 2 * self.n * self.k * self.p * self.q * self.c * self.r * self.s


@dataclass(frozen=True)
class _ConvWork(Work):
    """Base class for the passes of a convolution."""

    kind = "graph"
    conv: Conv2d

    def array(self, name: str) -> Array:
        """Return an operand's shape and dtype."""
        if name.endswith("sum"):
            return (self.conv.k,), wide(self.conv.dtype)
        # A gradient (gx, gw, gy) has the shape of its array, and `other` is a gradient of x.
        shape: tuple[int, ...] = getattr(self.conv, f"{'x' if name == 'other' else name.removeprefix('g')}_shape")
        return shape, self.conv.dtype

    @property
    def flops(self) -> int:
        return self.conv.flops


class ConvFprop(_ConvWork):
    """y = x * w."""

    roles = reads("x", "w") | writes("y")


class ConvDgrad(_ConvWork):
    """gx = the gradient of x, from gy and w."""

    roles = reads("gy", "w") | writes("gx")


class ConvDgradAdd(_ConvWork):
    """gx = the gradient of x, from gy and w, plus `other`, another gradient of x."""

    roles = reads("gy", "w", "other") | writes("gx")


class ConvWgrad(_ConvWork):
    """gw = the gradient of w, from x and gy."""

    roles = reads("x", "gy") | writes("gw")


class ConvFpropStats(_ConvWork):
    """y = x * w; sum and square_sum (K,) are sums of y and y * y over N, P and Q, taken before y is rounded."""

    roles = reads("x", "w") | writes("y", "sum", "square_sum")
