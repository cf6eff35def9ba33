"""The arrays of a piece of work as the plain operations see them, and the table of these operations.

16-bit values are widened to float32, computed in it and rounded once when they are written; float32 and float64 are
computed as they are. With `exact` everything is computed in float64: other implementations are checked against that."""

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
"""Values of an operand that one thread takes at a time. Temporaries of this size stay in a second-level cache; with
shorter ones threads wait for the interpreter lock too often."""
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_EXPONENTS = {np.dtype(np.float16): 0x7C00, np.dtype(ml_dtypes.bfloat16): 0x7F80}
"""The exponent bits of each 16-bit dtype. They are all set in infinity and in NaN, and in nothing else."""
_COMPUTED_IN: dict[np.dtype[Any], np.dtype[Any]] = {
    **dict.fromkeys(_EXPONENTS, _SINGLE),
    _SINGLE: _SINGLE,
    _DOUBLE: _DOUBLE,
}

Convert = Callable[[Array, Array], object]
"""Copies an array into another one of another dtype."""
Operation = Callable[[Any, "Operands"], None]
OPERATIONS: dict[type[Work], Operation] = {}
"""What computes each kind of work."""


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that values of `dtype` are computed in. Raises ValueError for one that no operation supports."""
    try:
        return _COMPUTED_IN[dtype]
    except KeyError:
        raise ValueError(f"on the host: expected float16, bfloat16, float32 or float64, got {dtype}") from None


def assign(source: Array, target: Array) -> None:
    """Copy `source` into `target`, rounded to its dtype."""
    target[...] = source


class Operands:
    """The arrays of a piece of work by operand name.

    An attribute is the operand in the dtype that it is computed in. Where that is its stored dtype, the attribute is
    the stored array itself, so an operand that is updated can be computed in place.
    """

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
        """Return an array to compute an operand in before it is written: the stored array itself where it has the
        dtype, else a new one."""
        stored = self.raw(name)
        dtype = _DOUBLE if self._exact else compute_dtype(stored.dtype)
        return stored if stored.dtype == dtype else np.empty(stored.shape, dtype)

    def write(self, **values: Any) -> None:
        """Store each value in the operand of its name, rounded once to the operand's dtype."""
        for name, value in values.items():
            stored = self.raw(name)
            if value is stored:
                continue
            rounds = isinstance(value, np.ndarray) and value.dtype != stored.dtype
            (self._convert if rounds else assign)(value, stored)

    def with_arrays(self, stored: Mapping[str, Array]) -> Operands:
        """Return the same operands with these arrays in addition or instead."""
        return Operands({**self._stored, **stored}, self._exact, self._convert)

    def indexed(self, view: Callable[[Array], Array]) -> Operands:
        """Return the same operands, each as the view of it that a function returns."""
        return self.with_arrays({name: view(array) for name, array in self._stored.items()})

    def cut(self, names: str, rows: int | None = None) -> list[Operands]:
        """Return parts with some rows of the named operands; all others are whole in each part.

        Each part but the last has `rows` rows; without that, as many as hold CHUNK values of the first operand.
        """
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
    """Register a function as the operation of these kinds of work. With `cut` it is called for parts of the operands
    named there, on several threads."""

    def register(operation: Operation) -> Operation:
        def in_parts(work: Work, a: Operands) -> None:
            parts = a.cut(cut)
            if len(parts) == 1:
                operation(work, a)
            else:
                threads.run(lambda part: operation(work, part), parts)

        OPERATIONS.update(dict.fromkeys(kinds, in_parts if cut else operation))
        return operation

    return register


def make_operands(work: Work, *arrays: Array, exact: bool = False, convert: Convert = assign) -> Operands:
    """Return the operands of a piece of work, whose arrays are in the order of `work.operands`."""
    shapes = zip(_shapes(work), arrays, strict=True)
    return Operands({name: array.reshape(shape) for (name, shape), array in shapes}, exact, convert)


def make_launch(work: Work, *arrays: Array, exact: bool = False, convert: Convert = assign) -> Callable[[], None]:
    """Return the launch of a piece of work on arrays in the order of its operands."""
    return functools.partial(run, work, make_operands(work, *arrays, exact=exact, convert=convert))


def compute(work: Work, *arrays: Array) -> None:
    """Do a piece of work on arrays in the order of its operands."""
    make_launch(work, *arrays)()


def run(work: Work, a: Operands) -> None:
    """Do a piece of work. Values that overflow, or are not a number, give no warning."""
    with np.errstate(all="ignore"):
        OPERATIONS[type(work)](work, a)


@functools.cache
def _shapes(work: Work) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((operand.name, operand.shape) for operand in work.operands)


def is_finite(stored: Array) -> Array:
    """Return `numpy.isfinite`, which takes 2 ns for each 16-bit value, 10 times as long as this."""
    exponent = _EXPONENTS.get(stored.dtype)
    if exponent is None:
        return np.isfinite(stored)
    return np.asarray(stored.view(np.uint16) & exponent != exponent)


def where_set(mask: Array, values: Array) -> Array:
    """Return the values where `mask` is true and 0 elsewhere. `numpy.where` takes 10 times as long on random masks, and
    a product with the mask would make NaN of infinities."""
    bits = mask.view(np.int8).astype(f"i{values.itemsize}")
    return np.asarray((-bits & values.view(bits.dtype)).view(values.dtype))
