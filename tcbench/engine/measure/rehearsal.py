"""The parts of a step's time on the host, of a cell that was not run.

A cell's program is run a few times on an accelerator that times each launch where the program makes it: on the step's
own memory, between the launches and the parts of the program that it stands between, since what the caches hold decides
as much of its time as what is computed. What is left is the host's part. Phases that launch the same are timed once for
all cells; in the others' steps operands are written over in the launches' place. What a feed takes to make a batch is
timed apart. No process is started for a cell, nothing is settled, and no statistics are kept: that is a trial's.

Run as `python -m tcbench.engine.measure.rehearsal FD`: cells (a JSON list) in on standard input, an answer for each out
on the pipe. docs/method.md says how well this predicts.
"""

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
"""Over a step and over its input, or more; after one that is not counted. The mean counts, as it does where steps are
measured."""
SPENT_S = 6.0
"""Passes go on as long as all cells together have this for their steps, and half of it for their input: few passes of
one cell take a second or less, and on shared processors one second's speed is up to a quarter off the next one's."""
_ALIGNED_TO = 4096

Instead = Callable[[Callable[[], None], Work, tuple[Array, ...]], None]
"""What is done where a step makes a launch: it, its work and its operands."""


def nothing(launch: Callable[[], None], work: Work, arrays: tuple[Array, ...]) -> None:
    """Makes no launch."""


class Observed(HostArrays):
    """Prepares what another accelerator launches, and calls `instead` where that would be. `prepared` counts."""

    def __init__(self, other: Accelerator, threads: int) -> None:
        super().__init__(threads)
        self.adds_to_dgrad = other.adds_to_dgrad  # type: ignore[misc]
        self.instead: Instead = nothing
        self.prepared = 0
        self._other = other

    def batch_norm(self, norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
        return self._other.batch_norm(norm, eps, momentum)

    def prepare(self, work: Work, *arrays: Array) -> Callable[[], None]:
        launch = self._other.prepare(work, *arrays)
        self.prepared += 1
        return lambda: self.instead(launch, work, arrays)


class Making:
    """Makes the launches. `taken_s`: what that took, which is not the host's."""

    def __init__(self) -> None:
        self.taken_s = self.pages_s = 0.0

    def __call__(self, launch: Callable[[], None], work: Work, arrays: tuple[Array, ...]) -> None:
        begin = time.perf_counter()
        launch()
        self.taken_s += time.perf_counter() - begin


class Overwriting(Making):
    """In a launch's place its operands are written over: after it the caches hold as little of the program as after a
    launch, and pages that were new to the process are not any more.

    `taken_s`: what that took, which a step without launches does not take. `pages_s`: what the pages did, which it
    does: of operands so large that each comes from the system anew, the first writing takes that much longer.
    """

    def __call__(self, launch: Callable[[], None], work: Work, arrays: tuple[Array, ...]) -> None:
        begin = time.perf_counter()
        for operand, array in zip(work.operands, arrays, strict=True):
            if array.nbytes < _ALIGNED_TO or operand.name == "state" or operand.dtype == "int64":
                continue  # it fills no cache, and may be part of a state that another launch names
            written_s = _filled_s(array)
            if array.nbytes > LARGEST_FROM_HEAP:
                self.pages_s += max(0.0, written_s - _filled_s(array))
        self.taken_s += time.perf_counter() - begin


def _filled_s(array: Array) -> float:
    begin = time.perf_counter()
    array.fill(0)
    return time.perf_counter() - begin


def passes(spent_s: float) -> Iterator[int]:
    """The number of each pass, until there are enough and they took so many seconds. The first is not to be counted."""
    begin = time.perf_counter()
    for number in itertools.count():
        if number > PASSES and time.perf_counter() - begin >= spent_s:
            return
        yield number


@dataclass
class Rehearsals:
    """Cells of one device and one number of threads, each rehearsed when it is asked for. What several have in common
    is timed once. `spent_s`: seconds that passes over a cell's steps may take."""

    spent_s: float = 0.0
    device_s: dict[Hashable, float] = field(default_factory=dict)
    input: dict[Hashable, tuple[float, bool]] = field(default_factory=dict)

    def of(self, cell: Cell) -> StepTime:
        """The parts of a cell's step. Raises TcbenchError where its backend cannot tell them."""
        began = load.own_counts()
        site = kind_of(cell.device).open(cell.device, cell.cudnn, cell.threads)
        its_backend = backend(cell.backend)
        accelerator = Observed(site.accelerator, cell.threads)
        stand_in = replace(site, accelerator=accelerator)
        session = _opened(its_backend, cell, stand_in, make_synthetic_feed)
        try:
            # What is made at a first launch lies where it would in a run. Without, the steps that follow take up to a
            # quarter longer.
            accelerator.instead = Making()
            for _ in range(SETTLING_STEPS):
                _run(session.phases)
                accelerator.instead = nothing
            period = session.facts().period
            gc.collect()
            gc.freeze()  # as a trial does before its timed pass
            device_s, host_s = self._step(list(session.phases) * period, accelerator)
        finally:
            gc.unfreeze()
            session.close()
        input_s, overlapped = self._input(its_backend, cell, stand_in)
        return StepTime(
            device_s=device_s / period,
            host_s=host_s / period,
            input_s=input_s,
            overlapped=overlapped,
            on_host=True,
            lost=0.0 if (meanwhile := load.between(began, load.own_counts())) is None else meanwhile.lost,
        )

    def _step(self, phases: Sequence[Phase], accelerator: Observed) -> tuple[float, float]:
        """Seconds of the launches, and of the program beside them. Phases that launch what another's did take what
        that one's took: so that what tells two configs apart is not how noisy the machine was when each was timed."""
        launched = [launches(phase, accelerator) for phase in phases]
        kinds = [Overwriting if key in self.device_s else Making for key in launched]
        times_s = []
        for _ in passes(self.spent_s):
            times_s.append(taken := np.empty((len(phases), 2)))
            for number, (phase, kind) in enumerate(zip(phases, kinds, strict=True)):
                accelerator.instead = watch = kind()
                whole_s = _run([phase])
                taken[number] = watch.taken_s, whole_s - watch.taken_s + watch.pages_s
        means_s = np.mean(times_s[1:], axis=0)
        for key, device_s in zip(launched, means_s[:, 0], strict=True):
            self.device_s.setdefault(key, float(device_s))
        return sum(map(self.device_s.__getitem__, launched)), float(means_s[:, 1].sum())

    def _input(self, its_backend: Backend, cell: Cell, site: OpenDevice) -> tuple[float, bool]:
        """Seconds that a batch takes, and whether it is made beside the step: by threads that take the processors from
        what computes, whose time over those counts then."""
        if cell.input.kind == "synthetic":
            return 0.0, False
        feeding = tuple(name for name in cell.rungs if type(its_backend.RUNGS[name]).feed is not Rung.feed)
        key = (cell.input, cell.batch_size, cell.image_size, feeding)
        if key not in self.input:
            session = _opened(its_backend, cell, site, None)
            try:
                depth = session.facts().prefetch_depth
                io = [phase for phase in session.phases if phase.name == INPUT]
                for _ in range(depth):
                    _run(io)
                times_s = []
                for _ in passes(self.spent_s / 2):
                    used_s = time.process_time()
                    taken_s = _run(io)
                    times_s.append((time.process_time() - used_s) / cell.threads if depth else taken_s)
            finally:
                session.close()
            self.input[key] = statistics.fmean(times_s[1:]), bool(depth)
        return self.input[key]


def _opened(
    its_backend: Backend, cell: Cell, site: OpenDevice, make_feed: Callable[[FeedSpec], Feed] | None
) -> Session:
    """A cell's session, whose weights are of the right size and quickly drawn: nobody looks at what they learn."""
    with initial.use_source(cell.seed, initial.RepeatedRandomState(cell.seed)):
        return its_backend.open_on(cell, site, make_feed)


def launches(phase: Phase, accelerator: Observed) -> Hashable:
    """What a phase launches, in its order, and whether each launch is prepared anew: behind a program that looks it up
    and binds it, work finds less of its operands in the caches."""
    keys: list[str] = []
    accelerator.instead = lambda _, work, __: keys.append(work.key)
    before = accelerator.prepared
    phase.run()
    return tuple(keys), accelerator.prepared - before > len(keys) // 2


def _run(phases: Sequence[Phase]) -> float:
    """Run phases in order; the seconds that they took."""
    begin = time.perf_counter()
    for phase in phases:
        phase.run()
    return time.perf_counter() - begin


def answers(cells: Sequence[Cell]) -> Iterator[StepTimeOrReason]:
    """An answer for each cell, in order."""
    rehearsals = Rehearsals(SPENT_S / len(cells))
    for cell in cells:
        try:
            yield rehearsals.of(cell)
        except (TcbenchError, ImportError) as error:  # of one cell: the others go on
            yield " ".join(str(error).split())
        except MemoryError:
            yield (
                f"batch size {cell.batch_size} does not fit into this machine's memory; expected fewer images (--bs) "
                "or smaller ones (--image-size)"
            )


def main() -> None:
    """Rehearse the cells that stand on standard input."""

    def work(cells: list[Cell], send: Callable[[StepTimeOrReason], None]) -> StepTimeOrReason:
        told = answers(cells)
        for _ in cells[1:]:
            send(next(told))
        return next(told)

    serve(msgspec.json.Decoder(list[Cell]).decode, work)


if __name__ == "__main__":
    main()
