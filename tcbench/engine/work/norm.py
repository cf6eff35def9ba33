"""Batch normalisation, with what follows it: by cuDNN's graphs, by its older calls, and from a convolution's sums."""

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
"""The operation after a batch normalisation."""


@dataclass(frozen=True)
class Norm:
    """The shape of a batch normalisation: logical sizes, layout, dtype of x, and what follows it. `after`: nothing,
    ReLU, or the addition of a residual and ReLU. gamma, beta and all statistics are (C,), float32 (float64 for
    float64)."""

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
        """As in "64x128x28x28 relu NHWC float16"."""
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
        """Values per channel."""
        return self.n * self.pixels

    @property
    def relu(self) -> bool:
        return self.after != "none"

    @property
    def add(self) -> bool:
        return self.after == "add_relu"


_RUNNING = updates("running_mean", "running_var")
_ACTIVATIONS = frozenset({"x", "y", "gx", "gy", "residual", "gresidual"})


@dataclass(frozen=True)
class _NormWork(Work):
    """`with_relu`: operands that are there only where ReLU follows. Those of a residual are there with `norm.add`."""

    with_relu: ClassVar[frozenset[str]] = frozenset({"mask"})
    norm: Norm

    def array(self, name: str) -> Array:
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

    inv_std = 1 / sqrt(var + eps). running = (1 - momentum) * running + momentum * batch's, the variance with the
    factor m / (m - 1). With ReLU, `mask` says where y > 0; its bits are cuDNN's own: only BatchNormBackward reads
    them. It is given a byte per value."""

    kind = "graph"
    roles = reads("x", "residual", "gamma", "beta") | _RUNNING | writes("y", "mean", "inv_std", "mask")
    eps: float
    momentum: float


class BatchNormBackward(_NormWork):
    """gx, ggamma, gbeta of gy; with ReLU gy counts where the mask is set; with add, that masked gy is `gresidual`."""

    kind = "graph"
    roles = reads("gy", "x", "gamma", "mean", "inv_std", "mask") | writes("gx", "ggamma", "gbeta", "gresidual")


RESERVE_SLACK_BYTES = 1 << 16
"""cuDNN adds 1 KiB; the rest is room for a version that adds more."""


def reserve_bytes(norm: Norm) -> int:
    """Room for what cuDNN's extended calls keep from forward to backward: ReLU's bits, in tiles of 32 pixels by 64
    channels. 0 without ReLU. A formula, since arrays are described, and their memory is forecast, where there is no GPU
    that cuDNN could be asked about; `prepare_call` compares it with cuDNN's answer."""
    return round_up(norm.count, 32) * round_up(norm.c, 64) // 8 + RESERVE_SLACK_BYTES if norm.relu else 0


@dataclass(frozen=True)
class BatchNormCallForward(_NormWork):
    """The same as BatchNormForward, by cudnnBatchNormalizationForwardTraining (after "none") or ...ForwardTrainingEx.
    `persistent` asks for CUDNN_BATCHNORM_SPATIAL_PERSISTENT, the talk's fast batch normalisation. Ex: NHWC float16,
    persistent."""

    kind = "call"
    roles = reads("x", "residual", "gamma", "beta") | _RUNNING | writes("y", "mean", "inv_std", "reserve")
    with_relu = frozenset({"reserve"})
    eps: float
    momentum: float
    persistent: bool


@dataclass(frozen=True)
class BatchNormCallBackward(_NormWork):
    """The same as BatchNormBackward, by cudnnBatchNormalizationBackward (after "none") or ...BackwardEx."""

    kind = "call"
    roles = reads("gy", "x", "gamma", "mean", "inv_std", "beta", "y", "reserve") | writes(
        "gx", "ggamma", "gbeta", "gresidual"
    )
    with_relu = frozenset({"beta", "y", "reserve"})
    eps: float
    persistent: bool


@dataclass(frozen=True)
class BatchNormFinalize(Work):
    """From a convolution's `sum` and `square_sum` over `count` values: mean, inv_std, and y = scale * x + bias.

    var = square_sum / count - mean^2, not below 0. Running statistics as in BatchNormForward.
    scale = gamma * inv_std; bias = beta - mean * scale."""

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
