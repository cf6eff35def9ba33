"""Max pooling, the average over all pixels before the classifier, and averages over windows."""

from dataclasses import dataclass

from tcbench.engine.work.base import Array, DType, Layout, Work, reads, stored, writes


@dataclass(frozen=True)
class Pool:
    """Max pooling with square windows: output size floor((H + 2 pad - ksize) / stride) + 1. With `ceil` that
    is rounded up: a last window that begins inside the image counts although it ends outside (Caffe's rule; Chainer
    calls it cover_all)."""

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
    numbers = tuple(f"pool.{name}" for name in ("n", "c", "h", "w", "p", "q", "ksize", "stride", "pad"))
    pool: Pool

    def array(self, name: str) -> Array:
        shape = self.pool.x_shape if name in ("x", "gx") else self.pool.y_shape
        return shape, "uint8" if name == "place" else self.pool.dtype


class MaxPoolForward(_PoolWork):
    """y, and where in its window each maximum stands: `place` = row * ksize + column, the first of equals; NaN wins."""

    roles = reads("x") | writes("y", "place")


class MaxPoolBackward(_PoolWork):
    """gx: each pixel sums, in float32, the gradients of the windows whose maximum it was."""

    roles = reads("gy", "place") | writes("gx")


@dataclass(frozen=True)
class _GlobalAverage(Work):
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
    """y (N, C): means over all pixels, summed in float32."""

    roles = reads("x") | writes("y")


class GlobalAverageBackward(_GlobalAverage):
    """gx: gy / (H * W) at every pixel."""

    roles = reads("gy") | writes("gx")


@dataclass(frozen=True)
class _TiledAverage(Work):
    """Of images (N, C, `side`, `side`) over `out` x `out` windows, floor(side / out) apart and so wide that the last
    ends with the image: side - (out - 1) * stride. Where `out` divides `side` these are tiles, PyTorch's adaptive
    pooling; of 14 pixels 4 outputs have GoogLeNet's 5x5 windows with stride 3; where there are fewer pixels than
    outputs, each is the mean of all."""

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
    """y: means of the windows, summed in float32."""

    roles = reads("x") | writes("y")


class TiledAverageBackward(_TiledAverage):
    """gx: each pixel sums, in float32, gy / ksize ** 2 of the windows that hold it."""

    roles = reads("gy") | writes("gx")
