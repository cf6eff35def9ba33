"""A training step of one's own as a session, from plain functions. Public: see docs/own-step.md."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

from tcbench.core.errors import ScenarioError
from tcbench.core.record import DeclaredWork
from tcbench.engine.clock import HostClock, peak_resident_bytes
from tcbench.engine.session import Clock, Facts, Phase, whole_number


@dataclass(frozen=True)
class Step:
    """See `tcbench.engine.session.Session`. What `step` makes. `flops`, `bytes`: the work of a step of one rank, as a
    number for all of it, or by the names of phases. Raises ScenarioError."""

    phases: Sequence[Phase]
    loss: Callable[[], Any]
    clock: Clock = field(default_factory=HostClock)
    peak_memory: Callable[[], tuple[int, Literal["process", "device"]]] = lambda: (peak_resident_bytes(), "process")
    parameters: int = 0
    prefetch_depth: int = 0
    close: Callable[[], None] = lambda: None
    flops: float | Mapping[str, float] = 0
    bytes: float | Mapping[str, float] = 0

    def __post_init__(self) -> None:
        for name in ("parameters", "prefetch_depth"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        names = {phase.name for phase in self.phases}
        for what, given in (("flops", self.flops), ("bytes", self.bytes)):
            for name, value in given.items() if isinstance(given, Mapping) else [("", given)]:
                if name and name not in names:
                    raise ScenarioError(f"{what}: no phase '{name}'; expected some of {', '.join(sorted(names))}")
                if not _is_work(value):
                    raise ScenarioError(f"{what}: expected a number of 0 or more, or one by phase, got {value!r}")

    @property
    def _declared(self) -> tuple[DeclaredWork, ...]:
        flops, moved = (each if isinstance(each, Mapping) else {"": each} for each in (self.flops, self.bytes))
        works = (
            DeclaredWork(phase=name, flops=float(flops.get(name, 0)), bytes=float(moved.get(name, 0)))
            for name in dict.fromkeys([*flops, *moved])
        )
        return tuple(work for work in works if work.flops or work.bytes)

    def facts(self) -> Facts:
        """Asks for the loss."""
        peak = self.peak_memory()
        if not isinstance(peak, tuple) or len(peak) != 2:
            raise ScenarioError(f"peak_memory: expected bytes and whose they are, such as (5, 'process'), got {peak!r}")
        peak_bytes, of = peak
        return Facts(
            loss=float(self.loss()),
            peak_memory_bytes=peak_bytes,
            peak_memory_of=of,
            prefetch_depth=self.prefetch_depth,
            parameters=self.parameters,
            macs_per_image=0,
            declared=self._declared,
        )


def _is_work(amount: Any) -> bool:
    """Whether a number of FLOPs or bytes was given, Python's or NumPy's."""
    return isinstance(amount, Real) and 0 <= float(amount) < math.inf


def step(*runs: Callable[[], None], loss: Callable[[], Any], **facts: Any) -> Step:
    """A session whose phases are these functions, in this order, under their own names. `loss` gives the latest loss,
    as a number or what `float` takes; it is asked for between blocks of steps only, and may wait for the device.
    `facts`: the other fields of `Step`. On a GPU `clock` and `peak_memory` are the device's: for PyTorch, those of
    `tcbench.engine.backends.torch.sites.open_site(cell.device)`."""
    return Step(tuple(Phase(run.__name__, run) for run in runs), loss, **facts)
