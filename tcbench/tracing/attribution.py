"""Conversion of recordings and records to timelines, with the step and phase of each activity on the GPU.

- An activity belongs to the phase in which the thread of the steps launched it, even if it ran later.
- A launch by another thread (PyTorch has one for the backward pass) counts too, if its stream is one to which the
  thread of the steps launches within phases. Activities in other streams, such as the input's, belong to no phase.
- A node of a captured graph belongs to the phase in which it was captured, if known, else to the phase that launched
  the graph."""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tcbench.core.record import Record
from tcbench.core.recording import HostSpan, Recording, Title
from tcbench.core.timeline import Span, Timeline, TimelineSource

_T = TypeVar("_T")

REPLAY = "replay"
"""The phase of a captured graph's work if its phase is unknown."""


def assemble(title: Title, recording: Recording, source: TimelineSource, host_speed: float = 1.0) -> Timeline:
    """Return the timeline of a recording under a title. Time 0 is the begin of the first span. The work of the input's
    threads before the first step and after the last is left out. `source` names the recorder. All times are divided by
    `host_speed` (see `tcbench.engine.measure.loop.at_host_speed`)."""
    steps = [span for span in recording.spans if span.kind == "step"]
    activities = [activity for activity in recording.activities if activity.kind != "input"]
    first, last = min((s.begin_ns for s in steps), default=0), max((s.end_ns for s in steps), default=0)
    io = [activity for activity in recording.activities if activity.kind == "input"]
    io = [work for work in io if not steps or (work.end_ns > first and work.begin_ns < last)]
    begins = [*(s.begin_ns for s in recording.spans), *(a.begin_ns for a in (*io, *activities))]
    origin = min(begins, default=0)

    def seconds(time_ns: int) -> float:
        """Return the time in a timeline, in seconds, of a time in the recording."""
        return (time_ns - origin) * 1e-9 / host_speed

    spans = [
        Span(seconds(s.begin_ns), seconds(s.end_ns), "host", s.kind, s.name, s.step, s.phase) for s in recording.spans
    ]
    spans += [Span(seconds(w.begin_ns), seconds(w.end_ns), "io", "work", w.name, row=w.stream) for w in io]
    owners = _owner_lookup(recording.spans)
    calls = {(call.process, call.correlation): call for call in recording.calls}
    numbers = {call: number for number, call in enumerate(calls, start=1)}
    launches = (
        ((activity.device, activity.stream), calls.get((activity.process, activity.correlation)))
        for activity in recording.activities
    )
    step_streams = {  # the streams to which the thread of the steps launches within phases
        stream
        for stream, call in launches
        if call is not None and call.thread == recording.thread and owners(call.begin_ns)[1] is not None
    }
    streams = {(activity.device, activity.stream) for activity in activities}
    ordered_streams = [*sorted(streams & step_streams), *sorted(streams - step_streams)]
    rows = {stream: row for row, stream in enumerate(ordered_streams)}
    launched: set[tuple[int, int]] = set()
    for activity in recording.activities:
        if activity.kind == "input":
            continue
        stream, key = (activity.device, activity.stream), (activity.process, activity.correlation)
        call = calls.get(key)
        step = phase = layer = None
        if call is not None and (call.thread == recording.thread or stream in step_streams):
            step, phase, layer = owners(call.begin_ns)
            launched.add((call.process, call.correlation))
        if activity.graph_node is not None:
            phase = recording.graph_phases.get(activity.graph_node, phase)
        if phase is None and (activity.kind == "graph" or activity.graph_node is not None):
            phase = REPLAY
        begin_s, end_s = seconds(activity.begin_ns), seconds(activity.end_ns)
        origins = step, phase, rows[stream], activity.bytes, layer, numbers.get(key)
        spans.append(Span(begin_s, end_s, "gpu", activity.kind, activity.name, *origins))
    threads = {recording.thread: 0}  # the row of each thread
    for call in recording.calls:
        step, phase, _ = owners(call.begin_ns)
        if step is not None and (call.thread == recording.thread or (call.process, call.correlation) in launched):
            times_s, row = (seconds(call.begin_ns), seconds(call.end_ns)), threads.setdefault(call.thread, len(threads))
            launch = numbers[call.process, call.correlation]
            spans.append(Span(*times_s, "host", "api", call.name, step, phase, row, launch=launch))
    facts = title.label, title.device, title.device_name, title.batch_size
    return Timeline(*facts, source, recording.phases, tuple(spans), title.unit)


def _owner_lookup(spans: Sequence[HostSpan]) -> Callable[[int], tuple[int | None, str | None, str | None]]:
    """Return a function from a time in nanoseconds to the step number, the phase and the layer in which the thread of
    the steps was at that time, each None if it was in none."""
    steps = sorted((s.begin_ns, s.end_ns, s.step) for s in spans if s.kind == "step")
    phases = sorted((s.begin_ns, s.end_ns, s.name) for s in spans if s.kind == "phase")
    layers = sorted((s.begin_ns, s.end_ns, s.name) for s in spans if s.kind == "layer")
    return lambda time_ns: (_inside(steps, time_ns), _inside(phases, time_ns), _inside(layers, time_ns))


def _inside(spans: list[tuple[int, int, _T]], time_ns: int) -> _T | None:
    index = bisect.bisect_right(spans, time_ns, key=lambda span: span[0]) - 1
    return spans[index][2] if index >= 0 and time_ns <= spans[index][1] else None


def title_of(record: Record, rank: int = 0) -> Title:
    """Return the title of a timeline of a record's cell or, if the cell has several ranks, of one rank."""
    device_name = record.environment.device_name if record.environment else record.cell.device
    if record.cell.host_speed != 1:
        device_name += f", its host at {record.cell.host_speed:g} times its speed"
    cell = record.cell
    label = cell.label + (f": rank {rank}" if cell.ranks > 1 else "")
    return Title(label=label, device=cell.device, device_name=device_name, batch_size=cell.batch_size, unit=cell.unit)


def from_record(record: Record) -> Timeline | None:
    """Return a timeline of a record's phases, or None if it has no phase times.

    The phases are put end to end, since a record does not store the microseconds between them. A phase on the device
    begins where the previous one ended, so it includes the time in which the device waits for the host. There are no
    input threads, layers or kernels."""
    measured = record.measurement
    if measured is None or not measured.profiled_steps:
        return None
    spans: list[HostSpan] = []
    on_device: list[Span] = []
    on_gpu, kfac = record.cell.device != "cpu", record.cell.train.kfac
    period = kfac.interval if kfac else 1  # each phase time is the mean over a period of steps
    first_pass = -(-record.cell.measure.profiled_steps // period)  # rounded up
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
                times_s = begin_ns * 1e-9, device_ns * 1e-9
                on_device.append(Span(*times_s, "gpu", "phase", phase.name, first + index, phase.name))
        spans.append(HostSpan("step", "step", first + index, None, step_begin_ns, now_ns))
    phases = tuple(phase.name for phase in measured.phases)
    timeline = assemble(title_of(record), Recording(thread=0, phases=phases, spans=tuple(spans)), "ranges")
    return replace(timeline, spans=(*timeline.spans, *on_device), record=record)
