"""Timing of cuDNN's plans on the GPU, to choose the fastest.

Owns the timing protocol (`fastest`) and the buffers and clock that it uses (`CupyWorkbench`)."""

import dataclasses
import functools
import logging
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from tcbench.engine.work import Work

_LOG = logging.getLogger(__name__)

REPEATS = 5
RUNS_PER_REPEAT = 4
"""Runs back to back between two events, so that the device's work hides the launch overhead."""
TRIAL_REPEATS = 2
"""First repeats of a plan, which warm it up. Their minimum decides whether the plan is timed further."""
LOOK_S = 10e-3
"""The approximate device time spent on timing a plan. Plans of a millisecond or more get fewer runs."""
LEAST_RUNS = 3
"""The fewest timed runs of a plan that is timed further, however long a run takes."""
GAP_HIDES_S = 0.2e-3
"""The device time from which a single run between two events is accurate enough: the launch gap is a few per cent."""
HOPELESS = 2.0
"""Plans that take this many times as long as the best are not timed further: they would take most of the time."""


@dataclass(frozen=True)
class PlanTime:
    """A plan and the median device time of one run."""

    plan: str
    workspace_bytes: int
    time_s: float


_TILE_VALUES = 1 << 20


@functools.cache
def _tile(dtype: np.dtype[Any], n_values: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Return random values: 0 and 1 for masks, else between 0.5 and 1.5 (positive as variances, no fp16 overflow)."""
    rng = np.random.default_rng(0)
    # Not `kind == "f"`: the kind of bfloat16 is "V".
    return (rng.integers(0, 2, n_values) if dtype.kind in "bui" else rng.uniform(0.5, 1.5, n_values)).astype(dtype)


class CupyWorkbench:
    """Buffers and CUDA events for timing plans on one stream, which must be current.

    Buffers come from a separate memory pool and stay valid until `addresses` or `release` is called."""

    def __init__(self, stream: Any) -> None:
        import cupy

        self._cupy = cupy
        self._stream = stream
        self._pool = cupy.cuda.MemoryPool()
        self._buffers: list[Any] = []
        self._begin, self._end = cupy.cuda.Event(), cupy.cuda.Event()

    def addresses(self, work: Work) -> Sequence[int]:
        """Return device addresses of buffers for the operation's operands, in order, filled with random values."""
        self._buffers = [self._buffer(operand.shape, operand.dtype) for operand in work.operands]
        return [int(buffer.data.ptr) for buffer in self._buffers]

    def _buffer(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a buffer filled with a repeated tile of random values. Uses copies only: CuPy's own kernels would need
        cuRAND and CUDA's headers."""
        buffer = self._empty(shape, dtype)
        tile = _tile(np.dtype(dtype), min(buffer.size, _TILE_VALUES))
        filled, total = tile.nbytes, buffer.nbytes
        # Not CuPy's `copy_from_host`: it uses the legacy stream, for which this stream does not wait.
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
        """Return the device address of a new buffer of `n_bytes`."""
        self._buffers.append(self._empty((max(n_bytes, 1),), "uint8"))
        return int(self._buffers[-1].data.ptr)

    def times_s(self, run: Callable[[], None], repeats: int, runs_per_repeat: int) -> Sequence[float]:
        """Return the device time of one run for each repeat."""
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
        """Free all buffers and return their memory to the device."""
        self._buffers = []
        self._pool.free_all_blocks()


def fastest(
    plans: Sequence[tuple[str, int, Callable[[], None] | float]], bench: CupyWorkbench
) -> tuple[int, tuple[PlanTime, ...]]:
    """Return the index of the plan with the least median time, and the times of all plans that ran, in order.

    `plans`: tag, workspace in bytes, and a function that runs the plan once, or its time from an earlier process.
    The first of equally fast plans wins. Plans that fail to run are skipped; if all fail, the last error is raised."""
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
                    time_s = statistics.median(bench.times_s(run, *_repeats_and_runs(time_s)))
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


def least_times(timed: Sequence[PlanTime], other: Sequence[PlanTime]) -> tuple[PlanTime, ...]:
    """Return the plans in `timed`, each with the lesser of its times in `timed` and `other`."""
    times_s = {plan.plan: plan.time_s for plan in other}
    return tuple(dataclasses.replace(plan, time_s=min(plan.time_s, times_s.get(plan.plan, math.inf))) for plan in timed)


def _repeats_and_runs(time_s: float) -> tuple[int, int]:
    """Return how many repeats, and runs per repeat, to time a plan that takes about `time_s`."""
    runs = LOOK_S / max(time_s, 1e-9)
    if runs >= REPEATS:
        return REPEATS, min(RUNS_PER_REPEAT, int(runs / REPEATS))
    return max(LEAST_RUNS, int(runs)), 1
