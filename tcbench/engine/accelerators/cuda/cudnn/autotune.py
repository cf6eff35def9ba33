"""Finds the fastest of several plans by running them.

Owns the protocol of timing. What it runs on comes from the caller: buffers, workspace and a clock (`CupyWorkbench`)."""

import dataclasses
import functools
import logging
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (with it NumPy knows bfloat16 by name)
import numpy as np

from tcbench.engine.work import Work

_LOG = logging.getLogger(__name__)

REPEATS = 5
RUNS_PER_REPEAT = 4
"""Back to back between two events, so that the host's time to launch hides behind the device's."""
TRIAL_REPEATS = 2
"""Repeats that warm a plan up and tell whether it is worth more: the better of them, since one may be an outlier."""
LOOK_S = 10e-3
"""Device time of a look at a plan, about: a plan that takes a millisecond or more is run fewer times."""
LEAST_RUNS = 3
"""Timed runs of a plan that is not hopeless, however long one takes."""
GAP_HIDES_S = 0.2e-3
"""Device time from which a single run between two events shows a plan's time well enough: the gap before its launch is
a few per cent of it."""
HOPELESS = 2.0
"""A plan whose better look takes this many times the best plan's time is not timed further: the slowest would else take
most of the time of tuning."""


@dataclass(frozen=True)
class PlanTime:
    """A plan and the median device time of one run."""

    plan: str
    workspace_bytes: int
    time_s: float


_TILE_VALUES = 1 << 20


@functools.cache
def _tile(dtype: np.dtype[Any], n_values: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Floats between 0.5 and 1.5: valid as a variance, far from overflow in half precision. Of a mask 0s and 1s."""
    rng = np.random.default_rng(0)
    # Not by `kind == "f"`: bfloat16's is V.
    return (rng.integers(0, 2, n_values) if dtype.kind in "bui" else rng.uniform(0.5, 1.5, n_values)).astype(dtype)


class CupyWorkbench:
    """Buffers from a memory pool of its own, for timing, and CUDA events on one stream, which is current where it is
    used. They stay valid until it is asked again."""

    def __init__(self, stream: Any) -> None:
        import cupy

        self._cupy = cupy
        self._stream = stream
        self._pool = cupy.cuda.MemoryPool()
        self._buffers: list[Any] = []
        self._begin, self._end = cupy.cuda.Event(), cupy.cuda.Event()

    def addresses(self, work: Work) -> Sequence[int]:
        """Device addresses of buffers for the work's operands, in order, filled with harmless random values."""
        self._buffers = [self._buffer(operand.shape, operand.dtype) for operand in work.operands]
        return [int(buffer.data.ptr) for buffer in self._buffers]

    def _buffer(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Random values, repeated: copies alone, since CuPy's own kernels would need cuRAND and CUDA's headers."""
        buffer = self._empty(shape, dtype)
        tile = _tile(np.dtype(dtype), min(buffer.size, _TILE_VALUES))
        filled, total = tile.nbytes, buffer.nbytes
        # All on one stream: CuPy's `copy_from_host` uses the legacy stream, which ours does not wait for.
        buffer.data.copy_from_host_async(tile.ctypes.data, filled, self._stream)
        while filled < total:
            n_bytes = min(filled, total - filled)
            (buffer.data + filled).copy_from_device_async(buffer.data, n_bytes, self._stream)
            filled += n_bytes
        return buffer

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        with self._cupy.cuda.using_allocator(self._pool.malloc):
            return self._cupy.ndarray(shape, dtype)

    def workspace(self, n_bytes: int) -> int:
        """Device address of so many bytes."""
        self._buffers.append(self._empty((max(n_bytes, 1),), "uint8"))
        return int(self._buffers[-1].data.ptr)

    def times_s(self, run: Callable[[], None], repeats: int, runs_per_repeat: int) -> Sequence[float]:
        """Device time of one run, once per repeat."""
        times = []
        for _ in range(repeats):
            self._begin.record(self._stream)
            for _ in range(runs_per_repeat):
                run()
            self._end.record(self._stream)
            self._end.synchronize()
            milliseconds = self._cupy.cuda.get_elapsed_time(self._begin, self._end)
            times.append(milliseconds * 1e-3 / runs_per_repeat)
        return times

    def release(self) -> None:
        """Give all of that back to the device."""
        self._buffers = []
        self._pool.free_all_blocks()


def fastest(
    plans: Sequence[tuple[str, int, Callable[[], None] | float]], bench: CupyWorkbench
) -> tuple[int, tuple[PlanTime, ...]]:
    """Index of the plan with the least median time, and the times of all that ran, in order. `plans`: tag, workspace in
    bytes, and what runs it once, or the time that it took before. Of equals the earlier wins. A plan that fails to run
    is left out; raises the last failure when all do."""
    timed: list[PlanTime] = []
    best: tuple[float, int] | None = None
    failure: Exception | None = None
    for index, (plan, workspace_bytes, run) in enumerate(plans):
        try:
            if not callable(run):
                time_s = run
            else:
                run()  # loads its kernels
                time_s = min(bench.times_s(run, TRIAL_REPEATS, 1))
                if time_s < GAP_HIDES_S:
                    time_s = min(bench.times_s(run, TRIAL_REPEATS, RUNS_PER_REPEAT))
                if best is None or time_s < HOPELESS * best[0]:
                    time_s = statistics.median(bench.times_s(run, *_look(time_s)))
        except RuntimeError as error:
            _LOG.info("plan %s does not run and is left out: %s", plan, error)
            failure = error
            continue
        timed.append(PlanTime(plan, workspace_bytes, time_s))
        if best is None or time_s < best[0]:
            best = (time_s, index)
    if best is None:
        raise failure or ValueError("there is no plan to time")
    return best[1], tuple(timed)


def of_both(timed: Sequence[PlanTime], other: Sequence[PlanTime]) -> tuple[PlanTime, ...]:
    """Return the lesser of two processes' times of each plan that the first timed."""
    times_s = {plan.plan: plan.time_s for plan in other}
    return tuple(dataclasses.replace(plan, time_s=min(plan.time_s, times_s.get(plan.plan, math.inf))) for plan in timed)


def _look(time_s: float) -> tuple[int, int]:
    """Return the repeats and the runs per repeat of a full look at a plan that takes about so long."""
    runs = LOOK_S / max(time_s, 1e-9)
    if runs >= REPEATS:
        return REPEATS, min(RUNS_PER_REPEAT, int(runs / REPEATS))
    return max(LEAST_RUNS, int(runs)), 1
