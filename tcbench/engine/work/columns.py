"""Concatenation along channels, one part at a time, as copies of matrix columns.

In NCHW a row is an image and the columns are the pixels of its channels; in NHWC a row is a pixel and the columns are
channels."""

from dataclasses import dataclass

from tcbench.engine.work.base import Array, DType, Work, reads, updates, writes


@dataclass(frozen=True)
class _ColumnWork(Work):
    """Base class for copies of the columns `first` to `first + width` of a matrix (`rows`, `total`)."""

    numbers = ("rows", "width", "total", "first")
    rows: int
    width: int
    total: int
    first: int
    dtype: DType

    def array(self, name: str) -> Array:
        return (self.rows, self.total if name in ("y", "gy") else self.width), self.dtype

    @property
    def bytes(self) -> int:
        """The bytes read and written for the copied columns; the other columns are not accessed."""
        return 2 * min(operand.bytes for operand in self.operands)


class PutColumns(_ColumnWork):
    """y[:, first : first + width] = x."""

    roles = reads("x") | updates("y")


class TakeColumns(_ColumnWork):
    """gx = gy[:, first : first + width]."""

    roles = reads("gy") | writes("gx")
