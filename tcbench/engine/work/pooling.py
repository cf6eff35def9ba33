"""Max pooling, global average pooling, and average pooling over windows."""

from dataclasses import dataclass

from tcbench.engine.work.base import Array, DType, Layout, Work, reads, stored, writes


@dataclass(frozen=True)
class Pool:
    """The geometry of max pooling with square windows: the output size is floor((H + 2 pad - ksize) / stride) + 1.

    With `ceil` the quotient is rounded up, so that the last window may end outside the image (Caffe's rule, Chainer's
    `cover_all`)."""

    n: int
    c: int
    h: int
    w: int
    ksize: int
    stride: int
    pad: int
    layout: Layout
    dtype: DType
    ceil: bool = False

    @property
    def p(self) -> int:
        return self._outputs(self.h)

    @property
    def q(self) -> int:
        return self._outputs(self.w)

    def _outputs(self, size: int) -> int:
        return (size + 2 * self.pad - self.ksize + (self.stride - 1 if self.ceil else 0)) // self.stride + 1

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        return stored(self.layout, self.n, self.c, self.h, self.w)

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        return stored(self.layout, self.n, self.c, self.p, self.q)


@dataclass(frozen=True)
class _PoolWork(Work):
    """Base class for max pooling, forward and backward."""

    numbers = tuple(f"pool.{name}" for name in ("n", "c", "h", "w", "p", "q", "ksize", "stride", "pad"))
    pool: Pool

    def array(self, name: str) -> Array:
        shape = self.pool.x_shape if name in ("x", "gx") else self.pool.y_shape
        return shape, "uint8" if name == "place" else self.pool.dtype


class MaxPoolForward(_PoolWork):
    """y = the maximum of each window; place = row * ksize + column of the first maximum in its window. NaN wins."""

    roles = reads("x") | writes("y", "place")


class MaxPoolBackward(_PoolWork):
    """gx = for each pixel, the sum (in float32) of gy over the windows whose maximum it is."""

    roles = reads("gy", "place") | writes("gx")


@dataclass(frozen=True)
class _GlobalAverage(Work):
    """Base class for global average pooling of x (N, C, H, W), forward and backward."""

    numbers = ("n", "c", "pixels")
    n: int
    c: int
    h: int
    w: int
    layout: Layout
    dtype: DType

    def array(self, name: str) -> Array:
        if name in ("x", "gx"):
            return stored(self.layout, self.n, self.c, self.h, self.w), self.dtype
        return (self.n, self.c), self.dtype

    @property
    def pixels(self) -> int:
        return self.h * self.w


class GlobalAverageForward(_GlobalAverage):
    """y (N, C) = the mean of x over all pixels, summed in float32."""

    roles = reads("x") | writes("y")


class GlobalAverageBackward(_GlobalAverage):
    """gx = gy / (H * W) at every pixel."""

    roles = reads("gy") | writes("gx")


@dataclass(frozen=True)
class _TiledAverage(Work):
    """Base class for average pooling of images (N, C, `side`, `side`) to `out` x `out` outputs.

    The stride is floor(side / out), and windows are side - (out - 1) * stride wide, so that the last one ends at the
    edge of the image. If `out` divides `side`, the windows are tiles, as in PyTorch's adaptive pooling. 14 pixels and
    4 outputs give GoogLeNet's 5x5 windows with stride 3. If there are fewer pixels than outputs, every output is the
    mean of the image."""

    numbers = ("n", "c", "side", "side", "out", "out", "ksize", "stride")
    n: int
    c: int
    side: int
    out: int
    layout: Layout
    dtype: DType

    @property
    def stride(self) -> int:
        return self.side // self.out

    @property
    def ksize(self) -> int:
        return self.side - (self.out - 1) * self.stride

    def array(self, name: str) -> Array:
        side = self.side if name in ("x", "gx") else self.out
        return stored(self.layout, self.n, self.c, side, side), self.dtype


class TiledAverageForward(_TiledAverage):
    """y = the mean of x over each window, summed in float32."""

    roles = reads("x") | writes("y")


class TiledAverageBackward(_TiledAverage):
    """gx = for each pixel, the sum (in float32) of gy / ksize ** 2 over the windows that contain it."""

    roles = reads("gy") | writes("gx")
