"""Columns of matrices, copied."""

import numpy as np

from tcbench.engine.accelerators.cpu.threads import Array, by_chunks
from tcbench.engine.work import PutColumns, TakeColumns

CHUNK = 1 << 19
"""Values that one thread copies at a time."""


def put(work: PutColumns, x: Array, y: Array) -> None:
    """See PutColumns."""
    _copy(work, x, y[:, work.first : work.first + work.width])


def take(work: TakeColumns, gy: Array, gx: Array) -> None:
    """See TakeColumns."""
    _copy(work, gy[:, work.first : work.first + work.width], gx)


def _copy(work: PutColumns | TakeColumns, source: Array, target: Array) -> None:
    by_chunks(lambda part, out: np.copyto(out, part), max(1, CHUNK // work.width), source, target)
