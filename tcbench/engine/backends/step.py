"""A user's own training step as a session made from plain functions. Public API: see docs/own-step.md."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

from tcbench.core.errors import ScenarioError
from tcbench.core.record import DeclaredWork
from tcbench.engine.clock import HostClock, peak_resident_bytes
from tcbench.engine.session import Clock, Facts, Phase, Probes, whole_number

PRECISIONS = ("float64", "float32", "float16", "bfloat16", "float8")
"""The formats in which a step may say that it computes."""


@dataclass(frozen=True)
class Step:
    """A session made by `step` (see `tcbench.engine.session.Session`).

    `flops` and `bytes` declare the work of one rank's step: a number for the whole step, or numbers by phase name.
    `batch`, `weights`, `gradients` and `precision` are described in `Probes`, `period` in `Facts`. Raises ScenarioError
    for fields that cannot be recorded."""

    phases: Sequence[Phase]
    loss: Callable[[], Any]
    clock: Clock = field(default_factory=HostClock)
    peak_memory: Callable[[], tuple[int, Literal["process", "device"]]] = lambda: (peak_resident_bytes(), "process")
    parameters: int = 0
    prefetch_depth: int = 0
    close: Callable[[], None] = lambda: None
    flops: float | Mapping[str, float] = 0
    bytes: float | Mapping[str, float] = 0
    period: int = 1
    batch: Callable[[], Sequence[Any]] | None = None
    weights: Callable[[], Iterable[Any]] | None = None
    gradients: Callable[[], Iterable[Any]] | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        """Check the counts and the declared work."""
        for name in ("parameters", "prefetch_depth", "period"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.precision not in (None, *PRECISIONS):
            raise ScenarioError(f"precision: expected one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        names = {phase.name for phase in self.phases}
        for unit, amounts in (("flops", self.flops), ("bytes", self.bytes)):
            for name, amount in _by_phase(amounts).items():
                if name and name not in names:
                    raise ScenarioError(f"{unit}: no phase '{name}'; expected some of {', '.join(sorted(names))}")
                if not _is_work(amount):
                    raise ScenarioError(f"{unit}: expected a number of 0 or more, or one per phase, got {amount!r}")

    @property
    def _declared(self) -> tuple[DeclaredWork, ...]:
        """The declared work, for the phases that have any. Work of the whole step has the name ""."""
        flops, moved = _by_phase(self.flops), _by_phase(self.bytes)
        works = (
            DeclaredWork(phase=name, flops=float(flops.get(name, 0)), bytes=float(moved.get(name, 0)))
            for name in dict.fromkeys([*flops, *moved])
        )
        return tuple(work for work in works if work.flops or work.bytes)

    def facts(self) -> Facts:
        """Return the facts of a record. Reads the loss, which may wait for the device."""
        peak = self.peak_memory()
        if not isinstance(peak, tuple) or len(peak) != 2:
            raise ScenarioError(f"peak_memory: expected bytes and their owner, such as (5, 'process'), got {peak!r}")
        return Facts(
            loss=float(self.loss()),
            peak_memory_bytes=peak[0],
            peak_memory_of=peak[1],
            prefetch_depth=self.prefetch_depth,
            parameters=self.parameters,
            macs_per_image=0,
            period=max(1, self.period),
            declared=self._declared,
        )

    def probes(self) -> Probes:
        """Return the functions by which checks see the step's arrays."""
        return Probes(self.batch, self.weights, self.gradients, self.precision)


def _by_phase(amounts: float | Mapping[str, float]) -> Mapping[str, float]:
    """Return amounts of work by phase name; a single number gets the empty name."""
    return amounts if isinstance(amounts, Mapping) else {"": amounts}


def _is_work(amount: Any) -> bool:
    """Return whether `amount` is a finite number of 0 or more, of Python or NumPy."""
    return isinstance(amount, Real) and 0 <= float(amount) < math.inf


def step(*runs: Callable[[], None], loss: Callable[[], Any], **facts: Any) -> Step:
    """Return a session whose phases are these functions, in this order and under their own names.

    `loss` returns the latest loss as anything that `float` accepts. It is called between blocks of steps only, and may
    wait for the device. `facts` are the other fields of `Step`. On a GPU, pass the device's `clock` and `peak_memory`:
    for PyTorch, those of `tcbench.engine.backends.torch.sites.open_site(cell.device)`."""
    return Step(tuple(Phase(run.__name__, run) for run in runs), loss, **facts)
