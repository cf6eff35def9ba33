"""A piece of work: its operands, its floating-point operations, its bytes, its key."""

import dataclasses
import functools
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, get_args

Layout = Literal["NCHW", "NHWC"]
DType = Literal["float16", "bfloat16", "float32", "float64"]
"""Types that are stored. float64 is for references: no rung selects it, and no GPU plan or kernel is written for it."""
Half = Literal["float16", "bfloat16"]
"""Types of 16 bits: stored so, computed and accumulated in float32."""
HALVES: tuple[Half, ...] = get_args(Half)
Math = Literal["strict", "tf32"]
"""Arithmetic of float32 convolutions: in float32, or with inputs rounded to TensorFloat-32. What has 16 bits always
computes in float32 on 16-bit inputs."""
Role = Literal["in", "out", "inout"]
Kind = Literal["graph", "call", "kernel", "solver"]
"""Carried out by a cuDNN graph, one of cuDNN's older calls, a kernel of ours, cuBLAS and cuSOLVER."""
Array = tuple[tuple[int, ...], str]
"""Shape and dtype."""

ITEM_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "bool": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}


def check_dtype(dtype: str) -> None:
    """Each dtype computes in a way of its own: no other may be taken for one of them. Raises ValueError."""
    if dtype not in get_args(DType):
        raise ValueError(f"expected one of {', '.join(get_args(DType))}, got {dtype}")


def wide(dtype: DType) -> DType:
    """The dtype of statistics, biases and losses of arrays of `dtype`."""
    return "float64" if dtype == "float64" else "float32"


def stored(layout: Layout, n: int, c: int, h: int, w: int) -> tuple[int, int, int, int]:
    """The shape of an array of these logical sizes."""
    return (n, c, h, w) if layout == "NCHW" else (n, h, w, c)


def round_up(size: int, multiple: int) -> int:
    """The least multiple that is not below the size."""
    return -(-size // multiple) * multiple


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


def reads(*names: str) -> dict[str, Role]:
    """Operands that are read, by name."""
    return dict.fromkeys(names, "in")


def writes(*names: str) -> dict[str, Role]:
    """Operands that are written."""
    return dict.fromkeys(names, "out")


def updates(*names: str) -> dict[str, Role]:
    """Operands that are read and written."""
    return dict.fromkeys(names, "inout")


@dataclass(frozen=True)
class Work:
    """A piece of work. Arrays are handed over in the order of `operands`. A class declares `roles` (its operands by
    name, in order) and `numbers` (attributes that a kernel is handed, such as "size" or "conv.n"); `array` gives an
    operand's shape and dtype. What it does, its class's docstring says. Its `name`, which kernels, caches and records
    use, is the class's: "conv_fprop" of ConvFprop."""

    name: ClassVar[str]
    interned: ClassVar[Callable[..., Self]]
    """Returns the one shared object with these field values, so that accelerators can look up plans by identity."""
    kind: ClassVar[Kind] = "kernel"
    roles: ClassVar[Mapping[str, Role]]
    numbers: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.interned = functools.cache(cls)  # type: ignore[assignment]
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def array(self, name: str) -> Array:
        """Shape and dtype of an operand."""
        raise NotImplementedError

    @property
    def operands(self) -> tuple[Operand, ...]:
        return tuple(Operand(name, *self.array(name), role) for name, role in self.roles.items())

    @property
    def scalars(self) -> tuple[int | float, ...]:
        """Numbers that follow the operands in a kernel's argument list: int as long long, float as float."""
        # A class may have its annotations as text.
        floats = {field.name for field in dataclasses.fields(self) if field.type in (float, "float")}
        values = ((name, operator.attrgetter(name)(self)) for name in self.numbers)
        return tuple(float(value) if name in floats else value for name, value in values)

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
        """The work in a few words, for people: its fields, but for a default."""
        shown = (getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default)
        return " ".join([self.name, *map(str, shown)])

    @property
    def key(self) -> str:
        """The same for the same work in every process and version of Python."""
        return json.dumps({"work": self.name, **dataclasses.asdict(self)}, sort_keys=True, separators=(",", ":"))
