"""Checks of whether a trial's results can be true, made outside of its timed pass.

A result that cannot be true raises ImpossibleError, and the trial fails. What may be intended, such as the same batch
in every step, becomes a doubt in the record. docs/method.md lists the checks and what they cannot see."""

import contextlib
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from os import getpid
from pathlib import Path

from tcbench.core.record import Cell
from tcbench.engine.measure.sensitivity import ImpossibleError, digest, dtype_name, sensitivity_checks, to_host
from tcbench.engine.session import Probed, Probes, Session
from tcbench.hardware import load

now_s = time.monotonic
"""The clock to compare others with. Code that later replaces `time.monotonic` does not change this reference."""
_sleep = time.sleep
_CLOCKS = {name: getattr(time, name) for name in ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")}

_SPARE_S, _SPARE_STEPS, _SPARE_SHARE = 0.25, 16, 0.1
"""Work may be left after the last step for these seconds, for the time of these steps (a prefetching input fills its
queue) or for this share of the timed pass, whichever is longest."""
_SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}


class TrialChecks:
    """The checks of one trial and what they have seen so far. The measuring loop calls the methods in this order.

    `synchronize` waits for all work on the cell's device. Whether background threads and child processes are idle is
    checked only for users' own steps, since tcbench's threads only prefetch input."""

    def __init__(self, session: Session, cell: Cell, synchronize: Callable[[], None]) -> None:
        self._session, self._cell, self._synchronize = session, cell, synchronize
        self._probes = session.probes() if isinstance(session, Probed) else Probes()
        self._digests: dict[str, list[int]] = {"batch": [], "gradients": [], "weights": []}
        self._clocks_s: list[tuple[float, float]] = []
        self._backward_s: deque[float] = deque(maxlen=1000)
        self._settled_after_s: float | None = None

    def after_first_step(self) -> None:
        """Look at the batch and the weights, and wait until background threads are idle."""
        if self._cell.is_own and Path("/proc/self/schedstat").exists():
            self._settled_after_s = idle_after_s(1.0)
        self._look_at("batch", "weights")

    def after_block(self, steps_s: Sequence[float], phases_s: Sequence[Sequence[float]], elapsed_s: float) -> None:
        """Note a block of timed steps, which took `elapsed_s` by tcbench's clock."""
        self._clocks_s.append((sum(steps_s), elapsed_s))
        for phase, times_s in zip(self._session.phases, phases_s, strict=False):
            self._backward_s.extend(times_s if phase.name == "backward" else ())

    def after_timed_pass(self, timed_s: float, steps: int, waited_s: float) -> None:
        """Check the clock, and that no work of the steps is left. Reading the facts waited `waited_s` for such work."""
        if problem := clock_problem(self._clocks_s):
            raise ImpossibleError(f"a patched clock: {problem}")
        began_s = now_s()
        while self._cell.is_own and timed_s + now_s() - began_s < _SPARE_S:  # leave enough work to be noticed
            self._step()
            steps += 1
        timed_s += now_s() - began_s
        spare_s = max(_SPARE_S, _SPARE_SHARE * timed_s, _SPARE_STEPS * timed_s / steps)
        self._session.clock.mark()
        self._session.clock.read()
        began_s = now_s()
        self._synchronize()
        waited_s += now_s() - began_s
        is_idle = self._settled_after_s is None or idle_after_s(spare_s + self._settled_after_s - waited_s) is not None
        if waited_s > spare_s or not is_idle:
            where = "in a thread or child process" if not is_idle else "on a side stream or in a thread"
            raise ImpossibleError(f"work left {where}: it took more than {spare_s:.2g} s after the last step")

    def results(self, warmup_loss: float | None, last_loss: float | None, period: int) -> Mapping[str, str]:
        """Make the remaining checks. Return each check that was made by name, with its doubt or "".

        Further steps are taken only if the loss has not changed, and of an own step that shows its arrays."""
        self._look_at(*self._digests)
        for _ in range(2 if self._probes.gradients else 0):
            self._step()
            self._look_at("gradients")
        if problem := declaration_problem(self._probes, self._cell.batch_size):
            raise ImpossibleError(problem)
        digests = {name: seen for name, seen in self._digests.items() if len(seen) > 1}
        if len({*digests.get("weights", range(2))}) == 1:
            raise ImpossibleError("weights never updated: they have not changed since the first step")
        if any(first == second for first, second in pairwise(digests.get("gradients", ()))):
            raise ImpossibleError("backward skipped in some steps: they leave the gradients of the step before")
        checks = dict.fromkeys(("clock", *digests), "")
        if self._settled_after_s is not None or not self._cell.is_own:
            checks["left work"] = ""
        if len({*digests.get("batch", range(2))}) == 1:
            checks["batch"] = "the same batch in every step"
        if period == 1 and self._backward_s:
            checks["backward"] = alternation(tuple(self._backward_s))
        if last_loss is not None:
            constant = warmup_loss == last_loss and all(self._step() == last_loss for _ in range(4))
            cause = "cached output" if "weights" in checks else "cached output, or no training"
            checks["loss"] = f"{cause}: the loss is {last_loss:g} after every step" * constant
        if self._cell.is_own and self._probes.batch is not None:
            checks |= sensitivity_checks(self._session, self._probes, self._cell.batch_size)
        return checks

    def _look_at(self, *names: str) -> None:
        """Add digests of these arrays, unless all their numbers are 0, as those of cleared gradients are."""
        for name in names:
            if (probe := getattr(self._probes, name)) and (seen := digest(map(to_host, probe()))):
                self._digests[name].append(seen)

    def _step(self) -> float | None:
        """Take a step and return its loss."""
        for phase in self._session.phases:
            phase.run()
        return self._session.facts().loss


def clock_problem(clocks_s: Sequence[tuple[float, float]]) -> str:
    """Return why the clock is wrong, or "". `clocks_s` has each block's time by the session's clock and by tcbench's.

    A clock that shows more time than passed makes no step look faster. All blocks must differ: on a busy machine this
    process may be stopped between the readings of the two clocks."""
    if replaced := [name for name, function in _CLOCKS.items() if getattr(time, name) is not function]:
        return f"other code has replaced time.{replaced[0]}"
    shown_s, real_s = map(sum, zip(*clocks_s, strict=True))
    if real_s - shown_s > 0.002 and all(real - shown > 0.1 * real + 1e-4 for shown, real in clocks_s):
        return f"steps took {shown_s:.3g} s by the session's clock, but {real_s:.3g} s by tcbench's"
    return ""


def idle_after_s(limit_s: float) -> float | None:
    """Return the seconds after which other threads and child processes are idle, or None if the limit ends before.

    Idle means less than 20% of one core during 20 ms. Time that threads wait for a core counts as work."""
    began_s = at_s = now_s()
    before = _background_ns()
    while True:
        _sleep(0.02)
        window_s, after = now_s() - at_s, _background_ns()
        if sum(max(0, ns - before.get(thread, 0)) for thread, ns in after.items()) < 0.2e9 * window_s:
            return at_s - began_s
        if now_s() - began_s > limit_s:
            return None
        at_s, before = now_s(), after


def _background_ns() -> dict[Path, int]:
    """Return how many nanoseconds each other thread of this process, and each thread of its descendants, has run or
    waited for a core."""
    times_ns, this_thread = {}, str(threading.get_native_id())
    for file in (file for pid in load.family(getpid()) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")):
        with contextlib.suppress(OSError, ValueError):  # the thread has ended
            if file.parent.name != this_thread:
                times_ns[file] = sum(map(int, file.read_text().split()[:2]))
    return times_ns


def alternation(times_s: Sequence[float]) -> str:
    """Return a doubt if the phase backward takes less than half as long in every second step, else "".

    Nine tenths of the short steps must be shorter than nine tenths of the long ones, so that noise does not count."""
    short, long = sorted((sorted(times_s[::2]), sorted(times_s[1::2])), key=statistics.fmean)
    ratio, tenth = statistics.median(short) / statistics.median(long), len(short) // 10
    if len(short) < 5 or ratio > 0.5 or short[-1 - tenth] > long[tenth]:
        return ""
    return f"backward skipped in every second step? It takes {ratio:.0%} of its time there (by design: pass `period=2`)"


def declaration_problem(probes: Probes, batch_size: int) -> str:
    """Return why the batch or the weights are not as the cell and the step declare them, or ""."""
    for shape in (tuple(array.shape) for array in (probes.batch() if probes.batch else ())):
        if batch_size not in shape:
            return f"smaller batch than declared: an array of {batch_size} samples has the shape {shape}"
    for dtype in map(dtype_name, probes.weights() if probes.weights and probes.precision else ()):
        if _SIZES.get(dtype, 8) < _SIZES[probes.precision or ""]:
            return f"lower precision than declared: the weights are {dtype}, expected {probes.precision}"
    return ""
