"""A timeline: what ran when, during a few steps of one cell, on the host, in the input's threads and on the GPU.

Whoever records one (Nsight Systems, CUPTI, a simulation, tcbench's own ranges) makes this; analysis and pictures read
nothing else. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tcbench.core.text import plain

if TYPE_CHECKING:
    from tcbench.core.record import Record

Lane = Literal["host", "io", "gpu"]
"""The place of a span: the thread that runs the steps; the input's own threads; the device."""

SpanKind = Literal["step", "phase", "layer", "work", "api", "kernel", "copy", "memset", "graph"]
"""host: steps, their phases, layers in them, CUDA calls (`api`). io: `work`. gpu: kernels, copies, memsets, and whole
graphs where what is inside one cannot be told; phases, with what it waits in them, where kernels are not seen."""

TimelineSource = Literal["nsys", "cupti", "simulated", "ranges"]


@dataclass(frozen=True, order=True)
class Span:
    """Something that ran from `begin_s` to `end_s`, in seconds from the timeline's start. `step` is the number of the
    step it belongs to, None where that is not known. `phase` is the phase that caused it: its own name for a phase, for
    a kernel the phase that launched it ("replay" for a captured graph's whose nodes cannot be mapped). `row` tells
    apart threads or streams of one lane. `bytes` is what a copy moved. `layer`: the layer that launched it, for work on
    the device, where that is known."""

    begin_s: float
    end_s: float
    lane: Lane
    kind: SpanKind
    name: str
    step: int | None = None
    phase: str | None = None
    row: int = 0
    bytes: int | None = None
    layer: str | None = None

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class Timeline:
    """Spans, given in any order, in order of their begin, and names that are safe to show. `label` is the cell's
    ("fp16+dali, batch size 64"); `device` as in a cell; `device_name` as people call it. `phases` in the order of the
    step. `unit`: what `batch_size` counts. `record`: of the trial in which it was taken; None where that is not known.

    Raises ValueError for a span that ends before it begins, and for a step of no length: nothing can be said per step
    of one."""

    label: str
    device: str
    device_name: str
    batch_size: int
    source: TimelineSource
    phases: tuple[str, ...]
    spans: tuple[Span, ...]
    unit: str = "images"
    record: Record | None = None

    def __post_init__(self) -> None:
        ordered = sorted(map(_plain, self.spans), key=lambda s: (s.begin_s, -s.end_s))
        for span in ordered:
            if span.end_s < span.begin_s:
                raise ValueError(f"{span.kind} '{span.name}' ends {span.begin_s - span.end_s:g} s before it begins")
            if span.kind == "step" and span.end_s == span.begin_s:
                raise ValueError(f"step {span.step} has no length")
        names = {name: plain(getattr(self, name)) for name in ("label", "device", "device_name", "unit")}
        for name, value in {**names, "phases": tuple(map(plain, self.phases)), "spans": tuple(ordered)}.items():
            object.__setattr__(self, name, value)

    def spans_in(self, lane: Lane, *kinds: SpanKind) -> tuple[Span, ...]:
        """Return the spans of a lane: those of these kinds, or all."""
        return tuple(s for s in self.spans if s.lane == lane and (not kinds or s.kind in kinds))

    @property
    def steps(self) -> tuple[Span, ...]:
        return self.spans_in("host", "step")

    @property
    def begin_s(self) -> float:  # of the steps, or of all spans where there are none
        return min((s.begin_s for s in self.steps or self.spans), default=0.0)

    @property
    def end_s(self) -> float:
        return max((s.end_s for s in self.steps or self.spans), default=0.0)


def _plain(span: Span) -> Span:
    """The span with names that are safe to show."""
    name, phase, layer = plain(span.name), span.phase and plain(span.phase), span.layer and plain(span.layer)
    same = (name, phase, layer) == (span.name, span.phase, span.layer)
    return span if same else replace(span, name=name, phase=phase, layer=layer)
