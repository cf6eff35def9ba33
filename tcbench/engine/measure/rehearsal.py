"""Rehearsal: a quick prediction of the step times of many cells on a CPU, without running trials.

Each cell's program runs a few steps on an accelerator that times every launch within the step, because the content of
the caches affects a launch as much as its computation does. The rest of the step's time is the host's. Phases with the
same launches are timed only once for all cells. In later cells their launches are replaced by overwriting the operands,
which leaves the caches in the same state. The input is timed separately. All cells share one process, without the
warm-up and the statistics of a trial.

Usage: `python -m tcbench.engine.measure.rehearsal FD`. It reads a JSON list of cells from standard input and writes an
answer for each to the pipe FD. docs/method.md says how accurate the predictions are."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from tcbench.core.errors import TcbenchError
from tcbench.core.record import Cell
from tcbench.core.step_time import StepTime, StepTimeOrReason
from tcbench.engine.accelerators.cpu.arrays import HostArrays
from tcbench.engine.accelerators.cpu.heap import LARGEST_FROM_HEAP
from tcbench.engine.accelerators.device import OpenDevice, kind_of
from tcbench.engine.accelerators.protocol import Accelerator, Array, BatchNormRoute
from tcbench.engine.accelerators.tracing import SETTLING_STEPS
from tcbench.engine.backends import Backend, backend, initial
from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.spec import FeedSpec
from tcbench.engine.feeds.synthetic import make_synthetic_feed
from tcbench.engine.measure.pipe import serve
from tcbench.engine.rung import Rung
from tcbench.engine.session import INPUT, Phase, Session
from tcbench.engine.work import Norm, Work
from tcbench.hardware import load

PASSES = 2
"""The least number of counted passes over a step and over its input. One uncounted pass precedes them. The mean of
the counted ones is used, as for measured steps."""
SPENT_S = 6.0
"""Seconds that the passes over the steps of all cells take, at least; those over their inputs take half of it. A few
passes would take a second or less per cell, and on shared CPUs the speed may change by a quarter within a second."""
_PAGE_BYTES = 4096

LaunchHandler = Callable[[Callable[[], None], Work, tuple[Array, ...]], None]
"""A function that is called in place of a launch, with the launch, its work and its operands."""


def skip_launch(launch: Callable[[], None], work: Work, arrays: tuple[Array, ...]) -> None:
    """Do nothing in place of a launch."""


class ObservedAccelerator(HostArrays):
    """A wrapper of an accelerator that observes launches instead of running them.

    Launches are prepared by the wrapped accelerator. When one is due, `on_launch` is called with it, its work and its
    arrays. `prepared` counts the prepared launches."""

    def __init__(self, inner: Accelerator, threads: int) -> None:
        super().__init__(threads)
        self.adds_to_dgrad = inner.adds_to_dgrad  # type: ignore[misc]
        self.on_launch: LaunchHandler = skip_launch
        self.prepared = 0
        self._inner = inner

    def batch_norm(self, norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
        """Return the inner accelerator's route of a batch normalisation."""
        return self._inner.batch_norm(norm, eps, momentum)

    def prepare(self, work: Work, *arrays: Array) -> Callable[[], None]:
        """Prepare a launch and return a function that calls `on_launch` with it."""
        launch = self._inner.prepare(work, *arrays)
        self.prepared += 1
        return lambda: self.on_launch(launch, work, arrays)


class TimedLaunch:
    """A launch handler that runs the launch. `duration_s` is the time of all launches so far; `page_faults_s` is 0."""

    def __init__(self) -> None:
        self.duration_s = self.page_faults_s = 0.0

    def __call__(self, launch: Callable[[], None], work: Work, arrays: tuple[Array, ...]) -> None:
        begin = time.perf_counter()
        launch()
        self.duration_s += time.perf_counter() - begin


class TimedOverwrite(TimedLaunch):
    """A launch handler that overwrites a launch's operands instead of launching, so that the caches and page tables end
    up as after the launch.

    `duration_s` is the time of overwriting. `page_faults_s` is the part of it that a step without launches would spend
    as well: writing to new memory pages, which large operands get from the system in every step."""

    def __call__(self, launch: Callable[[], None], work: Work, arrays: tuple[Array, ...]) -> None:
        begin = time.perf_counter()
        for operand, array in zip(work.operands, arrays, strict=True):
            if array.nbytes < _PAGE_BYTES or operand.name == "state" or operand.dtype == "int64":
                continue  # too small to matter for the caches, or state that another launch uses
            first_s = _fill_time_s(array)
            if array.nbytes > LARGEST_FROM_HEAP:
                self.page_faults_s += max(0.0, first_s - _fill_time_s(array))  # no page faults the second time
        self.duration_s += time.perf_counter() - begin


def _fill_time_s(array: Array) -> float:
    """Fill an array with zeros and return the seconds that this took."""
    begin = time.perf_counter()
    array.fill(0)
    return time.perf_counter() - begin


def passes(spent_s: float) -> Iterator[int]:
    """Yield the numbers of passes until there are enough and `spent_s` seconds are over. Pass 0 does not count."""
    begin = time.perf_counter()
    for number in itertools.count():
        if number > PASSES and time.perf_counter() - begin >= spent_s:
            return
        yield number


@dataclass
class Rehearsals:
    """Rehearsals of cells of the same device and number of threads. Phases and inputs that cells have in common are
    timed once: `device_s` and `input` hold their times. The passes over a cell's step take `spent_s` seconds."""

    spent_s: float = 0.0
    device_s: dict[Hashable, float] = field(default_factory=dict)
    input: dict[Hashable, tuple[float, bool]] = field(default_factory=dict)

    def rehearse(self, cell: Cell) -> StepTime:
        """Return the parts of a cell's step time. Raises TcbenchError if its backend cannot be rehearsed."""
        began = load.own_counts()
        site = kind_of(cell.device).open(cell.device, cell.cudnn, cell.threads)
        cell_backend = backend(cell.backend)
        accelerator = ObservedAccelerator(site.accelerator, cell.threads)
        observed_site = replace(site, accelerator=accelerator)
        session = _open_session(cell_backend, cell, observed_site, make_synthetic_feed)
        try:
            # Real launches in the first step put their buffers where a run would have them. Without them the following
            # steps take up to a quarter longer.
            accelerator.on_launch = TimedLaunch()
            for _ in range(SETTLING_STEPS):
                _run(session.phases)
                accelerator.on_launch = skip_launch
            period = session.facts().period
            gc.collect()
            gc.freeze()  # as a trial does before its timed pass
            device_s, host_s = self._step(list(session.phases) * period, accelerator)
        finally:
            gc.unfreeze()
            session.close()
        input_s, overlapped = self._input(cell_backend, cell, observed_site)
        return StepTime(
            device_s=device_s / period,
            host_s=host_s / period,
            input_s=input_s,
            overlapped=overlapped,
            on_host=True,
            lost=0.0 if (meanwhile := load.between(began, load.own_counts())) is None else meanwhile.lost,
        )

    def _step(self, phases: Sequence[Phase], accelerator: ObservedAccelerator) -> tuple[float, float]:
        """Return the seconds per period of the launches and of the rest of the program. Phases with the same launches
        get the same launch time, so that configs do not differ by the noise of the machine."""
        keys = [launches(phase, accelerator) for phase in phases]
        kinds = [TimedOverwrite if key in self.device_s else TimedLaunch for key in keys]
        times_s = []
        for _ in passes(self.spent_s):
            times_s.append(pass_s := np.empty((len(phases), 2)))
            for number, (phase, kind) in enumerate(zip(phases, kinds, strict=True)):
                accelerator.on_launch = handler = kind()
                phase_s = _run([phase])
                pass_s[number] = handler.duration_s, phase_s - handler.duration_s + handler.page_faults_s
        means_s = np.mean(times_s[1:], axis=0)
        for key, device_s in zip(keys, means_s[:, 0], strict=True):
            self.device_s.setdefault(key, float(device_s))
        return sum(map(self.device_s.__getitem__, keys)), float(means_s[:, 1].sum())

    def _input(self, cell_backend: Backend, cell: Cell, site: OpenDevice) -> tuple[float, bool]:
        """Return the seconds of preparing a batch, and whether threads prepare it while the step runs.

        If they do, the seconds are their CPU time divided by the cell's number of threads, because they take that time
        from the computation."""
        if cell.input.kind == "synthetic":
            return 0.0, False
        feed_rungs = tuple(name for name in cell.rungs if type(cell_backend.RUNGS[name]).feed is not Rung.feed)
        key = (cell.input, cell.batch_size, cell.image_size, feed_rungs)
        if key not in self.input:
            session = _open_session(cell_backend, cell, site, None)
            try:
                depth = session.facts().prefetch_depth
                io = [phase for phase in session.phases if phase.name == INPUT]
                for _ in range(depth):
                    _run(io)
                times_s = []
                for _ in passes(self.spent_s / 2):
                    began_s = time.process_time()
                    elapsed_s = _run(io)
                    times_s.append((time.process_time() - began_s) / cell.threads if depth else elapsed_s)
            finally:
                session.close()
            self.input[key] = statistics.fmean(times_s[1:]), bool(depth)
        return self.input[key]


def _open_session(
    cell_backend: Backend, cell: Cell, site: OpenDevice, make_feed: Callable[[FeedSpec], Feed] | None
) -> Session:
    """Open a cell's session with quickly drawn initial weights, whose values do not matter here."""
    with initial.use_source(cell.seed, initial.RepeatedRandomState(cell.seed)):
        return cell_backend.open_on(cell, site, make_feed)


def launches(phase: Phase, accelerator: ObservedAccelerator) -> Hashable:
    """Run a phase without its launches, and return a key that identifies them: their operations in order, and whether
    most are prepared anew in each step. A launch that was just prepared finds fewer of its operands in the caches."""
    keys: list[str] = []
    accelerator.on_launch = lambda _, work, __: keys.append(work.key)
    before = accelerator.prepared
    phase.run()
    return tuple(keys), accelerator.prepared - before > len(keys) // 2


def _run(phases: Sequence[Phase]) -> float:
    """Run phases in order and return the seconds that they took."""
    begin = time.perf_counter()
    for phase in phases:
        phase.run()
    return time.perf_counter() - begin


def answers(cells: Sequence[Cell]) -> Iterator[StepTimeOrReason]:
    """Yield for each cell, in order, the parts of its step time or the reason why they are unknown."""
    rehearsals = Rehearsals(SPENT_S / len(cells))
    for cell in cells:
        try:
            yield rehearsals.rehearse(cell)
        except (TcbenchError, ImportError) as error:  # the other cells may work
            yield " ".join(str(error).split())
        except MemoryError:
            yield (
                f"batch size {cell.batch_size} does not fit into this machine's memory; use fewer images (--bs) "
                "or smaller ones (--image-size)"
            )


def main() -> None:
    """Rehearse the cells on standard input."""

    def work(cells: list[Cell], send: Callable[[StepTimeOrReason], None]) -> StepTimeOrReason:
        """Send the step time of each cell as soon as it is known, but return the last, which `serve` sends."""
        step_times = answers(cells)
        for _ in cells[1:]:
            send(next(step_times))
        return next(step_times)

    serve(msgspec.json.Decoder(list[Cell]).decode, work)


if __name__ == "__main__":
    main()
