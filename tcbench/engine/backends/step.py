"""A training step of one's own as a session, from plain functions. Public: see docs/own-step.md."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tcbench.core.session import Clock, Facts, Phase
from tcbench.hardware.clock import HostClock
from tcbench.hardware.memory import peak_resident_bytes


@dataclass(frozen=True)
class Step:
    """See `tcbench.core.session.Session`. What `step` makes."""

    phases: Sequence[Phase]
    loss: Callable[[], Any]
    clock: Clock = field(default_factory=HostClock)
    peak_memory: Callable[[], tuple[int, Literal["process", "device"]]] = lambda: (peak_resident_bytes(), "process")
    parameters: int = 0
    prefetch_depth: int = 0
    close: Callable[[], None] = lambda: None

    def facts(self) -> Facts:
        """Asks for the loss."""
        peak_bytes, of = self.peak_memory()
        return Facts(
            loss=float(self.loss()),
            peak_memory_bytes=peak_bytes,
            peak_memory_of=of,
            prefetch_depth=self.prefetch_depth,
            parameters=self.parameters,
            macs_per_image=0,
        )


def step(*runs: Callable[[], None], loss: Callable[[], Any], **facts: Any) -> Step:
    """A session whose phases are these functions, in this order, under their own names.

    `loss` gives the latest loss, as a number or what `float` takes; it is asked for between blocks of steps only, and
    may wait for the device. `facts`: the other fields of `Step`. On a GPU `clock` and `peak_memory` are the device's:
    for PyTorch, those of `tcbench.engine.backends.torch.sites.open_site(cell.device)`.
    """
    return Step(tuple(Phase(run.__name__, run) for run in runs), loss, **facts)
