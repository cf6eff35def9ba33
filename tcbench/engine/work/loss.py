"""Softmax cross entropy and the mean loss."""

from dataclasses import dataclass
from typing import ClassVar

from tcbench.engine.work.base import Array, DType, Work, reads, wide, writes


@dataclass(frozen=True)
class _Logits(Work):
    """Base class for operations on logits (N, K)."""

    numbers: ClassVar[tuple[str, ...]] = ("n", "k")
    n: int
    k: int
    dtype: DType

    def array(self, name: str) -> Array:
        """Return an operand's shape and dtype."""
        return {
            "t": ((self.n,), "int32"),
            "log_p": ((self.n, self.k), wide(self.dtype)),
            "losses": ((self.n,), wide(self.dtype)),
            "gloss": ((), wide(self.dtype)),
        }.get(name, ((self.n, self.k), self.dtype))


class SoftmaxCrossEntropyForward(_Logits):
    """log_p (N, K) = log softmax of each row of x; losses (N,) = -log_p at the label t (N,), int32 in [0, K).

    Both results are float32 (float64 if x is float64). The loss of a label out of range is NaN."""

    roles = reads("x", "t") | writes("log_p", "losses")


@dataclass(frozen=True)
class SoftmaxCrossEntropyBackward(_Logits):
    """gx = (exp(log_p) - one_hot(t)) * gloss * weight / N, in the logits' dtype."""

    roles = reads("log_p", "t", "gloss") | writes("gx")
    numbers = ("n", "k", "weight")
    weight: float = 1.0


@dataclass(frozen=True)
class MeanLoss(Work):
    """loss () = weight * the mean of losses (N,), summed in a fixed order."""

    roles = reads("losses") | writes("loss")
    numbers = ("n", "weight")
    n: int
    dtype: DType = "float32"
    weight: float = 1.0

    def array(self, name: str) -> Array:
        return (self.n,) if name == "losses" else (), self.dtype
