"""`Operands`, through which NumPy operations read and write arrays, and `OPERATIONS`, the table of all operations.

16-bit values are converted to float32, and results are rounded once when they are written. float32 and float64 values
are computed in their own dtype. With `exact` everything is computed in float64, as a reference for implementations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.threads import Array
from tcbench.engine.work import Work

CHUNK = 1 << 17
"""Values of an operand that one thread processes at a time. Temporaries of this size stay in the second-level cache;
with smaller chunks threads wait for the interpreter lock too often."""
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_EXPONENTS = {np.dtype(np.float16): 0x7C00, np.dtype(ml_dtypes.bfloat16): 0x7F80}
"""The exponent bits of each 16-bit dtype. They are all set in infinity and NaN only."""
_COMPUTED_IN: dict[np.dtype[Any], np.dtype[Any]] = {
    **dict.fromkeys(_EXPONENTS, _SINGLE),
    _SINGLE: _SINGLE,
    _DOUBLE: _DOUBLE,
}

Convert = Callable[[Array, Array], object]
"""A function that copies an array to another one and converts the dtype."""
Operation = Callable[[Any, "Operands"], None]
"""A function that computes an operation on its operands."""
OPERATIONS: dict[type[Work], Operation] = {}
"""The NumPy operation for each kind of work."""


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which values of `dtype` are computed. Raises ValueError if no operation supports it."""
    try:
        return _COMPUTED_IN[dtype]
    except KeyError:
        raise ValueError(f"the CPU cannot compute in {dtype}: expected float16, bfloat16, float32 or float64") from None


def assign(source: Array, target: Array) -> None:
    """Copy `source` into `target`, rounded to its dtype."""
    target[...] = source


class Operands:
    """The arrays of an operation by operand name.

    Each operand is an attribute: its array in the dtype of computation. If that is the stored dtype, the attribute is
    the stored array itself, so that "inout" operands can be updated in place."""

    def __init__(self, stored: Mapping[str, Array], exact: bool = False, convert: Convert = assign) -> None:
        self._stored, self._exact, self._convert = stored, exact, convert

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def __getattr__(self, name: str) -> Array:
        stored, wide = self.raw(name), self.result(name)
        if wide is not stored:
            self._convert(stored, wide)
        return wide

    def raw(self, name: str) -> Array:
        """Return the array as it is stored."""
        return self._stored[name]

    def result(self, name: str) -> Array:
        """Return an array in which to compute an operand before `write`. It is the stored array itself if that has the
        dtype of computation, else a new array."""
        stored = self.raw(name)
        dtype = _DOUBLE if self._exact else compute_dtype(stored.dtype)
        return stored if stored.dtype == dtype else np.empty(stored.shape, dtype)

    def write(self, **values: Any) -> None:
        """Store each keyword argument in the operand of its name, rounded once to the operand's dtype."""
        for name, value in values.items():
            stored = self.raw(name)
            if value is stored:
                continue
            rounds = isinstance(value, np.ndarray) and value.dtype != stored.dtype
            (self._convert if rounds else assign)(value, stored)

    def with_arrays(self, stored: Mapping[str, Array]) -> Operands:
        """Return the operands with these arrays added or replaced."""
        return Operands({**self._stored, **stored}, self._exact, self._convert)

    def indexed(self, view: Callable[[Array], Array]) -> Operands:
        """Return the operands with `view` applied to each array."""
        return self.with_arrays({name: view(array) for name, array in self._stored.items()})

    def cut(self, names: str, rows: int | None = None) -> list[Operands]:
        """Return parts with some rows of the operands in `names` (separated by spaces) and the other operands whole.

        Each part but the last has `rows` rows; by default as many as hold CHUNK values of the first operand."""
        first = self.raw(names.split()[0])
        rows = rows or max(1, CHUNK * len(first) // max(1, first.size))
        if len(first) <= rows:
            return [self]
        arrays = {name: self.raw(name) for name in names.split() if name in self}
        return [
            self.with_arrays({name: array[begin : begin + rows] for name, array in arrays.items()})
            for begin in range(0, len(first), rows)
        ]


def computes(*kinds: type[Work], cut: str = "") -> Callable[[Operation], Operation]:
    """Return a decorator that registers a function as the operation for these kinds of work.

    With `cut`, names of operands separated by spaces, it is called for parts of these operands on several threads."""

    def register(operation: Operation) -> Operation:
        """Register an operation for these kinds of work, cut into parts for the threads if `cut` is given."""

        def in_parts(work: Work, a: Operands) -> None:
            """Run the operation on each part of its operands, on several threads if there are several parts."""
            parts = a.cut(cut)
            if len(parts) == 1:
                operation(work, a)
            else:
                threads.run(lambda part: operation(work, part), parts)

        OPERATIONS.update(dict.fromkeys(kinds, in_parts if cut else operation))
        return operation

    return register


def make_operands(work: Work, *arrays: Array, exact: bool = False, convert: Convert = assign) -> Operands:
    """Return the operands of an operation from arrays in the order of `work.operands`."""
    shapes = zip(_shapes(work), arrays, strict=True)
    return Operands({name: array.reshape(shape) for (name, shape), array in shapes}, exact, convert)


def make_launch(work: Work, *arrays: Array, exact: bool = False, convert: Convert = assign) -> Callable[[], None]:
    """Return a function that computes an operation on arrays in the order of its operands."""
    return functools.partial(run, work, make_operands(work, *arrays, exact=exact, convert=convert))


def compute(work: Work, *arrays: Array) -> None:
    """Compute an operation on arrays in the order of its operands."""
    make_launch(work, *arrays)()


def run(work: Work, a: Operands) -> None:
    """Compute an operation on its operands, without warnings about overflow or NaN."""
    with np.errstate(all="ignore"):
        OPERATIONS[type(work)](work, a)


@functools.cache
def _shapes(work: Work) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the name and shape of each operand."""
    return tuple((operand.name, operand.shape) for operand in work.operands)


def is_finite(stored: Array) -> Array:
    """Return `numpy.isfinite(stored)`, but ten times as fast for 16-bit dtypes."""
    exponent = _EXPONENTS.get(stored.dtype)
    if exponent is None:
        return np.isfinite(stored)
    return np.asarray(stored.view(np.uint16) & exponent != exponent)


def where_set(mask: Array, values: Array) -> Array:
    """Return the values where `mask` is true and 0 elsewhere.

    `numpy.where` is ten times slower on random masks, and multiplication by the mask would turn infinities into NaN."""
    bits = mask.view(np.int8).astype(f"i{values.itemsize}")
    return np.asarray((-bits & values.view(bits.dtype)).view(values.dtype))
