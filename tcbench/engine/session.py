"""The Session protocol, through which the measuring loop uses a backend's training step."""

import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from tcbench.core.errors import ScenarioError
from tcbench.core.record import DeclaredWork, PlanChoice

INPUT = "io"
"""The name of the phase that takes the next batch from the input."""


@dataclass(frozen=True)
class Phase:
    """A named part of a step. `run` may return before the device is done. `settled` returns whether one-time work, such
    as capturing a graph, is done, so that all further steps are alike."""

    name: str
    run: Callable[[], None]
    settled: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class Facts:
    """Facts about a session between steps. Reading them may synchronise with the device.

    - `loss`: None if nothing is computed.
    - `busy_s`: the device's working time so far, if the device reports it.
    - `decoding`: how the device decodes images, if it does.
    - `reduced_bytes`: the bytes of gradients that this rank passes to the all-reduce in a step.
    - `reduce_overlaps`: whether the all-reduce overlaps with other phases.
    - `engine`: the library that reduces the gradients.
    - `period`: the number of steps after which the work of steps repeats.
    - `declared`: the work of phases, if the author of the step declares it."""

    loss: float | None
    peak_memory_bytes: int
    peak_memory_of: Literal["process", "device"]
    prefetch_depth: int
    parameters: int
    macs_per_image: int
    plans: tuple[PlanChoice, ...] = ()
    busy_s: float | None = None
    decoding: str | None = None
    reduced_bytes: int = 0
    reduce_overlaps: bool = False
    engine: str = ""
    period: int = 1
    declared: tuple[DeclaredWork, ...] = ()

    def __post_init__(self) -> None:
        """Convert NumPy's integers to Python's. Raises ScenarioError for a fact that a record cannot store."""
        for name in ("peak_memory_bytes", "prefetch_depth", "parameters", "macs_per_image", "reduced_bytes", "period"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.peak_memory_of not in ("process", "device"):
            raise ScenarioError(
                f"peak_memory: expected 'process' or 'device' as its owner, got {self.peak_memory_of!r}"
            )


def whole_number(name: str, number: Any) -> int:
    """Return a session's number as an int. Raises ScenarioError unless it is an integer from 0 to 2**63 - 1. A bool
    does not count as an integer. `name` is the name of the number in the message."""
    try:
        as_int = -1 if isinstance(number, bool) else operator.index(number)  # -1 is refused below
    except TypeError:
        as_int = -1
    if not 0 <= as_int < 2**63:
        raise ScenarioError(f"{name}: expected a whole number of 0 or more, got {number!r}")
    return as_int


class Clock(Protocol):
    """A clock that marks points in time on the device that does the work. A device's clock may also have
    `stall(seconds)`, which keeps the device busy for that time; with it the loop measures the device's working time."""

    @property
    def of(self) -> Literal["host", "device"]:
        """The side that the clock measures: "host" if a phase is done when it returns, else "device"."""

    def mark(self) -> None:
        """Set a mark without waiting for the device."""

    def read(self) -> tuple[float, ...]:
        """Wait for the device, return the seconds between successive marks, and forget the marks."""


@dataclass(frozen=True)
class Probes:
    """Functions that return the arrays of the last step, for checks between steps; None if they are not available.

    Every array of the batch has an axis of the cell's batch size. `precision` is NumPy's name of the format in which
    the step computes. Checks of an own step change the arrays in place and repeat the phase `forward`."""

    batch: Callable[[], Sequence[Any]] | None = None
    weights: Callable[[], Iterable[Any]] | None = None
    gradients: Callable[[], Iterable[Any]] | None = None
    precision: str | None = None


class Session(Protocol):
    """A training step that can be repeated: its phases in order, a clock, and facts about it."""

    @property
    def phases(self) -> Sequence[Phase]: ...
    @property
    def clock(self) -> Clock: ...
    def facts(self) -> Facts: ...
    def close(self) -> None: ...


class Layers(Protocol):
    """A receiver of the begin and end of each layer's work on the host."""

    def begin(self, name: str) -> None: ...
    def end(self) -> None: ...


@runtime_checkable
class Detailed(Protocol):
    """A session that can report its layers."""

    def detail(self, layers: Layers) -> AbstractContextManager[None]:
        """Report every layer, forward and backward, to `layers` while the context lasts. Names are short and stable,
        such as "stem/conv" and "block3.c/bn". Reporting takes time, so it is for profiled passes only."""


@runtime_checkable
class Probed(Protocol):
    """A session that shows its arrays to checks."""

    def probes(self) -> Probes: ...
