"""Biases of matrices and of maps, row by row."""

import functools

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.elementwise import add_into, relu_into
from tcbench.engine.accelerators.cpu.reference.half import load
from tcbench.engine.accelerators.cpu.threads import Array, by_chunks
from tcbench.engine.work import AddBias, AddBiasRelu, BiasGradient

CHUNK = 1 << 17
"""Values that one thread goes over at a time."""


def _rows_at_once(size: int, rows: int) -> int:
    """Rows that have at most CHUNK values, where one has no more."""
    return max(1, CHUNK // max(1, size // max(1, rows)))


def add(work: AddBias | AddBiasRelu, y: Array, b: Array, *, relu: bool = False) -> None:
    """See AddBias."""
    shaped = b if work.pixels == 1 else b[:, None]

    def compute(part: Array) -> None:
        add_into(part, shaped, part)
        if relu:
            relu_into(part, part)

    by_chunks(compute, _rows_at_once(y.size, work.n), y)


add_relu = functools.partial(add, relu=True)


def gradient(work: BiasGradient, gy: Array, gb: Array) -> None:
    """Each slice is summed by one thread, part by part in the same order whatever their number."""
    rows = work.n // work.slices
    axes = 0 if work.pixels == 1 else (0, 2)

    def compute(index: int) -> None:
        gb[index] = 0
        for begin, end in threads.spans(rows, _rows_at_once(gy.size // work.slices, rows)):
            part = gy[index * rows + begin : index * rows + end]
            gb[index] += load(part, "bias.gy").sum(axis=axes, dtype=gb.dtype)

    threads.run(compute, range(work.slices))
