"""The weight update: one parameter at a time (the talk's base), or all parameters at once; the loss scale; and the
gradients side by side, as they are reduced over ranks."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tcbench.engine.work.base import ITEM_BYTES, Array, DType, Half, Work, reads, round_up, updates, writes
from tcbench.engine.work.pointwise import Pointwise

SCALE, OVERFLOWS, GOOD_STEPS, SKIPPED = range(4)
STATE_SIZE = 4
"""The loss scale's state on the device, float32 (4,): the scale; how many thread blocks have met a gradient that is
not finite in this step (dynamic: set back at its end) or ever (static); steps since the scale last changed; steps
that were skipped. Each step's update sees the same scale that its loss was multiplied by."""

_STATE: Array = ((STATE_SIZE,), "float32")


class Unscale(Pointwise):
    """gx = g / scale, in the gradient's own dtype; one that is not finite is counted and becomes 0."""

    roles = reads("g") | writes("gx") | updates("state")

    def array(self, name: str) -> Array:
        return _STATE if name == "state" else super().array(name)


@dataclass(frozen=True)
class _OneParameter(Work):
    """On `size` values."""

    numbers: ClassVar[tuple[str, ...]] = ("size",)
    size: int


@dataclass(frozen=True)
class ToSingle(_OneParameter):
    """y = x, 16 bits to float32."""

    roles = reads("x") | writes("y")
    half: Half = "float16"

    def array(self, name: str) -> Array:
        return (self.size,), self.half if name == "x" else "float32"


@dataclass(frozen=True)
class ToHalf(_OneParameter):
    """y = x, float32 to 16 bits, rounded to nearest even."""

    roles = reads("x") | writes("y")
    half: Half = "float16"

    def array(self, name: str) -> Array:
        return (self.size,), self.half if name == "y" else "float32"


@dataclass(frozen=True)
class WeightDecay(_OneParameter):
    """g += weight_decay * w."""

    roles = updates("g") | reads("w")
    numbers = ("size", "weight_decay")
    weight_decay: float
    dtype: DType = "float32"

    def array(self, name: str) -> Array:
        return (self.size,), self.dtype


@dataclass(frozen=True)
class MomentumUpdate(_OneParameter):
    """v = momentum * v - learning_rate * g; w += v."""

    roles = reads("g") | updates("v", "w")
    numbers = ("size", "learning_rate", "momentum")
    learning_rate: float
    momentum: float
    dtype: DType = "float32"

    def array(self, name: str) -> Array:
        return (self.size,), self.dtype


# -- all parameters at once ----------------------------------------------------------------------------------------

CHUNK = 1 << 14
"""Values that one thread block of a batched kernel takes."""

ALIGNMENT = 64
"""Values: 256 bytes in float32, as CuPy and CUDA align; 128 in 16 bits."""


def aligned(size: int) -> int:
    """So many values, or as many more as make the next place an aligned one."""
    return round_up(size, ALIGNMENT)


@dataclass(frozen=True)
class Parameters:
    """The parameters of a model, in order: size of each, and whether it is stored in 16 bits, as `half` says.

    Flat arrays of `total` values hold all of them in float32, each at its place: master weights and velocities. A
    float32 parameter is a view into the master weights; one of 16 bits is a view into an array of `total_half` values,
    which holds those alone. Places are multiples of ALIGNMENT: cuDNN's graphs take addresses that are
    multiples of 16 bytes.

    `table` int64 (P, 2): address of each parameter's gradient (in the parameter's dtype, or all in `gradients`) and of
    its 16-bit weights, 0 for a float32 parameter. `chunks` int64 (B, 4): parameter, first and end value in it, place in
    the flat arrays of the first; each of at most CHUNK values."""

    sizes: tuple[int, ...]
    halves: tuple[bool, ...]
    half: Half = "float16"
    gradients: DType | None = None

    @functools.cached_property
    def places(self) -> tuple[int, ...]:
        """The place at which each parameter begins in the flat arrays."""
        return tuple(itertools.accumulate((aligned(size) for size in self.sizes), initial=0))[:-1]

    @functools.cached_property
    def half_places(self) -> tuple[int, ...]:
        """The place at which each begins in the array of 16 bits; what stands there for a float32 one takes no room."""
        sizes = (aligned(size) if half else 0 for size, half in zip(self.sizes, self.halves, strict=True))
        return tuple(itertools.accumulate(sizes, initial=0))[:-1]

    @property
    def total(self) -> int:
        return sum(aligned(size) for size in self.sizes)

    @property
    def total_half(self) -> int:
        return sum(aligned(size) for size, half in zip(self.sizes, self.halves, strict=True) if half)

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
        if self.gradients is not None:
            return ITEM_BYTES[self.gradients] * self.total
        return 4 * self.total - 2 * self.total_half

    def gradient_dtype(self, half: bool) -> DType:
        """That of a parameter which has 16 bits, or float32."""
        return self.gradients or (self.half if half else "float32")


@dataclass(frozen=True)
class _BatchedWork(Work):
    parameters: Parameters

    def array(self, name: str) -> Array:
        return {
            "table": ((len(self.parameters.sizes), 2), "int64"),
            "chunks": ((self.parameters.n_chunks, 4), "int64"),
            "state": _STATE,
        }.get(name, ((self.parameters.total,), "float32"))

    @property
    def bytes(self) -> int:
        return super().bytes + self.parameters.gradient_bytes


@dataclass(frozen=True)
class BatchedUpdate(_BatchedWork):
    """For every parameter: g = gradient / scale + weight_decay * w; v = momentum * v - learning_rate * g; w += v, and
    16-bit weights = w rounded. A gradient that is not finite: `dynamic` False, it is counted in state[OVERFLOWS] and
    its value keeps w and v; True, CheckFinite has counted before, and if it found any nothing at all is changed."""

    roles = reads("table", "chunks") | updates("master", "velocity", "state")
    numbers = ("learning_rate", "momentum", "weight_decay", "dynamic")
    learning_rate: float
    momentum: float
    weight_decay: float
    dynamic: bool

    @property
    def bytes(self) -> int:
        return super().bytes + 2 * self.parameters.total_half

    @property
    def flops(self) -> int:
        return 7 * self.parameters.total


@dataclass(frozen=True)
class PackGradients(_BatchedWork):
    """flat = gradient * factor for every parameter, at its place and in one dtype; what lies between stays."""

    roles = reads("table", "chunks") | writes("flat")
    numbers = ("factor",)
    dtype: DType
    factor: float

    def array(self, name: str) -> Array:
        return ((self.parameters.total,), self.dtype) if name == "flat" else super().array(name)

    @property
    def flops(self) -> int:
        return self.parameters.total


class CheckFinite(_BatchedWork):
    """state[OVERFLOWS] += the number of chunks with a gradient that is not finite."""

    roles = reads("table", "chunks") | updates("state")


@dataclass(frozen=True)
class AdjustScale(Work):
    """Dynamic loss scaling, after the update: on overflow the scale halves (not below 1) and a skipped step is counted;
    after `interval` good steps in a row it doubles (not above 2^24). Then state[OVERFLOWS] = 0. Source: P. Micikevicius
    et al., "Mixed Precision Training", 2018, section 3.2."""

    roles = updates("state")
    numbers = ("interval",)
    interval: int

    def array(self, name: str) -> Array:
        return _STATE
