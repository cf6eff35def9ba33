"""An accelerator that needs no GPU and records launches, copies, captured graphs and live memory of a training step.

A backend's `trace(cell, properties)` runs the real training program on it, so that a trace cannot differ from the
program. Arrays are made by `numpy.empty` and never touched, so that steps of any size fit into memory."""

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tcbench.engine.accelerators import routes
from tcbench.engine.accelerators.protocol import Accelerator, Array, BatchNormRoute
from tcbench.engine.session import Phase
from tcbench.engine.work import Norm, Work
from tcbench.hardware.gpus import GpuProperties

ALLOCATION_BYTES = 512
"""CuPy's memory pool rounds every allocation up to a multiple of this."""


@dataclass(frozen=True)
class Event:
    """A recorded request: a launch (with its work), a copy (with its size) or the launch of a captured graph."""

    kind: str
    work: Work | None = None
    bytes: int = 0

    @property
    def name(self) -> str:
        return self.kind if self.work is None else self.work.name


@dataclass
class Memory:
    """The bytes of live arrays, now and at most so far."""

    alive_bytes: int = 0
    peak_bytes: int = 0

    def take(self, n_bytes: int) -> None:
        self.alive_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.alive_bytes)

    def give(self, n_bytes: int) -> None:
        self.alive_bytes -= n_bytes


@dataclass
class TracingAccelerator(Accelerator):
    """An accelerator that records instead of computing.

    `events`: recorded so far; the reader clears it. `captured`: the events of the latest captured graph. `prepared`:
    the number of calls of `prepare`."""

    computes: ClassVar[bool] = False

    properties: GpuProperties
    fast_batch_norm: bool = True
    events: list[Event] = field(default_factory=list)
    captured: tuple[Event, ...] = ()
    memory: Memory = field(default_factory=Memory)
    prepared: int = 0

    def batch_norm(self, norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
        return routes.batch_norm(norm, eps, momentum, self.properties.sm, self.fast_batch_norm)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        array = np.empty(shape, dtype)
        n_bytes = -(-array.nbytes // ALLOCATION_BYTES) * ALLOCATION_BYTES
        self.memory.take(n_bytes)
        weakref.finalize(array, self.memory.give, n_bytes)
        return array

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.empty(shape, dtype)

    def upload(self, host: Any) -> Array:
        return self.empty(host.shape, host.dtype)

    def copy(self, source: Array, target: Array) -> None:
        check_copy(source, target)
        self.events.append(Event("copy", bytes=target.nbytes))

    def download(self, array: Array) -> Any:
        return np.zeros(array.shape, array.dtype)

    def prepare(self, work: Work, *arrays: Array) -> Callable[[], None]:
        check(work, arrays)
        routes.check_dtypes(work)
        self.prepared += 1
        return functools.partial(self.events.append, Event("launch", work))

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Move the events of `run` to `captured`, and return a function that records the launch of a graph."""
        before = len(self.events)
        run()
        self.captured = tuple(self.events[before:])
        del self.events[before:]
        return lambda: self.events.append(Event("graph_launch"))


def check_copy(source: Array, target: Array) -> None:
    """Raise ValueError unless the arrays have the same shape and dtype."""
    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError(f"copy: {source.shape} {source.dtype} into {target.shape} {target.dtype}")


def check(work: Work, arrays: tuple[Array, ...]) -> None:
    """Raise ValueError unless the arrays are contiguous and match the operands in number, sizes and dtypes."""
    if len(arrays) != len(work.operands):
        raise ValueError(f"{work.name}: takes {len(work.operands)} arrays, got {len(arrays)}")
    for operand, array in zip(work.operands, arrays, strict=True):
        if array.size != operand.size or array.dtype != np.dtype(operand.dtype) or not array.flags.c_contiguous:
            raise ValueError(
                f"{work.name}: {operand.name} is {array.shape} {array.dtype}, expected {operand.shape} {operand.dtype}"
            )


# -- one step of a program ------------------------------------------------------------------------------------------

SETTLING_STEPS = 3
"""Steps before the recorded step, after which schedules are recorded and CUDA graphs captured."""


@dataclass(frozen=True)
class PhaseTrace:
    """The events of one phase, in order."""

    name: str
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Trace:
    """The record of a step after warm-up.

    - `step`: the host's requests by phase; the launch of a captured graph is a single event.
    - `replayed`: the events of the captured graph; empty without one.
    - `peak_bytes`: peak memory of live arrays, with CuPy's rounding and without cuDNN's workspace.
    - `prepared`: the number of launches that the step prepared anew rather than repeated."""

    step: tuple[PhaseTrace, ...]
    replayed: tuple[Event, ...]
    peak_bytes: int
    prepared: int = 0

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything the GPU does in a step, in order, including the events of a captured graph."""
        launched = tuple(event for phase in self.step for event in phase.events if event.kind != "graph_launch")
        return launched + self.replayed

    @property
    def works(self) -> tuple[Work, ...]:
        """The launched operations of a step, in order, with repetitions."""
        return tuple(event.work for event in self.events if event.work is not None)


def trace_step(phases: Sequence[Phase], accelerator: TracingAccelerator) -> Trace:
    """Run SETTLING_STEPS steps of these phases on the accelerator, then run one more and return its record."""
    for _ in range(SETTLING_STEPS):
        accelerator.events.clear()
        for phase in phases:
            phase.run()
    before = accelerator.prepared
    traced = []
    for phase in phases:
        accelerator.events.clear()
        phase.run()
        traced.append(PhaseTrace(phase.name, tuple(accelerator.events)))
    return Trace(tuple(traced), accelerator.captured, accelerator.memory.peak_bytes, accelerator.prepared - before)
