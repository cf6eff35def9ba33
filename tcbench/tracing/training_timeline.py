"""The timeline of a training trace's window, in the form of tcbench's own. Pure functions."""

import re
from dataclasses import replace

from tcbench.analysis import intervals
from tcbench.analysis.host_trace import backward_times, collective_ranges
from tcbench.analysis.kernel_kinds import kernel_kind
from tcbench.analysis.trace_advice import UPDATE_RANGE
from tcbench.analysis.trace_causes import INPUT_RANGE
from tcbench.analysis.trace_verdict import BACKWARD, TraceVerdict, outermost_ranges
from tcbench.core.recording import HostSpan, Recording, Title
from tcbench.core.timeline import COMMUNICATION, WINDOW, Span, Timeline
from tcbench.core.training_trace import TrainingTrace
from tcbench.tracing.attribution import assemble

_PHASES = (
    ("io", INPUT_RANGE),
    ("update", UPDATE_RANGE),
    ("forward", re.compile(r"forward|\bfwd\b", re.IGNORECASE)),
    (BACKWARD, re.compile(r"backward|\bbwd\b", re.IGNORECASE)),
)
"""The phases of tcbench's own timelines that ranges under other names are shown as."""


def trace_timeline(trace: TrainingTrace, verdict: TraceVerdict, label: str) -> Timeline:
    """Return the timeline of a trace's window under a label: its steps, or one that stands for the window if there are
    none. The phases on the host are the outermost ranges, and outside of these the backward pass and collectives of
    CPUs."""
    window = verdict.window
    numbers = {each.begin_ns: number[0] for each in trace.ranges if (number := re.findall(r"#(\d+)$", each.name))}
    steps = [
        HostSpan("step", "step", int(numbers.get(begin, place)), None, begin, end)
        for place, (begin, end) in enumerate(window.steps)
    ] or [HostSpan("step", WINDOW, 0, None, window.begin_ns, window.end_ns)]
    phases = [(begin, end, _drawn_phase(name)) for begin, end, name in outermost_ranges(trace, window)]
    collectives = [(each.begin_ns, each.end_ns) for each in collective_ranges(trace)]
    for name, times in ((BACKWARD, backward_times(trace, window.main)), (COMMUNICATION, intervals.union(collectives))):
        inside = intervals.intersection(times, [(step.begin_ns, step.end_ns) for step in steps])
        outside = intervals.difference(inside, intervals.union((begin, end) for begin, end, _ in phases))
        phases = sorted([*phases, *((int(begin), int(end), name) for begin, end in outside)])
    recording = Recording(
        thread=window.main[1],
        phases=tuple(dict.fromkeys(name for _, _, name in phases)),
        spans=(*steps, *(HostSpan("phase", name, None, name, begin, end) for begin, end, name in phases)),
        calls=tuple(c for c in trace.calls if steps[0].begin_ns <= c.begin_ns < window.end_ns),
        # Work that was launched before the first step is drawn too: the GPU was not idle.
        activities=tuple(
            activity
            for activity in trace.activities
            if activity.device == window.device
            and steps[0].begin_ns < activity.end_ns
            and activity.begin_ns < window.end_ns
        ),
    )
    device = f"gpu:{window.device}" if window.activities else "cpu"
    title = Title(label=label, device=device, device_name=verdict.device_name, batch_size=0, unit="items")
    timeline = assemble(title, recording, trace.source)
    return replace(timeline, spans=tuple(map(_with_communication, timeline.spans)))


def _with_communication(span: Span) -> Span:
    is_communication = span.kind == "kernel" and kernel_kind(span.name) == "communication"
    return replace(span, phase=COMMUNICATION) if is_communication else span


def _drawn_phase(range_name: str) -> str:
    return next((phase for phase, pattern in _PHASES if pattern.search(range_name)), range_name)
