"""Timelines as Chrome trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

A trace has one process per timeline and one thread per lane and row. Each span is a complete event (`"ph": "X"`, times
in microseconds: "Trace Event Format", section "Complete Events"), with all fields of the span in its `args`, so that
reading returns exactly what was written. The other fields of a timeline are in `otherData.tcbench`, with the version of
this format."""

import dataclasses
import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tcbench import __version__
from tcbench.core import files
from tcbench.core.errors import TraceError
from tcbench.core.record import Record
from tcbench.core.timeline import Lane, Span, Timeline, TimelineSource

SCHEMA = 1
"""The version of the format."""

_MOST_BYTES = 256 * 2**20
"""The most bytes of a trace that are read. tcbench's traces have a few MB, but a small file may unpack to any size."""

_THREADS: dict[Lane, tuple[int, str]] = {"host": (1, "CPU"), "io": (1001, "input thread"), "gpu": (2001, "GPU stream")}
"""The id of the first thread and the name of threads for each lane."""

_ARGS = [field for field in dataclasses.fields(Span) if field.name != "name"]
"""The fields of a span in an event's `args`. They include the exact times, since an event's own times are rounded."""


class _Event(msgspec.Struct, frozen=True):
    """One event of a trace in the Trace Event format; `ts` and `dur` are in microseconds."""

    name: str
    ph: str
    pid: int
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    cat: str = ""
    args: Any = None


class _TimelineHead(msgspec.Struct, frozen=True):
    """The facts about one timeline that a trace stores in addition to its events."""

    label: str
    device: str
    device_name: str
    batch_size: int
    source: TimelineSource
    phases: tuple[str, ...]
    unit: str = "images"


class _TraceHead(msgspec.Struct, frozen=True):
    """The header of a trace: its schema, its timelines, and the record of the profiled trial."""

    schema: int
    version: str
    timelines: tuple[_TimelineHead, ...]
    record: Record | None = None


class _OtherData(msgspec.Struct, frozen=True):
    tcbench: _TraceHead | None = None


class _Trace(msgspec.Struct, frozen=True):
    traceEvents: tuple[_Event, ...]  # noqa: N815 (the format's name)
    otherData: _OtherData = _OtherData()  # noqa: N815
    displayTimeUnit: str = "ms"  # noqa: N815


def write(timelines: Sequence[Timeline], path: Path, record: Record | None = None) -> None:
    """Write timelines as `.json` or `.json.gz`. `record` is the trial that recorded them. Raises StoreError."""
    events = [event for pid, timeline in enumerate(timelines, start=1) for event in _events(pid, timeline)]
    heads = tuple(_TimelineHead(*(getattr(t, name) for name in _TimelineHead.__struct_fields__)) for t in timelines)
    content = msgspec.json.encode(_Trace(tuple(events), _OtherData(_TraceHead(SCHEMA, __version__, heads, record))))
    content = gzip.compress(content, mtime=0) if path.suffix == ".gz" else content
    files.write(path, content, files.ANOTHER_FOLDER)


def _events(pid: int, timeline: Timeline) -> list[_Event]:
    """Return the events of a timeline, as the process `pid` of the trace."""
    name = f"{timeline.label} on {timeline.device_name}"
    events = [_Event("process_name", "M", pid, args={"name": name})]
    names: dict[int, str] = {}
    for span in timeline.spans:
        first, thread = _THREADS[span.lane]
        tid = first + span.row
        names.setdefault(tid, f"{thread} {span.row}" if span.row or span.lane != "host" else thread)
        if span.lane == "io":
            names[tid] = f"input {span.name}"
        args = {field.name: value for field in _ARGS if (value := getattr(span, field.name)) != field.default}
        ts, dur = round(span.begin_s * 1e6, 3), round(span.duration_s * 1e6, 3)
        events.append(_Event(span.name, "X", pid, tid, ts, dur, span.kind, args))
    for tid, thread in names.items():
        events.append(_Event("thread_name", "M", pid, tid, args={"name": thread}))
        events.append(_Event("thread_sort_index", "M", pid, tid, args={"sort_index": tid}))
    return events


def read(path: Path) -> tuple[Timeline, ...]:
    """Read the timelines of a trace that `write` wrote. Raises TraceError for any other file, and ValueError if a
    timeline is not valid."""
    trace_head, events = _decode(path)
    spans: list[list[Span]] = [[] for _ in trace_head.timelines]
    try:
        for event in events:
            if event.ph == "X":
                spans[event.pid - 1].append(msgspec.convert({**event.args, "name": event.name}, Span))
    except (msgspec.ValidationError, IndexError, TypeError) as error:
        raise TraceError(f"{path}: not an unmodified trace of tcbench ({error})") from None
    return tuple(
        Timeline(**msgspec.structs.asdict(head), spans=tuple(timeline_spans), record=trace_head.record)
        for head, timeline_spans in zip(trace_head.timelines, spans, strict=True)
    )


def _unpacked(path: Path) -> bytes:
    """Return the uncompressed content of a file. Raises TraceError if it is too large."""
    with files.open_for_reading(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else files.open_for_reading(path) as opened:
        content = opened.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        size = f"{_MOST_BYTES >> 20} MiB" + (" unpacked" if packed else "")
        raise TraceError(f"{path}: more than {size}, so it is not a trace of `tcbench profile`")
    return content


def _decode(path: Path) -> tuple[_TraceHead, tuple[_Event, ...]]:
    """Return the head and the events of a trace that tcbench wrote. Raises TraceError for any other file."""
    try:
        trace = msgspec.json.decode(_unpacked(path), type=_Trace)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (EOFError, zlib.error):
        raise TraceError(f"{path}: the file is truncated or damaged; record it again with `tcbench profile`") from None
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: not a trace that `tcbench profile` wrote ({error})") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{path}: not a complete trace ({error}); record it again with `tcbench profile`") from None
    head = trace.otherData.tcbench
    if head is None:
        raise TraceError(f"{path}: a trace, but not one that `tcbench profile` wrote")
    if head.schema > SCHEMA:
        raise TraceError(
            f"{path}: schema version {head.schema} is newer than this tcbench reads ({SCHEMA}); upgrade tcbench"
        )
    return head, trace.traceEvents
