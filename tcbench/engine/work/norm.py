"""Batch normalisation with fused ReLU or addition: cuDNN graphs, legacy cuDNN calls, and from a convolution's sums."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from tcbench.engine.work.base import (
    Array,
    DType,
    Layout,
    Operand,
    Work,
    check_dtype,
    reads,
    round_up,
    stored,
    updates,
    wide,
    writes,
)

After = Literal["none", "relu", "add_relu"]
"""Operations fused after a batch normalisation: none, ReLU, or the addition of a residual and ReLU."""


@dataclass(frozen=True)
class Norm:
    """The geometry of a batch normalisation of x (N, C, H, W), and the operations fused after it. gamma, beta and all
    statistics are (C,), float32 (float64 if x is float64)."""

    n: int
    c: int
    h: int
    w: int
    layout: Layout
    dtype: DType
    after: After = "none"

    def __post_init__(self) -> None:
        check_dtype(self.dtype)

    def __str__(self) -> str:
        """Return a description such as "64x128x28x28 relu NHWC float16"."""
        after = "" if self.after == "none" else f" {self.after}"
        return f"{self.n}x{self.c}x{self.h}x{self.w}{after} {self.layout} {self.dtype}"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return stored(self.layout, self.n, self.c, self.h, self.w)

    @property
    def size(self) -> int:
        return self.n * self.c * self.h * self.w

    @property
    def pixels(self) -> int:
        return self.h * self.w

    @property
    def count(self) -> int:
        """The number of values per channel."""
        return self.n * self.pixels

    @property
    def relu(self) -> bool:
        return self.after != "none"

    @property
    def add(self) -> bool:
        return self.after == "add_relu"


_RUNNING = updates("running_mean", "running_var")
_GRADIENTS = writes("gx", "ggamma", "gbeta", "gresidual")
_ACTIVATIONS = frozenset({"x", "y", "gx", "gy", "residual", "gresidual"})


@dataclass(frozen=True)
class _NormWork(Work):
    """Base class for operations on a `Norm`. Operands of a residual exist only if `norm.add` is true."""

    with_relu: ClassVar[frozenset[str]] = frozenset({"mask"})
    """Operands that exist only if `norm.relu` is true."""
    norm: Norm

    def array(self, name: str) -> Array:
        """Return an operand's shape and dtype."""
        if name in _ACTIVATIONS:
            return self.norm.shape, self.norm.dtype
        if name == "mask":
            return self.norm.shape, "bool"
        if name == "reserve":
            return (reserve_bytes(self.norm),), "uint8"
        return (self.norm.c,), wide(self.norm.dtype)

    @property
    def operands(self) -> tuple[Operand, ...]:
        absent = (set() if self.norm.relu else self.with_relu) | (set() if self.norm.add else {"residual", "gresidual"})
        return tuple(operand for operand in super().operands if operand.name not in absent)

    @property
    def flops(self) -> int:
        return 10 * self.norm.size


@dataclass(frozen=True)
class BatchNormForward(_NormWork):
    """y = [relu](gamma * (x - mean) * inv_std + beta [+ residual]) with the batch's mean and biased variance.

    inv_std = 1 / sqrt(var + eps). running = (1 - momentum) * running + momentum * batch statistic, where the variance
    is multiplied by m / (m - 1). With ReLU, `mask` marks where y > 0. It has one byte per value, but its format is
    private to cuDNN: only BatchNormBackward reads it."""

    kind = "graph"
    roles = reads("x", "residual", "gamma", "beta") | _RUNNING | writes("y", "mean", "inv_std", "mask")
    eps: float
    momentum: float


class BatchNormBackward(_NormWork):
    """gx, ggamma, gbeta = the gradients for gy. With ReLU, gy counts as 0 outside the mask; gresidual is that gy."""

    kind = "graph"
    roles = reads("gy", "x", "gamma", "mean", "inv_std", "mask") | _GRADIENTS


RESERVE_SLACK_BYTES = 1 << 16
"""Extra bytes in `reserve_bytes`. cuDNN adds 1 KiB; the rest leaves room for versions that add more."""


def reserve_bytes(norm: Norm) -> int:
    """Return the size of the reserve space that cuDNN's Ex calls keep from forward to backward: 0 without ReLU.

    The reserve holds ReLU's bits in tiles of 32 pixels by 64 channels. This is a formula and not a query to cuDNN
    because memory is also forecast on machines without a GPU; `prepare_call` checks it against cuDNN's answer."""
    return round_up(norm.count, 32) * round_up(norm.c, 64) // 8 + RESERVE_SLACK_BYTES if norm.relu else 0


@dataclass(frozen=True)
class BatchNormCallForward(_NormWork):
    """BatchNormForward by a legacy call: cudnnBatchNormalizationForwardTraining, or ...TrainingEx if ReLU is fused.

    `persistent` selects CUDNN_BATCHNORM_SPATIAL_PERSISTENT, the talk's fast batch normalisation. The Ex call needs
    NHWC, float16 and `persistent`."""

    kind = "call"
    roles = reads("x", "residual", "gamma", "beta") | _RUNNING | writes("y", "mean", "inv_std", "reserve")
    with_relu = frozenset({"reserve"})
    eps: float
    momentum: float
    persistent: bool


@dataclass(frozen=True)
class BatchNormCallBackward(_NormWork):
    """BatchNormBackward by a legacy call: cudnnBatchNormalizationBackward, or ...BackwardEx if ReLU is fused."""

    kind = "call"
    roles = reads("gy", "x", "gamma", "mean", "inv_std", "beta", "y", "reserve") | _GRADIENTS
    with_relu = frozenset({"beta", "y", "reserve"})
    eps: float
    persistent: bool


@dataclass(frozen=True)
class BatchNormFinalize(Work):
    """mean, inv_std, scale and bias from a convolution's `sum` and `square_sum` over `count` values.

    mean = sum / count; var = max(square_sum / count - mean^2, 0); running statistics as in BatchNormForward.
    scale = gamma * inv_std; bias = beta - mean * scale, so that BatchNormApply computes y = scale * x + bias."""

    roles = reads("sum", "square_sum", "gamma", "beta") | _RUNNING | writes("mean", "inv_std", "scale", "bias")
    numbers = ("c", "count", "eps", "momentum")
    c: int
    count: int
    eps: float
    momentum: float
    dtype: DType = "float32"

    def array(self, name: str) -> Array:
        return (self.c,), self.dtype


class BatchNormApply(_NormWork):
    """y = [relu](scale * x + bias [+ residual]), computed in float32."""

    roles = reads("x", "residual", "scale", "bias") | writes("y")
    numbers = ("norm.size", "norm.c", "norm.pixels")

    @property
    def flops(self) -> int:
        return 4 * self.norm.size
