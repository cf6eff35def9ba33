"""Of oneDNN's implementations of a piece of work the fastest here, by a few runs when it is first asked for."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tcbench.accelerators.cpu.onednn.library import Array, Engine, Unimplemented
from tcbench.work import Operand

RUNS = 3
"""Timed runs of each in turn, after one that is not; the least counts, since other work on the processor only adds."""
MARGIN = 0.95
HOPELESS = 1.3
"""A way that has taken so many times as long as the best so far is not run again: on large images most are so."""
MOST = 2
"""Implementations that are considered."""
NUMPY = "numpy"
"""In a record's plans: work that NumPy does."""
REFERENCE = ("ref", "simple")
SLOWER = (*REFERENCE, "nspc_bnorm", "ncsp_bnorm", "x64:gemm")
"""Implementations in plain C++, or by way of a matrix of all windows."""


@dataclass(frozen=True)
class Choice:
    """The way chosen for a piece of work. `bind`: of its arrays the launch on them, to be made as often as one likes.
    `name`: oneDNN's of the implementation, or NUMPY."""

    bind: Callable[..., Callable[[], None]]
    name: str


def descriptions(engine: Engine, dtype: str, describe: Callable[[str], int], *, most: int = MOST) -> tuple[int, ...]:
    """oneDNN's implementations of what `describe` describes in a dtype, its preferred first, without the slower kind
    where it has others. Where it has none in a 16-bit dtype but its reference, which takes seconds for a convolution,
    those in float32, around which arrays are converted. Raises Unimplemented where there is none at all."""
    for wanted in dict.fromkeys((dtype, "float32")):
        try:
            described = [describe(wanted)]
        except Unimplemented:
            continue
        if engine.implementation(described[0]).startswith(REFERENCE) and wanted != "float32":
            continue
        while len(described) < most:
            other = describe(wanted)
            if not all(engine.other_implementation(other) for _ in described):
                break
            if engine.implementation(other).startswith(SLOWER):
                break
            described.append(other)
        return tuple(described)
    raise Unimplemented(dtype)


class Candidate(Protocol):
    """A way to do a piece of work. `name`: oneDNN's of the implementation, or NUMPY."""

    @property
    def name(self) -> str: ...

    def bind(self, *arrays: Array) -> Callable[[], None]:
        """The launch on these arrays, whose memory the caller keeps."""
        ...


def fastest(primitives: Sequence[Candidate], operands: Sequence[Operand]) -> Choice:
    """The one that takes the least time on a work's operands. oneDNN's preferred one comes first, and stays unless
    another is faster by more than what a busy machine adds."""
    best = primitives[0]
    if len(primitives) > 1:
        # Filled: pages that nobody wrote are all the same one, which is always in the cache.
        arrays = [np.full(operand.size, 0, operand.dtype) for operand in operands]
        launches = [primitive.bind(*arrays) for primitive in primitives]
        with np.errstate(all="ignore"):  # The arrays hold zeros.
            times = _least([functools.partial(_time, launch) for launch in launches])
        if min(times) <= MARGIN * times[0]:
            best = primitives[int(np.argmin(times))]
    return Choice(best.bind, best.name)


def _least(runs: Sequence[Callable[[], float]]) -> list[float]:
    """The least seconds of each, run in turns."""
    for run in runs:
        run()
    times = [math.inf for _ in runs]
    left: Sequence[int] = range(len(runs))
    for _ in range(RUNS):
        for i in left:
            times[i] = min(times[i], runs[i]())
        left = [i for i in left if times[i] <= HOPELESS * min(times)]
    return times


def _time(launch: Callable[[], None]) -> float:
    """As within a step: the other threads have had nothing to do for a while, and sleep; the second-level cache holds
    something else."""
    _between.fill(0)
    start = time.perf_counter()
    launch()
    return time.perf_counter() - start


_between = np.empty(1 << 20, np.float32)
