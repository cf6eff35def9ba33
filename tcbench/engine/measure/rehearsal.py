"""The parts of a step's time on the host, told without a step being run.

A cell's program is run on an accelerator that binds every launch and makes none, but writes its operands over, so that
the caches hold as little of the program as after a launch. That takes the host's part of a step, and tells what would
be launched and where its operands lie. Memory of the same shape is then laid out and the launches are made on it in the
step's order: what the caches hold decides as much of their time as what is computed. Cells that launch the same, in the
same order, are timed once for all of them. What a feed takes to make a batch is timed apart.

Run as `python -m tcbench.engine.measure.rehearsal FD`: cells (a JSON list) in on standard input, an answer for each out
on the pipe. docs/method.md says how well this predicts.
"""

from __future__ import annotations

import bisect
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from tcbench.core.errors import TcbenchError
from tcbench.core.record import Cell
from tcbench.core.session import Phase
from tcbench.core.step_time import StepTime, Told
from tcbench.engine.accelerators.cpu.arrays import HostArrays
from tcbench.engine.accelerators.cpu.heap import LARGEST_FROM_HEAP
from tcbench.engine.accelerators.device import OpenDevice, kind_of
from tcbench.engine.accelerators.protocol import Accelerator, Array, BatchNormRoute
from tcbench.engine.accelerators.tracing import SETTLING_STEPS
from tcbench.engine.backends import Backend, backend
from tcbench.engine.feeds.synthetic import UnfilledFeed
from tcbench.engine.measure.pipe import serve
from tcbench.engine.rung import Rung
from tcbench.engine.work import Norm, Operand, Work

PASSES = 4
"""Over the launches of a step, and over the host's part of one; after one that is not counted. The mean counts, as it
does where steps are measured."""
INPUT = "io"
_ALIGNED_TO = 4096


@dataclass(frozen=True)
class OperandPlace:
    """An operand of a launch: where its bytes lie, and its contents where those decide what the launch does."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    contents: Array | None

    @classmethod
    def of(cls, operand: Operand, array: Array) -> OperandPlace:
        return cls(array.ctypes.data, array.shape, array.dtype, array.copy() if _decides(operand) else None)

    @property
    def end(self) -> int:
        return self.address + int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class LoggedLaunch:
    """A piece of work on operands, in the order of `work.operands`."""

    work: Work
    places: tuple[OperandPlace, ...]


class BoundOnly(HostArrays):
    """Binds what another accelerator would launch, and launches nothing: `instead` is called at that moment."""

    computes = False

    def __init__(self, other: Accelerator, threads: int) -> None:
        super().__init__(threads)
        self.adds_to_dgrad = other.adds_to_dgrad  # type: ignore[misc]
        self.instead: Callable[[Work, tuple[Array, ...]], None] = lambda *_: None
        self._other = other

    def batch_norm(self, norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
        return self._other.batch_norm(norm, eps, momentum)

    def prepare(self, work: Work, *arrays: Array) -> Callable[[], None]:
        self._other.prepare(work, *arrays)
        return lambda: self.instead(work, arrays)


class Overwriting:
    """In a launch's place its operands are written over: after it the caches hold as little of the program as after a
    launch, and pages that were new to the process are not any more.

    `taken_s`: what that took, which a step without launches does not take. `pages_s`: what the pages did, which it
    does: of operands so large that each comes from the system anew, the first writing takes that much longer.
    """

    def __init__(self) -> None:
        self.taken_s = self.pages_s = 0.0

    def __call__(self, work: Work, arrays: tuple[Array, ...]) -> None:
        begin = time.perf_counter()
        for operand, array in zip(work.operands, arrays, strict=True):
            if array.nbytes < _ALIGNED_TO or _decides(operand):
                continue  # it fills no cache, and may be part of a state that another launch names
            written_s = _filled_s(array)
            if array.nbytes > LARGEST_FROM_HEAP:
                self.pages_s += max(0.0, written_s - _filled_s(array))
        self.taken_s += time.perf_counter() - begin


def _filled_s(array: Array) -> float:
    begin = time.perf_counter()
    array.fill(0)
    return time.perf_counter() - begin


def _decides(operand: Operand) -> bool:
    """Whether its contents decide what a launch does."""
    return operand.name == "state" or operand.dtype == "int64"


class StepMemory:
    """A step's memory, laid out anew: operands that share bytes there share them here. Zeros, but for contents."""

    def __init__(self, log: Sequence[LoggedLaunch]) -> None:
        regions: list[list[int]] = []
        for begin, end in sorted({(place.address, place.end) for launch in log for place in launch.places}):
            if regions and begin <= regions[-1][1]:
                regions[-1][1] = max(end, regions[-1][1])
            else:
                regions.append([begin, end])
        self._begins = [begin for begin, _ in regions]
        self._arrays = []
        for begin, end in regions:
            room = np.zeros(end - begin + _ALIGNED_TO, np.uint8)
            self._arrays.append(room[(begin - room.ctypes.data) % _ALIGNED_TO :][: end - begin])

    def operands(self, launch: LoggedLaunch) -> list[Array]:
        """Arrays for a launch. Addresses in a table become those of here."""
        made = []
        for operand, place in zip(launch.work.operands, launch.places, strict=True):
            region, begin = self._find(place.address)
            held = self._arrays[region][begin : begin + place.end - place.address]
            array = held.view(place.dtype).reshape(place.shape)
            if place.contents is not None:
                array[...] = place.contents
            if operand.name == "table":
                for entry in zip(*np.nonzero(array), strict=True):
                    region, begin = self._find(int(array[entry]))
                    array[entry] = self._arrays[region].ctypes.data + begin
            made.append(array)
        return made

    def _find(self, address: int) -> tuple[int, int]:
        """The region that an address lies in, and its place there."""
        region = bisect.bisect_right(self._begins, address) - 1
        return region, address - self._begins[region]


def launches_s(site: OpenDevice, log: Sequence[LoggedLaunch]) -> list[float]:
    """Seconds that each of these launches takes, made in this order."""
    memory = StepMemory(log)
    bound = []
    for launch in log:
        arrays = memory.operands(launch)
        bound.append((site.accelerator.prepare(launch.work, *arrays), arrays))
    times_s = np.empty((PASSES + 1, len(bound)))
    with site.scope(), np.errstate(all="ignore"):
        for taken in times_s:
            for number, (run, _) in enumerate(bound):
                begin = time.perf_counter()
                run()
                taken[number] = time.perf_counter() - begin
    return [float(seconds) for seconds in np.mean(times_s[1:], axis=0)]


@dataclass
class Rehearsals:
    """Cells of one device and one number of threads, each rehearsed when it is asked for. What several have in common
    is timed once."""

    device_s: dict[Hashable, float] = field(default_factory=dict)
    input: dict[Hashable, tuple[float, bool]] = field(default_factory=dict)

    def of(self, cell: Cell) -> StepTime:
        """The parts of a cell's step. Raises TcbenchError where its backend cannot tell them."""
        site = kind_of(cell.device).open(cell.device, cell.cudnn, cell.threads)
        its_backend = backend(cell.backend)
        accelerator = BoundOnly(site.accelerator, cell.threads)
        stand_in = replace(site, accelerator=accelerator)
        session = its_backend.open_on(cell, stand_in, UnfilledFeed)
        try:
            for _ in range(SETTLING_STEPS):
                _run(session.phases)
            host_s = _host_s(session.phases, accelerator)
            period = session.facts().period
            phases = [_logged(phase, accelerator) for _ in range(period) for phase in session.phases]
        finally:
            session.close()
        input_s, overlapped = self._input(its_backend, cell, stand_in)
        device_s = self._device_s(site, phases) / period
        return StepTime(device_s=device_s, host_s=host_s, input_s=input_s, overlapped=overlapped, on_host=True)

    def _device_s(self, site: OpenDevice, phases: Sequence[Sequence[LoggedLaunch]]) -> float:
        """Phases that launch what another's did take what that one's took: so that what tells two configs apart is not
        how noisy the machine was when each was timed."""
        works = [tuple(launch.work.key for launch in phase) for phase in phases]
        if not self.device_s.keys() >= {*works}:
            times_s = iter(launches_s(site, [launch for phase in phases for launch in phase]))
            for phase in works:
                self.device_s.setdefault(phase, sum([next(times_s) for _ in phase]))
        return sum(map(self.device_s.__getitem__, works))

    def _input(self, its_backend: Backend, cell: Cell, site: OpenDevice) -> tuple[float, bool]:
        """Seconds that a batch takes, and whether it is made beside the step: by threads that take the processors from
        what computes, whose time over those counts then."""
        if cell.input.kind == "synthetic":
            return 0.0, False
        feeding = tuple(name for name in cell.rungs if type(its_backend.RUNGS[name]).feed is not Rung.feed)
        key = (cell.input, cell.batch_size, cell.image_size, feeding)
        if key not in self.input:
            session = its_backend.open_on(cell, site, None)
            try:
                depth = session.facts().prefetch_depth
                io = [phase for phase in session.phases if phase.name == INPUT]
                for _ in range(depth + 1):
                    _run(io)
                begin_s, used_s = time.perf_counter(), time.process_time()
                for _ in range(PASSES):
                    _run(io)
                taken_s, used_s = time.perf_counter() - begin_s, time.process_time() - used_s
            finally:
                session.close()
            self.input[key] = (used_s / cell.threads if depth else taken_s) / PASSES, bool(depth)
        return self.input[key]


def _host_s(phases: Sequence[Phase], accelerator: BoundOnly) -> float:
    """Seconds of a step beside its launches."""
    times_s = []
    for _ in range(PASSES + 1):
        accelerator.instead = overwriting = Overwriting()
        times_s.append(_run(phases) - overwriting.taken_s + overwriting.pages_s)
    return statistics.fmean(times_s[1:])


def _logged(phase: Phase, accelerator: BoundOnly) -> list[LoggedLaunch]:
    """The launches of a phase."""
    log: list[LoggedLaunch] = []
    accelerator.instead = lambda work, arrays: log.append(
        LoggedLaunch(work, tuple(map(OperandPlace.of, work.operands, arrays)))
    )
    phase.run()
    return log


def _run(phases: Sequence[Phase]) -> float:
    """Run phases in order; the seconds that they took."""
    begin = time.perf_counter()
    for phase in phases:
        phase.run()
    return time.perf_counter() - begin


def answers(cells: Sequence[Cell]) -> Iterator[Told]:
    """An answer for each cell, in order."""
    rehearsals = Rehearsals()
    for cell in cells:
        try:
            yield rehearsals.of(cell)
        except TcbenchError as error:
            yield " ".join(str(error).split())


def main() -> None:
    """Rehearse the cells that stand on standard input."""

    def work(cells: list[Cell], send: Callable[[Told], None]) -> Told:
        told = answers(cells)
        for _ in cells[1:]:
            send(next(told))
        return next(told)

    serve(msgspec.json.Decoder(list[Cell]).decode, work)


if __name__ == "__main__":
    main()
