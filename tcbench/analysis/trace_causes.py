"""Why the GPU of a training trace is idle. Pure functions.

Every idle nanosecond of the window has exactly one cause. The activity that ends a gap decides:

- its launch is not in the trace: `unknown`
- the host called its launch before the gap began: `launch_call` until the call returns if that takes unusually long
  (see `LONG_CALL`), else `stream_wait` if the last work before the gap was on another stream
  and the launched work could have begun by then (see `launch_latency_ns`), else `dispatch`
- otherwise the time up to the launch belongs to what the launching thread did: the first of `synchronisation`, `input`,
  `launch_call` and `operator` that it was in, else `python`. The time from the launch to the begin of the work is
  `launch_call`, because the GPU would not have waited for it if the host had launched in time. If the work begins much
  later than launched work does, it waited for something else: the excess is `dispatch`.

PyTorch's backward pass has a thread of its own, and one of the two threads waits for the other without a mark. While
the launching thread is in none of these, the other threads that launch work decide.
"""

import bisect
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tcbench.analysis import intervals
from tcbench.analysis.trace_window import Window
from tcbench.core.groups import summed
from tcbench.core.recording import Activity, ApiCall
from tcbench.core.training_trace import ThreadKey, TrainingTrace

HostCause = Literal["synchronisation", "input", "launch_call", "operator", "python"]
IdleCause = Literal[HostCause, "dispatch", "stream_wait", "unknown"]
IDLE_CAUSES: tuple[IdleCause, ...] = (*get_args(HostCause), "dispatch", "stream_wait", "unknown")
_MARKED_CAUSES: tuple[HostCause, ...] = ("synchronisation", "input", "launch_call", "operator")

LONG_LATENCY = 5.0
"""Launched work that begins later than this multiple of the usual latency waited for something else."""

LONG_CALL = 10.0
"""A launching call that lasts longer than this multiple of the median call holds its work back until it returns."""

INPUT_RANGE = re.compile(
    r"enumerate\(DataLoader\)|data_?loader|\b(load|loading|next|get|fetch|wait_for)[ _]?(batch|data|input)"
    r"|\b(batch|data|input)[ _]?(load|loading|fetch|wait)|^\W*(io|input)\W*$",
    re.IGNORECASE,
)
"""The names of ranges in which a program gets its input: PyTorch's own, and words that programs use."""

_SYNCHRONISING = re.compile(r"Synchronize|^(cuda|hip)Memcpy(2D|3D)?(?!.*Async)")
_Interval = tuple[int, int]


@dataclass(frozen=True)
class IdleGap:
    """A gap, cut where its cause changes, so that a gap of several causes is several of these. `launch` is the call
    that launched the work at the gap's end."""

    begin_ns: int
    end_ns: int
    cause: IdleCause
    launch: ApiCall | None


def idle_gaps(trace: TrainingTrace, window: Window) -> Iterator[IdleGap]:
    """Yield the idle time of the window's device with its causes: gap after gap, the parts of a gap in no order."""
    host, latency_ns, long_call_ns = _Host(trace, window), launch_latency_ns(window), _long_call_ns(window)
    for begin, end, last_stream, activity, launch in _raw_gaps(window):
        if launch is None:
            yield IdleGap(begin, end, "unknown", None)
        elif launch.begin_ns <= begin < launch.end_ns and launch.end_ns - launch.begin_ns > long_call_ns:
            returned = min(launch.end_ns, end)
            yield IdleGap(begin, returned, "launch_call", launch)
            if returned < end:
                yield IdleGap(returned, end, "dispatch", launch)
        elif launch.begin_ns <= begin:
            could_begin = launch.end_ns + latency_ns <= begin
            waited = last_stream not in (None, activity.stream) and could_begin
            yield IdleGap(begin, end, "stream_wait" if waited else "dispatch", launch)
        else:
            yield from _host_gap(host, begin, end, launch, LONG_LATENCY * latency_ns)
    busy_until = max((activity.end_ns for activity in window.activities), default=window.begin_ns)
    for begin, end, cause in host.split(busy_until, window.end_ns, window.main):
        yield IdleGap(begin, end, cause, None)


def launch_latency_ns(window: Window) -> float:
    """Return the median time from the end of a launching call to the begin of its work, for work that nothing else held
    up because the GPU was idle when it was launched; 0 if there is no such work."""
    latencies = [
        end - launch.end_ns
        for begin, end, _, _, launch in _raw_gaps(window)
        if launch is not None and begin < launch.begin_ns and launch.end_ns <= end
    ]
    return statistics.median(latencies) if latencies else 0.0


def _long_call_ns(window: Window) -> float:
    """Return the time above which a launching call did more than to launch, such as to load a module."""
    lengths = [launch.end_ns - launch.begin_ns for launch in window.launches if launch is not None]
    return LONG_CALL * statistics.median(lengths) if lengths else 0.0


def _raw_gaps(window: Window) -> Iterator[tuple[int, int, int | None, Activity, ApiCall | None]]:
    """Yield the begin and end of each gap, the stream of the last work before it, and the work that ends it."""
    busy_until, last_stream = window.begin_ns, None
    for activity, launch in zip(window.activities, window.launches, strict=True):
        begin_ns = min(activity.begin_ns, window.end_ns)
        if begin_ns > busy_until:
            yield busy_until, begin_ns, last_stream, activity, launch
        if activity.end_ns >= busy_until:
            busy_until, last_stream = activity.end_ns, activity.stream


def total_causes(gaps: Iterable[IdleGap]) -> dict[IdleCause, int]:
    """Return the idle nanoseconds of each cause, zeros included."""
    idle_ns = summed((gap.cause, gap.end_ns - gap.begin_ns) for gap in gaps)
    return {cause: int(idle_ns.get(cause, 0)) for cause in IDLE_CAUSES}


def _host_gap(host: "_Host", begin: int, end: int, launch: ApiCall, longest_ns: float) -> Iterator[IdleGap]:
    """Yield the parts of a gap during which the host launched the work that ends it. `longest_ns` is the longest time
    from the call's end that counts as its latency."""
    launched, expected = min(launch.begin_ns, end), min(launch.end_ns + round(longest_ns), end)
    for part_begin, part_end, cause in host.split(begin, launched, (launch.process, launch.thread)):
        yield IdleGap(part_begin, part_end, cause, launch)
    if launched < expected:
        yield IdleGap(launched, expected, "launch_call", launch)
    if expected < end:
        yield IdleGap(max(launched, expected), end, "dispatch", launch)


class _Host:
    """The activity of each thread that launches work, as sorted disjoint intervals per cause."""

    def __init__(self, trace: TrainingTrace, window: Window) -> None:
        launchers = {(launch.process, launch.thread) for launch in window.launches if launch is not None}
        self._threads = sorted(launchers | {window.main}, key=lambda thread: (thread != window.main, thread))
        copies = {
            id(launch): activity.end_ns
            for activity, launch in zip(window.activities, window.launches, strict=True)
            if launch is not None and activity.kind == "copy"
        }
        times: dict[tuple[ThreadKey, HostCause], list[_Interval]] = {}
        for call in trace.calls:
            # A copy whose call returns after the copy has ended has waited for it.
            waits = _SYNCHRONISING.search(call.name) or call.end_ns >= copies.get(id(call), call.end_ns + 1)
            cause: HostCause = "synchronisation" if waits else "launch_call"
            key: tuple[ThreadKey, HostCause] = (call.process, call.thread), cause
            times.setdefault(key, []).append((call.begin_ns, call.end_ns))
        for user_range in trace.ranges:
            if INPUT_RANGE.search(user_range.name):
                key = user_range.thread, "input"
                times.setdefault(key, []).append((user_range.begin_ns, user_range.end_ns))
        for thread, operators in trace.operators.items():
            times[thread, "operator"] = list(operators)
        self._times = {key: Cover(values) for key, values in times.items()}

    def split(self, begin: int, end: int, thread: ThreadKey) -> Iterator[tuple[int, int, HostCause]]:
        """Yield the parts of an interval with their causes, in no order. `thread` is the launching thread."""
        rest = [(begin, end)] if begin < end else []
        for candidate in (thread, *(other for other in self._threads if other != thread)):
            for cause in _MARKED_CAUSES:
                cover = self._times.get((candidate, cause))
                if not rest:
                    return
                if cover is None:
                    continue
                uncovered: list[_Interval] = []
                for part in rest:
                    inside = cover.within(*part)
                    yield from ((*piece, cause) for piece in inside)
                    uncovered += _difference(part, inside)
                rest = uncovered
        yield from ((*part, "python") for part in rest)


class Cover:
    """A set of times, which looks up quickly which part of a short interval is in it."""

    def __init__(self, times: Iterable[_Interval]) -> None:
        self._intervals = [(int(begin), int(end)) for begin, end in intervals.union(times)]
        self._ends = [end for _, end in self._intervals]

    def within(self, begin: int, end: int) -> list[_Interval]:
        """Return the parts of the set that lie in an interval."""
        parts = []
        for index in range(bisect.bisect_right(self._ends, begin), len(self._ends)):
            first, last = self._intervals[index]
            if first >= end:
                break
            parts.append((max(first, begin), min(last, end)))
        return parts


def _difference(interval: _Interval, parts: Sequence[_Interval]) -> list[_Interval]:
    """Return an interval without sorted disjoint parts of it."""
    edges = [interval[0], *(edge for part in parts for edge in part), interval[1]]
    return [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]
