"""Weight updates: for one parameter (the talk's base) or for all in one launch; loss scaling; packing of gradients for
all-reduce."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tcbench.engine.work.base import ITEM_BYTES, Array, DType, Half, Work, reads, round_up, updates, writes
from tcbench.engine.work.pointwise import Pointwise

SCALE, OVERFLOWS, GOOD_STEPS, SKIPPED = range(4)
STATE_SIZE = 4
"""Size of the loss scaling state on the device, float32 (4,), with these elements:

- SCALE: the loss scale; the loss and the update of a step use the same value;
- OVERFLOWS: chunks with a gradient that is not finite, in this step (dynamic) or since the start (static);
- GOOD_STEPS: steps since the scale last changed;
- SKIPPED: steps that were skipped."""

_STATE: Array = ((STATE_SIZE,), "float32")


class Unscale(Pointwise):
    """gx = g / scale, in the dtype of g. Values that are not finite become 0 and are counted in state[OVERFLOWS]."""

    roles = reads("g") | writes("gx") | updates("state")

    def array(self, name: str) -> Array:
        return _STATE if name == "state" else super().array(name)


@dataclass(frozen=True)
class _Conversion(Work):
    """Base class for conversions of `size` values."""

    half_operand: ClassVar[str]
    """The operand of dtype `half`; the other one is float32."""
    numbers: ClassVar[tuple[str, ...]] = ("size",)
    size: int
    half: Half = "float16"

    def array(self, name: str) -> Array:
        return (self.size,), self.half if name == self.half_operand else "float32"


class ToSingle(_Conversion):
    """y = x, converted from 16 bits to float32."""

    roles = reads("x") | writes("y")
    half_operand = "x"


class ToHalf(_Conversion):
    """y = x, converted from float32 to 16 bits and rounded to nearest even."""

    roles = reads("x") | writes("y")
    half_operand = "y"


@dataclass(frozen=True)
class WeightDecay(Work):
    """g += weight_decay * w."""

    roles = updates("g") | reads("w")
    numbers = ("size", "weight_decay")
    size: int
    weight_decay: float
    dtype: DType = "float32"

    def array(self, name: str) -> Array:
        return (self.size,), self.dtype


@dataclass(frozen=True)
class MomentumUpdate(Work):
    """v = momentum * v - learning_rate * g; w += v."""

    roles = reads("g") | updates("v", "w")
    numbers = ("size", "learning_rate", "momentum")
    size: int
    learning_rate: float
    momentum: float
    dtype: DType = "float32"

    def array(self, name: str) -> Array:
        return (self.size,), self.dtype


# -- all parameters in one launch ----------------------------------------------------------------------------------

CHUNK = 1 << 14
"""Values that one thread block of a batched kernel processes."""

ALIGNMENT = 64
"""Alignment of parameters in flat arrays, in values: 256 bytes in float32, as in CuPy and CUDA; 128 in 16 bits."""


def aligned(size: int) -> int:
    """Return `size` rounded up to a multiple of ALIGNMENT."""
    return round_up(size, ALIGNMENT)


@dataclass(frozen=True)
class Parameters:
    """The parameters of a model, in order, and their places in flat arrays.

    Flat float32 arrays of `total` values hold the master weights and the velocities of all parameters. A float32
    parameter is a view into the master weights. A 16-bit parameter is a view into an array of `total_half` values of
    dtype `half`, which holds the 16-bit parameters only. Places are multiples of ALIGNMENT, since cuDNN graphs need
    addresses that are multiples of 16 bytes.

    Batched kernels read two tables:

    - `table`, int64 (P, 2): per parameter the address of its gradient, and of its 16-bit weights (0 if it is float32);
    - `chunks`, int64 (B, 4): per chunk of at most CHUNK values the index of its parameter, the first value and the end
      within the parameter, and the place of the first value in the flat arrays."""

    sizes: tuple[int, ...]
    """The number of values of each parameter."""
    halves: tuple[bool, ...]
    """Whether each parameter is stored in 16 bits."""
    half: Half = "float16"
    """The dtype of the 16-bit parameters."""
    gradients: DType | None = None
    """The dtype of all gradients; None if each gradient has the dtype of its parameter."""

    @functools.cached_property
    def places(self) -> tuple[int, ...]:
        """The index of each parameter's first value in the flat arrays."""
        return tuple(itertools.accumulate((aligned(size) for size in self.sizes), initial=0))[:-1]

    @functools.cached_property
    def half_places(self) -> tuple[int, ...]:
        """The index of each parameter's first value in the 16-bit array, where float32 parameters take no space."""
        sizes = (aligned(size) if half else 0 for size, half in zip(self.sizes, self.halves, strict=True))
        return tuple(itertools.accumulate(sizes, initial=0))[:-1]

    @property
    def total(self) -> int:
        return sum(aligned(size) for size in self.sizes)

    @property
    def total_half(self) -> int:
        return sum(aligned(size) for size, half in zip(self.sizes, self.halves, strict=True) if half)

    def chunks(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the rows of the table `chunks`."""
        for index, (size, place) in enumerate(zip(self.sizes, self.places, strict=True)):
            for begin in range(0, size, CHUNK):
                yield index, begin, min(begin + CHUNK, size), place + begin

    @functools.cached_property
    def n_chunks(self) -> int:
        return sum(-(-size // CHUNK) for size in self.sizes)

    @property
    def gradient_bytes(self) -> int:
        """The size of all gradients, each padded like its parameter. Without `gradients`: 4 or 2 bytes per value."""
        if self.gradients is not None:
            return ITEM_BYTES[self.gradients] * self.total
        return 4 * self.total - 2 * self.total_half

    def gradient_dtype(self, half: bool) -> DType:
        """Return the dtype of a parameter's gradient. `half`: whether the parameter is stored in 16 bits."""
        return self.gradients or (self.half if half else "float32")


@dataclass(frozen=True)
class _BatchedWork(Work):
    """Base class for operations on all parameters at once.

    The kernel gets the gradients' addresses from `table` (see `Parameters`), so gradients are not operands, and `bytes`
    adds their size."""

    parameters: Parameters

    def array(self, name: str) -> Array:
        """Return an operand's shape and dtype."""
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
    """SGD with momentum for every parameter: v = momentum * v - learning_rate * g; w += v; 16-bit weights = rounded w.

    Here g = gradient / scale + weight_decay * w. If `dynamic` is false, chunks with gradients that are not finite are
    counted in state[OVERFLOWS], and the w and v of such gradients do not change. If `dynamic` is true, CheckFinite has
    counted them before, and with any overflow nothing changes. `bytes` includes the 16-bit weights."""

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
    """flat = gradient * factor in `dtype`, each parameter at its place. The padding between places does not change."""

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
    """Adjustment of a dynamic loss scale after the update.

    On overflow the scale is halved (not below 1) and the step counts as skipped. After `interval` good steps in a row
    it is doubled (not above 2^24). Then state[OVERFLOWS] = 0.

    Source: P. Micikevicius et al., "Mixed Precision Training", 2018, section 3.2."""

    roles = updates("state")
    numbers = ("interval",)
    interval: int

    def array(self, name: str) -> Array:
        return _STATE
