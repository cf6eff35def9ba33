"""Concatenation of maps along their channels."""

import itertools
import math

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.ops.node import ForwardNode, Variable, Variables, dtype_of
from tcbench.engine.work import Layout


class Concatenation(ForwardNode):
    """The node that concatenates its inputs along the channels."""

    def __init__(self, layout: Layout) -> None:
        self.axis = 1 if layout == "NCHW" else 3

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        """Copy each input into its columns of the output."""
        first = inputs[0]
        shapes = {(*x.shape[: self.axis], *x.shape[self.axis + 1 :]) for x in inputs}
        if len(shapes) > 1 or any(x.ndim != 4 or x.dtype != first.dtype for x in inputs):
            got = ", ".join(f"{x.shape} {x.dtype}" for x in inputs)
            raise ValueError(f"concatenate: expected one dtype, and one shape except for axis {self.axis}, got {got}")
        self.shapes = [x.shape for x in inputs]
        channels = sum(shape[self.axis] for shape in self.shapes)
        y = accelerator.empty((*first.shape[: self.axis], channels, *first.shape[self.axis + 1 :]), first.dtype)
        for x, place in zip(inputs, self.places(), strict=True):
            accelerator.launch(work.PutColumns.interned(*place, dtype_of(x)), x, y)
        return (y,)

    def places(self) -> list[tuple[int, int, int, int]]:
        """Return the place of each input in the output as (rows, width, total width, first column). The output is taken
        as a matrix, as `work.PutColumns` does; widths are numbers of columns."""
        rows = math.prod(self.shapes[0][: self.axis])
        widths = [math.prod(shape[self.axis :]) for shape in self.shapes]
        begins = itertools.accumulate(widths, initial=0)
        return [(rows, width, sum(widths), begin) for width, begin in zip(widths, begins, strict=False)]

    def gradients(self, accelerator: Accelerator, gy: Array) -> tuple[Array, ...]:
        """Copy each input's columns out of gy."""
        parts = tuple(accelerator.empty(shape, gy.dtype) for shape in self.shapes)
        for part, place in zip(parts, self.places(), strict=True):
            accelerator.launch(work.TakeColumns.interned(*place, dtype_of(gy)), gy, part)
        return parts


def concatenate(xs: Variables, *, layout: Layout) -> Variable:
    """Return the concatenation of maps along their channels. Raises ValueError if their sizes or dtypes differ."""
    return Concatenation(layout).apply(xs)[0]
