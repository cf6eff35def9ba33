"""`Work`, the base class of all operations: operands, floating-point operations, bytes and a cache key."""

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
"""Dtypes of stored arrays. float64 is for reference results only: no rung selects it, and no GPU code supports it."""
Half = Literal["float16", "bfloat16"]
"""16-bit dtypes. They are used for storage; computation and accumulation are in float32."""
HALVES: tuple[Half, ...] = get_args(Half)
Math = Literal["strict", "tf32"]
"""Arithmetic of float32 convolutions: float32, or with inputs rounded to TensorFloat-32. Convolutions of 16-bit arrays
always accumulate in float32."""
Role = Literal["in", "out", "inout"]
"""Whether an operation reads an operand, writes it, or does both."""
Kind = Literal["graph", "call", "kernel", "solver"]
"""How a GPU runs the work: a cuDNN graph, a legacy cuDNN call, one of tcbench's kernels, or cuBLAS and cuSOLVER."""
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
    """Raise ValueError if `dtype` is not one of `DType`."""
    if dtype not in get_args(DType):
        raise ValueError(f"expected one of {', '.join(get_args(DType))}, got {dtype}")


def wide(dtype: DType) -> DType:
    """Return the dtype of statistics, biases and losses that belong to arrays of `dtype`."""
    return "float64" if dtype == "float64" else "float32"


def stored(layout: Layout, n: int, c: int, h: int, w: int) -> tuple[int, int, int, int]:
    """Return the shape in memory of an array of logical size (N, C, H, W)."""
    return (n, c, h, w) if layout == "NCHW" else (n, h, w, c)


def round_up(size: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `size`."""
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class Operand:
    """An array that an operation takes: its name, shape, dtype and role. It is C-contiguous."""

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
    """Return the role "in" for each name: operands that are read."""
    return dict.fromkeys(names, "in")


def writes(*names: str) -> dict[str, Role]:
    """Return the role "out" for each name: operands that are written."""
    return dict.fromkeys(names, "out")


def updates(*names: str) -> dict[str, Role]:
    """Return the role "inout" for each name: operands that are read and written."""
    return dict.fromkeys(names, "inout")


@dataclass(frozen=True)
class Work:
    """An operation that a device computes on arrays, which callers pass in the order of `operands`.

    The docstring of a subclass states what it computes. A subclass declares `roles` (its operands by name, in order)
    and `numbers` (attributes that a kernel takes as arguments, such as "size" or "conv.n"), and implements `array`."""

    name: ClassVar[str]
    """The name in kernels, caches and records: the class name in snake case, such as "conv_fprop" for ConvFprop."""
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
        """Return the shape and dtype of an operand."""
        raise NotImplementedError

    @property
    def operands(self) -> tuple[Operand, ...]:
        return tuple(Operand(name, *self.array(name), role) for name, role in self.roles.items())

    @property
    def scalars(self) -> tuple[int | float, ...]:
        """The values of `numbers`, which a kernel takes after its operands: int as long long, float as float."""
        # With postponed annotations, `field.type` is a string.
        floats = {field.name for field in dataclasses.fields(self) if field.type in (float, "float")}
        values = ((name, operator.attrgetter(name)(self)) for name in self.numbers)
        return tuple(float(value) if name in floats else value for name, value in values)

    @property
    def flops(self) -> int:
        """The number of floating-point operations; a multiply-accumulate counts as two."""
        return 0

    @property
    def bytes(self) -> int:
        """The least traffic with device memory: each operand is read or written once, "inout" operands both."""
        return sum(operand.bytes * (2 if operand.role == "inout" else 1) for operand in self.operands)

    @property
    def label(self) -> str:
        """A short description for people: the name and all fields that differ from their defaults."""
        shown = (getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default)
        return " ".join([self.name, *map(str, shown)])

    @property
    def key(self) -> str:
        """A cache key that is stable across processes and Python versions."""
        return json.dumps({"work": self.name, **dataclasses.asdict(self)}, sort_keys=True, separators=(",", ":"))
