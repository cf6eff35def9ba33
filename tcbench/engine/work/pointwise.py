"""Elementwise operations: ReLU, its gradient, and addition."""

from dataclasses import dataclass

from tcbench.engine.work.base import Array, DType, Work, reads, writes


@dataclass(frozen=True)
class Pointwise(Work):
    """Base class for operations on arrays of `size` values in any shape. 16-bit dtypes compute in float32."""

    numbers = ("size",)
    size: int
    dtype: DType

    def array(self, name: str) -> Array:
        return (self.size,), self.dtype

    @property
    def flops(self) -> int:
        return self.size


class Relu(Pointwise):
    """y = max(x, 0); NaN stays NaN."""

    roles = reads("x") | writes("y")


class ReluBackward(Pointwise):
    """gx = gy where y > 0, else 0."""

    roles = reads("gy", "y") | writes("gx")


class Add(Pointwise):
    """c = a + b."""

    roles = reads("a", "b") | writes("c")


class AddRelu(Pointwise):
    """y = max(a + b, 0); NaN stays NaN."""

    roles = reads("a", "b") | writes("y")
