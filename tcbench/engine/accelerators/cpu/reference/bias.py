"""Biases of matrices and of maps, row by row."""

from __future__ import annotations

import functools

import numpy as np

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.elementwise import relu_into
from tcbench.engine.accelerators.cpu.reference.half import convert, is_widened, load
from tcbench.engine.accelerators.cpu.threads import Array, scratch
from tcbench.engine.work import AddBias, AddBiasRelu, BiasGradient

CHUNK = 1 << 17
"""Values that one thread goes over at a time."""


def _rows(size: int, rows: int) -> list[tuple[int, int]]:
    """Spans of rows, each of at most CHUNK values where a row has no more."""
    return threads.spans(rows, max(1, CHUNK // max(1, size // max(1, rows))))


def add(work: AddBias | AddBiasRelu, y: Array, b: Array, *, relu: bool = False) -> None:
    """See AddBias."""
    shaped = b if work.pixels == 1 else b[:, None]

    def compute(span: tuple[int, int]) -> None:
        part = y[slice(*span)]
        if is_widened(y.dtype):
            total = scratch("bias.total", part.shape, np.float32)
            np.add(load(part, "bias.y"), shaped, out=total)
            convert(total, part)
        else:
            np.add(part, shaped, out=part)
        if relu:
            relu_into(part, part)

    threads.run(compute, _rows(y.size, work.n))


add_relu = functools.partial(add, relu=True)
"""See AddBiasRelu."""


def gradient(work: BiasGradient, gy: Array, gb: Array) -> None:
    """See BiasGradient. Each slice is summed by one thread, part by part in the same order whatever their number."""
    rows = work.n // work.slices
    axes = 0 if work.pixels == 1 else (0, 2)

    def compute(index: int) -> None:
        gb[index] = 0
        for begin, end in _rows(gy.size // work.slices, rows):
            part = gy[index * rows + begin : index * rows + end]
            gb[index] += load(part, "bias.gy").sum(axis=axes, dtype=gb.dtype)

    threads.run(compute, range(work.slices))
