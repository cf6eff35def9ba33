"""Concatenation along channels, part by part. Maps are matrices for it: in NCHW a row is an image and its columns are
the channels' pixels, in NHWC a row is a pixel and its columns are channels."""

from dataclasses import dataclass

from tcbench.engine.work.base import Array, DType, Work, reads, updates, writes


@dataclass(frozen=True)
class _ColumnWork(Work):
    """Columns `first` to `first` + `width` of a matrix (rows, `total`)."""

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
        """Of those columns alone."""
        return 2 * min(operand.bytes for operand in self.operands)


class PutColumns(_ColumnWork):
    """y's columns become x."""

    roles = reads("x") | updates("y")


class TakeColumns(_ColumnWork):
    """gx becomes gy's columns."""

    roles = reads("gy") | writes("gx")
