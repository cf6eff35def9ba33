"""Timelines as Chrome trace JSON, which Perfetto (ui.perfetto.dev) and readers of PyTorch's traces open.

Each span is a complete event (`"ph": "X"`, times in microseconds: "Trace Event Format", section "Complete Events"),
with all fields of the span in its `args`, so that reading returns exactly what was written. The other fields of a
timeline are in `otherData.tcbench`, with the version of this format.

Categories, names of steps, ids and flows are those of PyTorch's profiler (Kineto), for HolisticTraceAnalysis, TraceLens
and TensorBoard's plugin. These need positive streams and correlations, GPU rows whose process is the device's number,
and ids that no other timeline in the file has."""

import dataclasses
import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tcbench import __version__
from tcbench.core import files
from tcbench.core.errors import TraceError
from tcbench.core.record import Record
from tcbench.core.timeline import Span, SpanKind, Timeline, TimelineSource

SCHEMA = 2
"""The version of the format. In version 1 the process of all events is the timeline's place in the file, from 1."""

_MOST_BYTES = 256 * 2**20
"""The most bytes of a trace that are read. tcbench's traces have a few MB, but a small file may unpack to any size."""

_PROCESS, _INPUT_THREAD, _STREAM = 10_000, 1001, 7
"""The process and main thread of the first timeline's host, its first input thread from there, and the first stream,
which is the number that CUPTI gives to CUDA's default stream. The GPU's process is the timeline's index."""

_CATEGORIES: Mapping[SpanKind, str] = {
    **dict.fromkeys(("step", "phase"), "user_annotation"),
    **dict.fromkeys(("layer", "work"), "cpu_op"),
    **dict.fromkeys(("kernel", "graph"), "kernel"),
    "api": "cuda_runtime",
    "copy": "gpu_memcpy",
    "memset": "gpu_memset",
}

_ARGS = [field for field in dataclasses.fields(Span) if field.name != "name"]
"""The fields of a span in an event's `args`. They include the exact times, since an event's own times are rounded."""


class _Event(msgspec.Struct, frozen=True):
    """One event of a trace in the Trace Event format; `ts` and `dur` are in microseconds. Names of processes and
    threads have no times, and flows no duration: HolisticTraceAnalysis takes events with a duration for spans."""

    name: str
    ph: str
    pid: int
    tid: int = 0
    ts: float | msgspec.UnsetType = msgspec.UNSET
    dur: float | msgspec.UnsetType = msgspec.UNSET
    cat: str | msgspec.UnsetType = msgspec.UNSET
    args: Any = msgspec.UNSET
    id: int | msgspec.UnsetType = msgspec.UNSET
    bp: str | msgspec.UnsetType = msgspec.UNSET


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


class _Trace(msgspec.Struct, frozen=True, kw_only=True):
    schemaVersion: int = 1  # noqa: N815 (the format's name)
    deviceProperties: Any = ()  # noqa: N815 (HolisticTraceAnalysis reads it only in front of the events)
    traceEvents: tuple[_Event, ...]  # noqa: N815
    otherData: _OtherData = _OtherData()  # noqa: N815
    displayTimeUnit: str = "ms"  # noqa: N815


def write(timelines: Sequence[Timeline], path: Path, record: Record | None = None) -> None:
    """Write timelines as `.json` or `.json.gz`. `record` is the trial that recorded them. Raises StoreError."""
    events = [event for number, timeline in enumerate(timelines) for event in _events(number, timeline)]
    heads = tuple(_TimelineHead(*(getattr(t, name) for name in _TimelineHead.__struct_fields__)) for t in timelines)
    other = _OtherData(_TraceHead(SCHEMA, __version__, heads, record))
    trace = _Trace(deviceProperties=_gpus(timelines, record), traceEvents=tuple(events), otherData=other)
    content = msgspec.json.encode(trace)
    content = gzip.compress(content, mtime=0) if path.suffix == ".gz" else content
    files.write(path, content, files.ANOTHER_FOLDER)


def _gpus(timelines: Sequence[Timeline], record: Record | None) -> list[dict[str, Any]]:
    """Return the properties of each timeline's GPU, as PyTorch's profiler names them."""
    gpu = record.environment.gpu if record and record.environment else None
    properties: dict[str, Any] = {}
    if gpu is not None:
        major, minor = gpu.compute_capability
        properties = {"totalGlobalMem": gpu.memory_bytes, "computeMajor": major, "computeMinor": minor}
        properties["numSms"] = gpu.multiprocessors
    on_gpu = [(number, timeline) for number, timeline in enumerate(timelines) if timeline.device != "cpu"]
    return [{"id": number, "name": timeline.device_name, **properties} for number, timeline in on_gpu]


def _events(number: int, timeline: Timeline) -> list[_Event]:
    """Return the events of the timeline with this index in the file."""
    base = (number + 1) << 24  # HolisticTraceAnalysis stores indexes of events in an integer as wide as these ids
    calls = {span.launch: span for span in timeline.spans_in("host", "api") if span.launch is not None}
    names: dict[tuple[int, int], str] = {}
    events: list[_Event] = []
    for span in timeline.spans:
        pid, tid = place = _place(number, span)
        names.setdefault(place, _thread_name(span))
        name, category = span.name, _CATEGORIES[span.kind]
        args = {field.name: value for field in _ARGS if (value := getattr(span, field.name)) != field.default}
        if span.kind == "step" and span.step is not None:
            name, args["name"] = f"ProfilerStep#{span.step}", span.name
        elif span.lane == "gpu" and span.kind == "phase":
            category = "gpu_user_annotation"
        elif span.lane == "gpu":
            args |= {"device": number, "stream": tid}
        if span.launch is not None:
            args["correlation"] = base + span.launch
        ts, end = round(span.begin_s * 1e9), round(span.end_s * 1e9)  # rounded alike, so that spans still nest
        events.append(_Event(name, "X", pid, tid, ts / 1e3, (end - ts) / 1e3, category, args))
        if span.lane == "gpu" and span.launch is not None and (call := calls.pop(span.launch, None)) is not None:
            call_ts, flow = round(call.begin_s * 1e9) / 1e3, base + span.launch
            events.append(_Event("ac2g", "s", *_place(number, call), call_ts, cat="ac2g", id=flow))
            events.append(_Event("ac2g", "f", pid, tid, ts / 1e3, cat="ac2g", id=flow, bp="e"))
    for pid in {pid: None for pid, _ in names}:
        process = f"{timeline.label} on {timeline.device_name}" + (": GPU" if pid < _PROCESS else "")
        events.append(_Event("process_name", "M", pid, args={"name": process}))
        order = 2 * number + (pid < _PROCESS)
        events.append(_Event("process_sort_index", "M", pid, args={"sort_index": order}))
    for (pid, tid), thread in names.items():
        events.append(_Event("thread_name", "M", pid, tid, args={"name": thread}))
        events.append(_Event("thread_sort_index", "M", pid, tid, args={"sort_index": tid}))
    return events


def _place(number: int, span: Span) -> tuple[int, int]:
    """Return the process and the thread of a span's event in the timeline with this index."""
    if span.lane == "gpu":
        return number, _STREAM + span.row
    process = _PROCESS * (number + 1)
    return process, process + span.row + (_INPUT_THREAD if span.lane == "io" else 0)


def _thread_name(span: Span) -> str:
    """Return the name of the row in which a span is."""
    if span.lane == "io":
        return f"input {span.name}"
    return f"GPU stream {span.row}" if span.lane == "gpu" else f"CPU {span.row}" if span.row else "CPU"


def _timeline_index(schema: int, pid: int) -> int:
    """Return the index of the timeline to which events of a process belong. Raises IndexError if it is negative."""
    index = pid - 1 if schema == 1 else pid if pid < _PROCESS else pid // _PROCESS - 1
    if index < 0:
        raise IndexError(f"no timeline has process {pid}")
    return index


def read(path: Path) -> tuple[Timeline, ...]:
    """Read the timelines of a trace that `write` wrote. Raises TraceError for any other file, and ValueError if a
    timeline is not valid."""
    trace_head, events = _decode(path)
    spans: list[list[Span]] = [[] for _ in trace_head.timelines]
    try:
        for event in events:
            if event.ph == "X":
                timeline_spans = spans[_timeline_index(trace_head.schema, event.pid)]
                timeline_spans.append(msgspec.convert({"name": event.name, **event.args}, Span))
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
        raise TraceError(f"{path}: the file is truncated or damaged; copy or record it again") from None
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: not a trace that `tcbench profile` wrote ({error})") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{path}: not a complete trace ({error}); copy or record it again") from None
    head = trace.otherData.tcbench
    if head is None:
        raise TraceError(f"{path}: a trace, but not one that `tcbench profile` wrote")
    if head.schema > SCHEMA:
        raise TraceError(
            f"{path}: schema version {head.schema} is newer than this tcbench reads ({SCHEMA}); upgrade tcbench"
        )
    return head, trace.traceEvents
