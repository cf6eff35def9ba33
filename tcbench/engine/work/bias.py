"""Bias addition after a matrix product or a convolution, with or without ReLU, and its gradient."""

from dataclasses import dataclass
from typing import ClassVar

from tcbench.engine.work.base import Array, DType, Work, reads, updates, wide, writes


@dataclass(frozen=True)
class _Biased(Work):
    """Base class for biases of y (N, K, `pixels`).

    A matrix has one pixel per row. NCHW maps have H * W pixels; NHWC maps are treated as a matrix of N * H * W rows.
    The dtype of b is float32 (float64 if y is float64)."""

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
    """gb (`slices`, K) = gy summed over pixels and over the rows of each slice; rows are cut into equal slices.

    The dtype of gb is float32 (float64 if gy is float64). Large maps are summed in two steps: over each slice, then
    over the slices."""

    roles = reads("gy") | writes("gb")
    numbers = ("n", "k", "pixels", "slices")
    slices: int = 1

    def __post_init__(self) -> None:
        if self.n % self.slices:
            raise ValueError(f"{self.name}: {self.n} rows cannot be cut into {self.slices} equal slices")

    def array(self, name: str) -> Array:
        return ((self.slices, self.k), wide(self.dtype)) if name == "gb" else super().array(name)
