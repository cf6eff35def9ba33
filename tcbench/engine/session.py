"""The Session protocol, which is measured. A backend builds one; the measuring loop knows nothing else of it."""

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from tcbench.core.errors import ScenarioError
from tcbench.core.record import DeclaredWork, PlanChoice

INPUT = "io"
"""The name of the phase that takes the next batch from the input."""


@dataclass(frozen=True)
class Phase:
    """A named part of a step. `run` may return before the device is done. `settled`: whether it has done what it does
    once, such as to capture a graph, so that from now on every step is like the next."""

    name: str
    run: Callable[[], None]
    settled: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class Facts:
    """A session's facts, between steps. Asking may synchronise with the device. `loss`: None where nothing computes.
    `busy_s`: the time that the device has worked so far, where it tells. `decoding`: how it decodes images, where it
    does. With many ranks `reduced_bytes` is the size of the gradients that this one gives to the all-reduce in a step,
    `reduce_overlaps` whether that runs beside other phases, and `engine` says what reduces them. `period`: the steps
    after which what steps do repeats. `declared`: the work of phases, where the step's author declares it."""

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
        """Raises ScenarioError for what a record cannot hold; NumPy's integers become Python's."""
        for name in ("peak_memory_bytes", "prefetch_depth", "parameters", "macs_per_image", "reduced_bytes", "period"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.peak_memory_of not in ("process", "device"):
            raise ScenarioError(f"peak_memory: expected whose it is, process or device, got {self.peak_memory_of!r}")


def whole_number(name: str, number: Any) -> int:
    """Return a number of a session as an int. Raises ScenarioError for one that is not whole or is below 0."""
    try:
        as_int = -1 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        as_int = -1
    if not 0 <= as_int < 2**63:
        raise ScenarioError(f"{name}: expected a whole number of 0 or more, got {number!r}")
    return as_int


class Clock(Protocol):
    """Marks points in time on the device that does the work. A device's may also have `stall(seconds)`, which gives the
    device work that lasts so long and does nothing: with it the loop finds out how long the device needs for a step."""

    @property
    def of(self) -> Literal["host", "device"]:
        """Whose time it tells: the host's where a phase is done when it returns, else the device's."""

    def mark(self) -> None:
        """Set a mark; must not wait for the device."""

    def read(self) -> tuple[float, ...]:
        """Wait for the device; the seconds between one mark and the next; then forget the marks."""


class Session(Protocol):
    """A training step that can be repeated: phases in order, a clock, facts, and an end."""

    @property
    def phases(self) -> Sequence[Phase]: ...
    @property
    def clock(self) -> Clock: ...
    def facts(self) -> Facts: ...
    def close(self) -> None: ...


class Layers(Protocol):
    """Told when a layer's work begins and ends on the host, as the session runs."""

    def begin(self, name: str) -> None: ...
    def end(self) -> None: ...


@runtime_checkable
class Detailed(Protocol):
    """A session that can also tell its layers."""

    def detail(self, layers: Layers) -> AbstractContextManager[None]:
        """While it is held, `layers` is told of every layer, forward and backward. Names are short and stable:
        "stem/conv", "block3.c/bn". Costs time: for profiled passes only."""
