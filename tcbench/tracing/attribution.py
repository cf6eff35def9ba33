"""From a recording to a timeline: which step and phase each thing on the GPU belongs to; and from a record's phase
times alone, without any tool.

What the GPU does belongs to the phase in which the thread of the steps launched it, however long after it ran. A launch
from another thread (PyTorch's backward pass has one of its own) counts too if it goes to a stream on which that thread
launches within phases; what goes elsewhere, as the input's own kernels do, belongs to no phase. A captured graph's
nodes belong to the phase that they were captured in where that is known, else to the phase that launched the graph.
"""

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tcbench.core.record import Record
from tcbench.core.recording import HostSpan, Recording, Title
from tcbench.core.timeline import Span, Timeline, TimelineSource

_T = TypeVar("_T")

REPLAY = "replay"
"""The phase of a captured graph's work that cannot be told more exactly."""


@dataclass(frozen=True)
class InputWork:
    """A stretch of time in which a thread of the input worked. Nanoseconds, of the recording's clock."""

    name: str
    row: int
    begin_ns: int
    end_ns: int


def assemble(
    title: Title, recording: Recording, source: TimelineSource, io: Iterable[InputWork] = (), host_speed: float = 1.0
) -> Timeline:
    """One timeline of everything. Its zero is where the first span begins. What the input's threads did before the
    first step and after the last is left out. `host_speed`: times are divided by it, see
    `tcbench.engine.measure.loop.at_host_speed`."""
    steps = [span for span in recording.spans if span.kind == "step"]
    activities = [activity for activity in recording.activities if activity.kind != "input"]
    io = [*io, *(InputWork(a.name, 0, a.begin_ns, a.end_ns) for a in recording.activities if a.kind == "input")]
    first, last = min((s.begin_ns for s in steps), default=0), max((s.end_ns for s in steps), default=0)
    io = [work for work in io if not steps or (work.end_ns > first and work.begin_ns < last)]
    begins = [*(s.begin_ns for s in recording.spans), *(w.begin_ns for w in io), *(a.begin_ns for a in activities)]
    origin = min(begins, default=0)

    def at(time_ns: int) -> float:
        return (time_ns - origin) * 1e-9 / host_speed

    spans = [Span(at(s.begin_ns), at(s.end_ns), "host", s.kind, s.name, s.step, s.phase) for s in recording.spans]
    spans += [Span(at(w.begin_ns), at(w.end_ns), "io", "work", w.name, row=w.row) for w in io]
    owners, calls = _owners(recording.spans), {call.correlation: call for call in recording.calls}
    launches = ((activity.stream, calls.get(activity.correlation)) for activity in recording.activities)
    ours = {  # the streams on which the thread of the steps launches within phases
        stream
        for stream, call in launches
        if call is not None and call.thread == recording.thread and owners(call.begin_ns)[1] is not None
    }
    streams = {activity.stream for activity in activities}
    # Those of the steps before the others, each in order of its number.
    rows = {stream: row for row, stream in enumerate([*sorted(streams & ours), *sorted(streams - ours)])}
    launched: set[int] = set()
    for activity in recording.activities:
        if activity.kind == "input":
            continue
        call = calls.get(activity.correlation)
        step = phase = layer = None
        if call is not None and (call.thread == recording.thread or activity.stream in ours):
            step, phase, layer = owners(call.begin_ns)
            launched.add(call.correlation)
        if activity.graph_node is not None:
            phase = recording.graph_phases.get(activity.graph_node, phase)
        if phase is None and (activity.kind == "graph" or activity.graph_node is not None):
            phase = REPLAY
        when, row = (at(activity.begin_ns), at(activity.end_ns)), rows[activity.stream]
        spans.append(Span(*when, "gpu", activity.kind, activity.name, step, phase, row, activity.bytes, layer))
    for call in recording.calls:
        step, phase, _ = owners(call.begin_ns)
        if step is not None and (call.thread == recording.thread or call.correlation in launched):
            row = int(call.thread != recording.thread)
            spans.append(Span(at(call.begin_ns), at(call.end_ns), "host", "api", call.name, step, phase, row))
    facts = title.label, title.device, title.device_name, title.batch_size
    return Timeline(*facts, source, recording.phases, tuple(spans), title.unit)


def _owners(spans: Sequence[HostSpan]) -> Callable[[int], tuple[int | None, str | None, str | None]]:
    """Tells the step, the phase and the layer that the thread of the steps was in at a time; None where in none."""
    steps = sorted((s.begin_ns, s.end_ns, s.step) for s in spans if s.kind == "step")
    phases = sorted((s.begin_ns, s.end_ns, s.name) for s in spans if s.kind == "phase")
    layers = sorted((s.begin_ns, s.end_ns, s.name) for s in spans if s.kind == "layer")
    return lambda time_ns: (_inside(steps, time_ns), _inside(phases, time_ns), _inside(layers, time_ns))


def _inside(spans: list[tuple[int, int, _T]], time_ns: int) -> _T | None:
    index = bisect.bisect_right(spans, time_ns, key=lambda span: span[0]) - 1
    return spans[index][2] if index >= 0 and time_ns <= spans[index][1] else None


def title_of(record: Record, rank: int = 0) -> Title:
    """A timeline's title for a record's cell, and where that has many ranks for one of them."""
    device_name = record.environment.device_name if record.environment else record.cell.device
    if record.cell.host_speed != 1:
        device_name += f", its host at {record.cell.host_speed:g} times its speed"
    cell = record.cell
    label = cell.label + (f": rank {rank}" if cell.ranks > 1 else "")
    return Title(label=label, device=cell.device, device_name=device_name, batch_size=cell.batch_size, unit=cell.unit)


def from_record(record: Record) -> Timeline | None:
    """A record's steps, profiled or timed: its phase times laid end to end, which is what they are but for the
    microseconds between them. A device's phase ends when its work is done and begins where the one before ended: it
    holds what the device waits for its host. A record keeps no times of the input's threads, layers or kernels. None
    where it has no phase times."""
    measured = record.measurement
    if measured is None or not measured.profiled_steps:
        return None
    spans: list[HostSpan] = []
    on_device: list[Span] = []
    on_gpu, kfac = record.cell.device != "cpu", record.cell.train.kfac
    period = kfac.interval if kfac else 1  # of which each time is the mean
    first_pass = -(-record.cell.measure.profiled_steps // period)
    first, now_ns, device_ns = measured.warmup_steps + measured.timed_steps, 0, 0
    for index in range(measured.profiled_steps):
        if index == first_pass:  # a second pass begins when the device is done with the first
            now_ns = device_ns = max(now_ns, device_ns)
        step_begin_ns = now_ns
        for phase in measured.phases:
            begin_ns, now_ns = now_ns, now_ns + round(phase.host_s[index] * 1e9)
            spans.append(HostSpan("phase", phase.name, first + index, phase.name, begin_ns, now_ns))
            if on_gpu and phase.device_s is not None:
                begin_ns, device_ns = device_ns, device_ns + round(phase.device_s[index] * 1e9)
                when = begin_ns * 1e-9, device_ns * 1e-9
                on_device.append(Span(*when, "gpu", "phase", phase.name, first + index, phase.name))
        spans.append(HostSpan("step", "step", first + index, None, step_begin_ns, now_ns))
    phases = tuple(phase.name for phase in measured.phases)
    made = assemble(title_of(record), Recording(thread=0, phases=phases, spans=tuple(spans)), "ranges")
    return replace(made, spans=(*made.spans, *on_device), record=record)
