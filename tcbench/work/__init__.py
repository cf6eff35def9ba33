"""Work: one thing a GPU is asked to do, as a frozen description without arrays.

A convolution, a batch normalisation, a kernel: each kind is a class here that says which operands it takes, in which
order, how many floating-point operations it needs and how many bytes it must move. Everything else derives from this:
the operations launch work, the CUDA accelerator turns it into cuDNN plans and kernels, the tracing accelerator counts
it, the forecast looks for its plans on a GPU that is not there, and the tests compute it with NumPy.

Owns the descriptions. Standard library only: knows neither CuPy nor cuDNN, and no rung.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar, get_args

Layout = Literal["NCHW", "NHWC"]
DType = Literal["float16", "float32"]
Math = Literal["strict", "tf32"]
"""How float32 convolutions compute: in float32, or with inputs rounded to TensorFloat-32. float16 always computes in
float32 on float16 inputs."""
Role = Literal["in", "out", "inout"]
Kind = Literal["graph", "call", "kernel"]
"""Who does it: a cuDNN graph, one of cuDNN's older calls, a kernel of ours."""


def _check_dtype(dtype: str) -> None:
    """Each dtype computes in a way of its own: no other may be taken for one of them."""
    if dtype not in get_args(DType):
        raise ValueError(f"on a GPU: expected {' or '.join(get_args(DType))}, got {dtype}")


ITEM_BYTES = {"float16": 2, "float32": 4, "bool": 1, "uint8": 1, "int32": 4, "int64": 8}


@dataclass(frozen=True)
class Operand:
    """One array of a piece of work: C-contiguous, in the order of `shape`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * ITEM_BYTES[self.dtype]


def _in(name: str, shape: tuple[int, ...], dtype: str) -> Operand:
    return Operand(name, shape, dtype, "in")


def _out(name: str, shape: tuple[int, ...], dtype: str) -> Operand:
    return Operand(name, shape, dtype, "out")


def _inout(name: str, shape: tuple[int, ...], dtype: str) -> Operand:
    return Operand(name, shape, dtype, "inout")


@dataclass(frozen=True)
class Work:
    """A piece of work. Arrays are handed over in the order of `operands`."""

    name: ClassVar[str]
    kind: ClassVar[Kind]

    @property
    def operands(self) -> tuple[Operand, ...]:
        raise NotImplementedError

    @property
    def scalars(self) -> tuple[int | float, ...]:
        """Numbers that follow the operands in a kernel's argument list: int as long long, float as float."""
        return ()

    @property
    def flops(self) -> int:
        """Floating-point operations; a multiply-accumulate counts as two."""
        return 0

    @property
    def bytes(self) -> int:
        """The least traffic with device memory: every operand read or written once, `inout` both."""
        return sum(operand.bytes * (2 if operand.role == "inout" else 1) for operand in self.operands)

    @property
    def label(self) -> str:
        """The work in a few words, for people."""
        return " ".join([self.name, *(str(value) for value in vars(self).values())])

    @property
    def key(self) -> str:
        """The same for the same work in every process and version of Python."""
        return json.dumps({"work": self.name, **dataclasses.asdict(self)}, sort_keys=True, separators=(",", ":"))


W = TypeVar("W", bound=Work)


def shared(make: Callable[..., W]) -> Callable[..., W]:
    """The same arguments give the same object, so that an accelerator finds its plan by identity."""
    return functools.lru_cache(maxsize=None)(make)


# -- convolution ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conv2d:
    """The geometry of a convolution without bias: x (N, C, H, W) * w (K, C, R, S) -> y (N, K, P, Q), as logical sizes.

    Stored NCHW / KCRS or NHWC / KRSC as `layout` says; x, w and y have one dtype.
    """

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
        _check_dtype(self.dtype)

    def __str__(self) -> str:
        """As in "64x128x28x28 k128 3x3/1 NHWC float16"; the sizes are x's, N first."""
        how = " tf32" if self.math == "tf32" else ""
        size = f"{self.n}x{self.c}x{self.h}x{self.w}"
        return f"{size} k{self.k} {self.r}x{self.s}/{self.stride} {self.layout} {self.dtype}{how}"

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


def stored(layout: Layout, n: int, c: int, h: int, w: int) -> tuple[int, int, int, int]:
    """The shape of an array of these logical sizes."""
    return (n, c, h, w) if layout == "NCHW" else (n, h, w, c)


@dataclass(frozen=True)
class _ConvWork(Work):
    kind: ClassVar[Kind] = "graph"
    conv: Conv2d

    @property
    def flops(self) -> int:
        return self.conv.flops


@dataclass(frozen=True)
class ConvFprop(_ConvWork):
    """y = x * w."""

    name: ClassVar[str] = "conv_fprop"

    @property
    def operands(self) -> tuple[Operand, ...]:
        c = self.conv
        return (_in("x", c.x_shape, c.dtype), _in("w", c.w_shape, c.dtype), _out("y", c.y_shape, c.dtype))


@dataclass(frozen=True)
class ConvDgrad(_ConvWork):
    """gx of gy and w."""

    name: ClassVar[str] = "conv_dgrad"

    @property
    def operands(self) -> tuple[Operand, ...]:
        c = self.conv
        return (_in("gy", c.y_shape, c.dtype), _in("w", c.w_shape, c.dtype), _out("gx", c.x_shape, c.dtype))


@dataclass(frozen=True)
class ConvWgrad(_ConvWork):
    """gw of x and gy."""

    name: ClassVar[str] = "conv_wgrad"

    @property
    def operands(self) -> tuple[Operand, ...]:
        c = self.conv
        return (_in("x", c.x_shape, c.dtype), _in("gy", c.y_shape, c.dtype), _out("gw", c.w_shape, c.dtype))


@dataclass(frozen=True)
class ConvFpropStats(_ConvWork):
    """y = x * w, and per channel of y its sum and sum of squares over N, P, Q, taken before y is rounded."""

    name: ClassVar[str] = "conv_fprop_stats"

    @property
    def operands(self) -> tuple[Operand, ...]:
        c = self.conv
        return (
            _in("x", c.x_shape, c.dtype),
            _in("w", c.w_shape, c.dtype),
            _out("y", c.y_shape, c.dtype),
            _out("sum", (c.k,), "float32"),
            _out("square_sum", (c.k,), "float32"),
        )


# -- batch normalisation -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Norm:
    """What a batch normalisation works on: logical sizes, layout, dtype of x, and what follows it.

    `after`: nothing, ReLU, or the addition of a residual and ReLU. gamma, beta and all statistics are float32 (C,).
    """

    n: int
    c: int
    h: int
    w: int
    layout: Layout
    dtype: DType
    after: Literal["none", "relu", "add_relu"] = "none"

    def __post_init__(self) -> None:
        _check_dtype(self.dtype)

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
    def count(self) -> int:
        """Values per channel."""
        return self.n * self.h * self.w

    @property
    def relu(self) -> bool:
        return self.after != "none"

    @property
    def add(self) -> bool:
        return self.after == "add_relu"


def _vectors(norm: Norm, role: Role, *names: str) -> tuple[Operand, ...]:
    return tuple(Operand(name, (norm.c,), "float32", role) for name in names)


@dataclass(frozen=True)
class _NormWork(Work):
    norm: Norm

    @property
    def flops(self) -> int:
        return 10 * self.norm.size


@dataclass(frozen=True)
class BatchNormForward(_NormWork):
    """y = [relu](gamma * (x - mean) * inv_std + beta [+ residual]) with the batch's mean and biased variance.

    inv_std = 1 / sqrt(var + eps). running = (1 - momentum) * running + momentum * batch's, the variance with the
    factor m / (m - 1). With ReLU, `mask` says where y > 0; its bits are cuDNN's own: only BatchNormBackward reads
    them. It is given a byte per value.
    """

    name: ClassVar[str] = "batch_norm_forward"
    kind: ClassVar[Kind] = "graph"
    eps: float
    momentum: float

    @property
    def operands(self) -> tuple[Operand, ...]:
        norm = self.norm
        return (
            _in("x", norm.shape, norm.dtype),
            *((_in("residual", norm.shape, norm.dtype),) if norm.add else ()),
            *_vectors(norm, "in", "gamma", "beta"),
            *_vectors(norm, "inout", "running_mean", "running_var"),
            _out("y", norm.shape, norm.dtype),
            *_vectors(norm, "out", "mean", "inv_std"),
            *((_out("mask", norm.shape, "bool"),) if norm.relu else ()),
        )


@dataclass(frozen=True)
class BatchNormBackward(_NormWork):
    """gx, ggamma, gbeta of gy; with ReLU gy counts where the mask is set; with add, that masked gy is `gresidual`."""

    name: ClassVar[str] = "batch_norm_backward"
    kind: ClassVar[Kind] = "graph"

    @property
    def operands(self) -> tuple[Operand, ...]:
        norm = self.norm
        return (
            _in("gy", norm.shape, norm.dtype),
            _in("x", norm.shape, norm.dtype),
            *_vectors(norm, "in", "gamma", "mean", "inv_std"),
            *((_in("mask", norm.shape, "bool"),) if norm.relu else ()),
            _out("gx", norm.shape, norm.dtype),
            *_vectors(norm, "out", "ggamma", "gbeta"),
            *((_out("gresidual", norm.shape, norm.dtype),) if norm.add else ()),
        )


RESERVE_SLACK_BYTES = 1 << 16
"""cuDNN adds 1 KiB; the rest is room for a version that adds more."""


def reserve_bytes(norm: Norm) -> int:
    """Room for what cuDNN's extended calls keep from forward to backward: ReLU's bits, in tiles of 32 pixels by 64
    channels. None without ReLU.

    A formula, since arrays are described, and their memory is forecast, where there is no GPU that cuDNN could be asked
    about; `prepare_call` compares it with cuDNN's answer.
    """
    return _up(norm.count, 32) * _up(norm.c, 64) // 8 + RESERVE_SLACK_BYTES if norm.relu else 0


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class BatchNormCallForward(_NormWork):
    """The same as BatchNormForward, by cudnnBatchNormalizationForwardTraining (after "none") or ...ForwardTrainingEx.

    `persistent` asks for CUDNN_BATCHNORM_SPATIAL_PERSISTENT, the talk's fast batch normalisation. Ex: NHWC float16,
    persistent.
    """

    name: ClassVar[str] = "batch_norm_call_forward"
    kind: ClassVar[Kind] = "call"
    eps: float
    momentum: float
    persistent: bool

    @property
    def operands(self) -> tuple[Operand, ...]:
        norm = self.norm
        return (
            _in("x", norm.shape, norm.dtype),
            *((_in("residual", norm.shape, norm.dtype),) if norm.add else ()),
            *_vectors(norm, "in", "gamma", "beta"),
            *_vectors(norm, "inout", "running_mean", "running_var"),
            _out("y", norm.shape, norm.dtype),
            *_vectors(norm, "out", "mean", "inv_std"),
            *((_out("reserve", (reserve_bytes(norm),), "uint8"),) if norm.relu else ()),
        )


@dataclass(frozen=True)
class BatchNormCallBackward(_NormWork):
    """The same as BatchNormBackward, by cudnnBatchNormalizationBackward (after "none") or ...BackwardEx."""

    name: ClassVar[str] = "batch_norm_call_backward"
    kind: ClassVar[Kind] = "call"
    eps: float
    persistent: bool

    @property
    def operands(self) -> tuple[Operand, ...]:
        norm = self.norm
        return (
            _in("gy", norm.shape, norm.dtype),
            _in("x", norm.shape, norm.dtype),
            *_vectors(norm, "in", "gamma", "mean", "inv_std"),
            *(
                (
                    *_vectors(norm, "in", "beta"),
                    _in("y", norm.shape, norm.dtype),
                    _in("reserve", (reserve_bytes(norm),), "uint8"),
                )
                if norm.relu
                else ()
            ),
            _out("gx", norm.shape, norm.dtype),
            *_vectors(norm, "out", "ggamma", "gbeta"),
            *((_out("gresidual", norm.shape, norm.dtype),) if norm.add else ()),
        )


@dataclass(frozen=True)
class BatchNormFinalize(Work):
    """From a convolution's `sum` and `square_sum` over `count` values: mean, inv_std, and y = scale * x + bias.

    var = square_sum / count - mean^2, not below 0. Running statistics as in BatchNormForward.
    scale = gamma * inv_std; bias = beta - mean * scale.
    """

    name: ClassVar[str] = "batch_norm_finalize"
    kind: ClassVar[Kind] = "kernel"
    c: int
    count: int
    eps: float
    momentum: float

    @property
    def operands(self) -> tuple[Operand, ...]:
        def vectors(role: Role, *names: str) -> tuple[Operand, ...]:
            return tuple(Operand(name, (self.c,), "float32", role) for name in names)

        return (
            *vectors("in", "sum", "square_sum", "gamma", "beta"),
            *vectors("inout", "running_mean", "running_var"),
            *vectors("out", "mean", "inv_std", "scale", "bias"),
        )

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.c, self.count, float(self.eps), float(self.momentum))


@dataclass(frozen=True)
class BatchNormApply(Work):
    """y = [relu](scale * x + bias [+ residual]), computed in float32."""

    name: ClassVar[str] = "batch_norm_apply"
    kind: ClassVar[Kind] = "kernel"
    norm: Norm

    @property
    def operands(self) -> tuple[Operand, ...]:
        norm = self.norm
        return (
            _in("x", norm.shape, norm.dtype),
            *((_in("residual", norm.shape, norm.dtype),) if norm.add else ()),
            *_vectors(norm, "in", "scale", "bias"),
            _out("y", norm.shape, norm.dtype),
        )

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.norm.size, self.norm.c, self.norm.h * self.norm.w)

    @property
    def flops(self) -> int:
        return 4 * self.norm.size


# -- elementwise ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Elementwise(Work):
    """On `size` values of one dtype; half precision computes in float32. Any shape of that size will do."""

    kind: ClassVar[Kind] = "kernel"
    ins: ClassVar[tuple[str, ...]]
    out: ClassVar[str]
    size: int
    dtype: DType

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            *(_in(name, (self.size,), self.dtype) for name in self.ins),
            _out(self.out, (self.size,), self.dtype),
        )

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.size,)

    @property
    def flops(self) -> int:
        return self.size


@dataclass(frozen=True)
class Relu(_Elementwise):
    """y = max(x, 0); NaN stays NaN."""

    name: ClassVar[str] = "relu"
    ins = ("x",)
    out = "y"


@dataclass(frozen=True)
class ReluBackward(_Elementwise):
    """gx = gy where y > 0, else 0."""

    name: ClassVar[str] = "relu_backward"
    ins = ("gy", "y")
    out = "gx"


@dataclass(frozen=True)
class Add(_Elementwise):
    """c = a + b."""

    name: ClassVar[str] = "add"
    ins = ("a", "b")
    out = "c"


@dataclass(frozen=True)
class AddRelu(_Elementwise):
    """y = max(a + b, 0); NaN stays NaN."""

    name: ClassVar[str] = "add_relu"
    ins = ("a", "b")
    out = "y"


# -- pooling -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pool:
    """Max pooling with square windows: output size floor((H + 2 pad - ksize) / stride) + 1."""

    n: int
    c: int
    h: int
    w: int
    ksize: int
    stride: int
    pad: int
    layout: Layout
    dtype: DType

    @property
    def p(self) -> int:
        return (self.h + 2 * self.pad - self.ksize) // self.stride + 1

    @property
    def q(self) -> int:
        return (self.w + 2 * self.pad - self.ksize) // self.stride + 1

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        return stored(self.layout, self.n, self.c, self.h, self.w)

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        return stored(self.layout, self.n, self.c, self.p, self.q)

    @property
    def scalars(self) -> tuple[int, ...]:
        return (self.n, self.c, self.h, self.w, self.p, self.q, self.ksize, self.stride, self.pad)


@dataclass(frozen=True)
class _PoolWork(Work):
    kind: ClassVar[Kind] = "kernel"
    pool: Pool

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return self.pool.scalars


@dataclass(frozen=True)
class MaxPoolForward(_PoolWork):
    """y, and where in its window each maximum stands: `place` = row * ksize + column, the first of equals; NaN wins."""

    name: ClassVar[str] = "max_pool_forward"

    @property
    def operands(self) -> tuple[Operand, ...]:
        p = self.pool
        return (_in("x", p.x_shape, p.dtype), _out("y", p.y_shape, p.dtype), _out("place", p.y_shape, "uint8"))


@dataclass(frozen=True)
class MaxPoolBackward(_PoolWork):
    """gx: each pixel sums, in float32, the gradients of the windows whose maximum it was."""

    name: ClassVar[str] = "max_pool_backward"

    @property
    def operands(self) -> tuple[Operand, ...]:
        p = self.pool
        return (_in("gy", p.y_shape, p.dtype), _in("place", p.y_shape, "uint8"), _out("gx", p.x_shape, p.dtype))


@dataclass(frozen=True)
class _GlobalAverage(Work):
    kind: ClassVar[Kind] = "kernel"
    n: int
    c: int
    h: int
    w: int
    layout: Layout
    dtype: DType

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.n, self.c, self.h * self.w)


@dataclass(frozen=True)
class GlobalAverageForward(_GlobalAverage):
    """y (N, C): means over all pixels, summed in float32."""

    name: ClassVar[str] = "global_average_forward"

    @property
    def operands(self) -> tuple[Operand, ...]:
        x_shape = stored(self.layout, self.n, self.c, self.h, self.w)
        return (_in("x", x_shape, self.dtype), _out("y", (self.n, self.c), self.dtype))


@dataclass(frozen=True)
class GlobalAverageBackward(_GlobalAverage):
    """gx: gy / (H * W) at every pixel."""

    name: ClassVar[str] = "global_average_backward"

    @property
    def operands(self) -> tuple[Operand, ...]:
        x_shape = stored(self.layout, self.n, self.c, self.h, self.w)
        return (_in("gy", (self.n, self.c), self.dtype), _out("gx", x_shape, self.dtype))


# -- classifier and loss -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AddBias(Work):
    """y (N, K) += b (K,), in place; b is float32."""

    name: ClassVar[str] = "add_bias"
    kind: ClassVar[Kind] = "kernel"
    n: int
    k: int
    dtype: DType

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (_inout("y", (self.n, self.k), self.dtype), _in("b", (self.k,), "float32"))

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.n, self.k)


@dataclass(frozen=True)
class BiasGradient(Work):
    """gb (K,) float32: gy (N, K) summed over N."""

    name: ClassVar[str] = "bias_gradient"
    kind: ClassVar[Kind] = "kernel"
    n: int
    k: int
    dtype: DType

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (_in("gy", (self.n, self.k), self.dtype), _out("gb", (self.k,), "float32"))

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.n, self.k)


@dataclass(frozen=True)
class _LossWork(Work):
    """On logits (N, K) and int32 labels (N,) within [0, K)."""

    kind: ClassVar[Kind] = "kernel"
    n: int
    k: int
    dtype: DType

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.n, self.k)


@dataclass(frozen=True)
class SoftmaxCrossEntropyForward(_LossWork):
    """log_p (N, K) float32 = log softmax of each row; losses (N,) = -log_p at the label. A label out of range: NaN."""

    name: ClassVar[str] = "softmax_cross_entropy_forward"

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            _in("x", (self.n, self.k), self.dtype),
            _in("t", (self.n,), "int32"),
            _out("log_p", (self.n, self.k), "float32"),
            _out("losses", (self.n,), "float32"),
        )


@dataclass(frozen=True)
class MeanLoss(Work):
    """loss () = the mean of losses (N,), summed in a fixed order."""

    name: ClassVar[str] = "mean_loss"
    kind: ClassVar[Kind] = "kernel"
    n: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (_in("losses", (self.n,), "float32"), _out("loss", (), "float32"))

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.n,)


@dataclass(frozen=True)
class SoftmaxCrossEntropyBackward(_LossWork):
    """gx = (exp(log_p) - one_hot(t)) * gloss / N, in the logits' dtype."""

    name: ClassVar[str] = "softmax_cross_entropy_backward"

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            _in("log_p", (self.n, self.k), "float32"),
            _in("t", (self.n,), "int32"),
            _in("gloss", (), "float32"),
            _out("gx", (self.n, self.k), self.dtype),
        )


# -- weight update, one parameter at a time (the talk's base) ------------------------------------------------------

SCALE, OVERFLOWS, GOOD_STEPS, SKIPPED = range(4)
STATE_SIZE = 4
"""The loss scale's state on the device, float32 (4,): the scale; how many thread blocks have met a gradient that is
not finite in this step (dynamic: set back at its end) or ever (static); steps since the scale last changed; steps
that were skipped. Each step's update sees the same scale that its loss was multiplied by."""


@dataclass(frozen=True)
class Unscale(_Elementwise):
    """gx = g / scale, in the gradient's own dtype; one that is not finite is counted and becomes 0."""

    name: ClassVar[str] = "unscale"
    ins = ("g",)
    out = "gx"

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            _in("g", (self.size,), self.dtype),
            _out("gx", (self.size,), self.dtype),
            _inout("state", (STATE_SIZE,), "float32"),
        )


@dataclass(frozen=True)
class ToSingle(Work):
    """y = x, float16 to float32."""

    name: ClassVar[str] = "to_single"
    kind: ClassVar[Kind] = "kernel"
    size: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (_in("x", (self.size,), "float16"), _out("y", (self.size,), "float32"))

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.size,)


@dataclass(frozen=True)
class ToHalf(Work):
    """y = x, float32 to float16, rounded to nearest even."""

    name: ClassVar[str] = "to_half"
    kind: ClassVar[Kind] = "kernel"
    size: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (_in("x", (self.size,), "float32"), _out("y", (self.size,), "float16"))

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.size,)


@dataclass(frozen=True)
class WeightDecay(Work):
    """g += weight_decay * w, float32."""

    name: ClassVar[str] = "weight_decay"
    kind: ClassVar[Kind] = "kernel"
    size: int
    weight_decay: float

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (_inout("g", (self.size,), "float32"), _in("w", (self.size,), "float32"))

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.size, float(self.weight_decay))


@dataclass(frozen=True)
class MomentumUpdate(Work):
    """v = momentum * v - learning_rate * g; w += v; float32."""

    name: ClassVar[str] = "momentum_update"
    kind: ClassVar[Kind] = "kernel"
    size: int
    learning_rate: float
    momentum: float

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            _in("g", (self.size,), "float32"),
            _inout("v", (self.size,), "float32"),
            _inout("w", (self.size,), "float32"),
        )

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.size, float(self.learning_rate), float(self.momentum))


# -- weight update, all parameters at once -------------------------------------------------------------------------

CHUNK = 1 << 14
"""Values that one thread block of a batched kernel takes."""


ALIGNMENT = 64
"""Values: 256 bytes in float32, as CuPy and CUDA align; 128 in float16."""


def _aligned(size: int) -> int:
    return _up(size, ALIGNMENT)


@dataclass(frozen=True)
class Parameters:
    """The parameters of a model, in order: size of each, and whether it is stored as float16.

    Flat arrays of `total` values hold all of them in float32, each at its place: master weights and velocities. A
    float32 parameter is a view into the master weights; a float16 one is a view into an array of `total_half` values,
    which holds the float16 ones alone. Places are multiples of ALIGNMENT: cuDNN's graphs take addresses that are
    multiples of 16 bytes.

    `table` int64 (P, 2): address of each parameter's gradient (in the parameter's dtype) and of its float16 weights,
    0 for a float32 parameter. `chunks` int64 (B, 4): parameter, first and end value in it, place in the flat arrays
    of the first; each of at most CHUNK values.
    """

    sizes: tuple[int, ...]
    halves: tuple[bool, ...]

    @functools.cached_property
    def places(self) -> tuple[int, ...]:
        """Where each parameter begins in the flat arrays."""
        return tuple(itertools.accumulate((_aligned(size) for size in self.sizes), initial=0))[:-1]

    @functools.cached_property
    def half_places(self) -> tuple[int, ...]:
        """Where each begins in the float16 array; what stands there for a float32 one takes no room."""
        sizes = (_aligned(size) if half else 0 for size, half in zip(self.sizes, self.halves, strict=True))
        return tuple(itertools.accumulate(sizes, initial=0))[:-1]

    @property
    def total(self) -> int:
        return sum(_aligned(size) for size in self.sizes)

    @property
    def total_half(self) -> int:
        return sum(_aligned(size) for size, half in zip(self.sizes, self.halves, strict=True) if half)

    def chunks(self) -> Iterator[tuple[int, int, int, int]]:
        """The rows of the chunk table."""
        for index, (size, place) in enumerate(zip(self.sizes, self.places, strict=True)):
            for begin in range(0, size, CHUNK):
                yield index, begin, min(begin + CHUNK, size), place + begin

    @functools.cached_property
    def n_chunks(self) -> int:
        return sum(-(-size // CHUNK) for size in self.sizes)

    @property
    def gradient_bytes(self) -> int:
        return 4 * self.total - 2 * self.total_half


@dataclass(frozen=True)
class _BatchedWork(Work):
    kind: ClassVar[Kind] = "kernel"
    parameters: Parameters

    @property
    def _tables(self) -> tuple[Operand, ...]:
        return (
            _in("table", (len(self.parameters.sizes), 2), "int64"),
            _in("chunks", (self.parameters.n_chunks, 4), "int64"),
        )


@dataclass(frozen=True)
class BatchedUpdate(_BatchedWork):
    """For every parameter: g = gradient / scale + weight_decay * w; v = momentum * v - learning_rate * g; w += v, and
    float16 weights = w rounded.

    A gradient that is not finite: `dynamic` False, it is counted in state[OVERFLOWS] and its value keeps w and v;
    True, CheckFinite has counted before, and if it found any nothing at all is changed.
    """

    name: ClassVar[str] = "batched_update"
    learning_rate: float
    momentum: float
    weight_decay: float
    dynamic: bool

    @property
    def operands(self) -> tuple[Operand, ...]:
        total = (self.parameters.total,)
        return (
            *self._tables,
            _inout("master", total, "float32"),
            _inout("velocity", total, "float32"),
            _inout("state", (STATE_SIZE,), "float32"),
        )

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (float(self.learning_rate), float(self.momentum), float(self.weight_decay), int(self.dynamic))

    @property
    def bytes(self) -> int:
        return super().bytes + self.parameters.gradient_bytes + 2 * self.parameters.total_half

    @property
    def flops(self) -> int:
        return 7 * self.parameters.total


@dataclass(frozen=True)
class CheckFinite(_BatchedWork):
    """state[OVERFLOWS] += the number of chunks with a gradient that is not finite."""

    name: ClassVar[str] = "check_finite"

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (*self._tables, _inout("state", (STATE_SIZE,), "float32"))

    @property
    def bytes(self) -> int:
        return super().bytes + self.parameters.gradient_bytes


@dataclass(frozen=True)
class AdjustScale(Work):
    """Dynamic loss scaling, after the update: on overflow the scale halves (not below 1) and a skipped step is
    counted; after `interval` good steps in a row it doubles (not above 2^24). Then state[OVERFLOWS] = 0.

    Source: P. Micikevicius et al., "Mixed Precision Training", 2018, section 3.2.
    """

    name: ClassVar[str] = "adjust_scale"
    kind: ClassVar[Kind] = "kernel"
    interval: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (_inout("state", (STATE_SIZE,), "float32"),)

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (self.interval,)
