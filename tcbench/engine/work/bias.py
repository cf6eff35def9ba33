"""The bias of a matrix product or of a convolution, with ReLU or without, and its gradient."""

from dataclasses import dataclass
from typing import ClassVar

from tcbench.engine.work.base import Array, DType, Work, reads, updates, wide, writes


@dataclass(frozen=True)
class _Biased(Work):
    """On y (N, K, `pixels`), stored so: a matrix has one pixel a row, maps in NCHW theirs, maps in NHWC are a matrix of
    N * H * W rows. b is float32 (float64 for float64)."""

    numbers: ClassVar[tuple[str, ...]] = ("n", "k", "pixels")
    n: int
    k: int
    dtype: DType
    pixels: int = 1

    def array(self, name: str) -> Array:
        shape = (self.n, self.k) if self.pixels == 1 else (self.n, self.k, self.pixels)
        return ((self.k,), wide(self.dtype)) if name == "b" else (shape, self.dtype)


class AddBias(_Biased):
    """y += b (K,), in place."""

    roles = updates("y") | reads("b")


class AddBiasRelu(_Biased):
    """y = max(y + b, 0), in place; NaN stays NaN."""

    roles = updates("y") | reads("b")


@dataclass(frozen=True)
class BiasGradient(_Biased):
    """gb (`slices`, K), float32 (float64 for float64): gy summed over each of so many equal parts of its rows, and over
    pixels. The sum of large maps is one of parts, then of these."""

    roles = reads("gy") | writes("gb")
    numbers = ("n", "k", "pixels", "slices")
    slices: int = 1

    def __post_init__(self) -> None:
        if self.n % self.slices:
            raise ValueError(f"{self.name}: {self.n} rows are no {self.slices} equal parts")

    def array(self, name: str) -> Array:
        return ((self.slices, self.k), wide(self.dtype)) if name == "gb" else super().array(name)
