"""A timeline of a few steps of one cell: what ran when on the host, in the input threads and on the GPU.

All recorders (Nsight Systems, CUPTI, the simulation, tcbench's own ranges) produce this form, and analysis and charts
read only this form. Imports only the standard library."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tcbench.core.text import plain

if TYPE_CHECKING:
    from tcbench.core.record import Record

Lane = Literal["host", "io", "gpu"]
"""The place of a span: the thread that runs the steps, the input's threads, or the device."""

SpanKind = Literal["step", "phase", "layer", "work", "api", "kernel", "copy", "memset", "graph"]
"""The kinds of spans. The lane `host` has steps, phases, layers and CUDA calls (`api`); `io` has `work`; `gpu` has
kernels, copies, memsets, and graphs whose nodes are unknown. Without a record of kernels `gpu` has phases, idle gaps
included."""

TimelineSource = Literal["nsys", "cupti", "simulated", "ranges", "pytorch"]

WINDOW = "window"
"""The name of the step that stands for all that a timeline shows if no steps are marked."""

COMMUNICATION = "communication"
"""The phase of kernels that move data between GPUs, in a timeline of another profiler."""


@dataclass(frozen=True, order=True)
class Span:
    """An activity from `begin_s` to `end_s`, in seconds from the start of the timeline.

    `step` is the number of its step, if known. `phase` is the phase that launched it, or its own name if it is a phase
    ("replay" for a captured graph whose nodes cannot be mapped). `row` distinguishes threads or streams in a lane.
    `bytes` is the size of a copy. `layer` is the layer that launched it, for work on the device, if known.
    `launch` is the same number, from 1, for a CUDA call and for the work on the device that it launched, if known."""

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
    launch: int | None = None

    @property
    def duration_s(self) -> float:
        """The length of the span."""
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class Timeline:
    """Spans sorted by their begin, with names that are safe to print.

    `label` is the cell's ("fp16+dali, batch size 64"), `device` is as in a cell, `device_name` is the product name.
    `phases` are in the order of the step. `unit` is the noun that `batch_size` counts, which is 0 if it is not known.
    `record` is the trial in which the timeline was recorded, if known.

    Raises ValueError for a span that ends before it begins, and for a step of no length."""

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
        """Return the spans of a lane in the order of their begin: those of the given kinds, or all without a kind."""
        return tuple(s for s in self.spans if s.lane == lane and (not kinds or s.kind in kinds))

    @property
    def steps(self) -> tuple[Span, ...]:
        """The spans of the steps."""
        return self.spans_in("host", "step")

    @property
    def begin_s(self) -> float:
        """The begin of the first step, or of the first span if there are no steps."""
        return min((s.begin_s for s in self.steps or self.spans), default=0.0)

    @property
    def end_s(self) -> float:
        """The end of the last step, or of the last span if there are no steps."""
        return max((s.end_s for s in self.steps or self.spans), default=0.0)


def _plain(span: Span) -> Span:
    """Return the span with names that are safe to print."""
    name, phase, layer = plain(span.name), span.phase and plain(span.phase), span.layer and plain(span.layer)
    unchanged = (name, phase, layer) == (span.name, span.phase, span.layer)
    return span if unchanged else replace(span, name=name, phase=phase, layer=layer)
