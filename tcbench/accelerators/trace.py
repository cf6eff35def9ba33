"""What one training step asks of a GPU: every launch, copy and captured graph, in order, and the memory it holds.

A backend's `trace(cell, properties)` makes a Trace by running the real program on a TracingAccelerator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tcbench.accelerators.tracing import Event, TracingAccelerator
from tcbench.core.session import Phase
from tcbench.work import Work

SETTLING_STEPS = 3
"""Steps before the one that is looked at: by then static graphs are recorded and CUDA graphs captured."""


@dataclass(frozen=True)
class PhaseTrace:
    """What one phase asks for, in order."""

    name: str
    events: tuple[Event, ...]

    @property
    def launches(self) -> tuple[Work, ...]:
        return tuple(event.work for event in self.events if event.work is not None)


@dataclass(frozen=True)
class Trace:
    """One settled step.

    `step`: what the host asks for, phase by phase; a captured graph is one event. `replayed`: the work that the
    captured graph does, empty without one. `parameters_bytes`: alive between steps (weights, master weights,
    velocities, the batch). `peak_bytes`: the most alive at once, with CuPy's rounding, without cuDNN's workspace.
    """

    step: tuple[PhaseTrace, ...]
    replayed: tuple[Event, ...]
    parameters_bytes: int
    peak_bytes: int

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything the GPU does in a step, in order, in a graph or not."""
        launched = tuple(event for phase in self.step for event in phase.events if event.kind != "graph_launch")
        return launched + self.replayed

    @property
    def works(self) -> tuple[Work, ...]:
        """The work of a step, in order; the same work as often as it is launched."""
        return tuple(event.work for event in self.events if event.work is not None)


def trace_step(phases: Sequence[Phase], accelerator: TracingAccelerator) -> Trace:
    """Run steps until they have settled, and record one."""
    for _ in range(SETTLING_STEPS):
        accelerator.events.clear()
        for phase in phases:
            phase.run()
    between = accelerator.memory.alive_bytes
    seen = []
    for phase in phases:
        accelerator.events.clear()
        phase.run()
        seen.append(PhaseTrace(phase.name, tuple(accelerator.events)))
    return Trace(tuple(seen), accelerator.captured, between, accelerator.memory.peak_bytes)
