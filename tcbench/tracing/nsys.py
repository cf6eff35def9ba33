"""Nsight Systems: running it, exporting its reports to SQLite, and reading timelines from that.

Source: Nsight Systems User Guide, section "CLI Profile Command Switch Options". NVTX push/pop ranges, which nest within
a thread, have the event type 59, marks have 34."""

from __future__ import annotations

import os
import re
import shutil
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from tcbench.core import process
from tcbench.core.errors import TraceError
from tcbench.core.process import CommandAnswer
from tcbench.core.recording import Activity, ApiCall, HostSpan, Recording, Title
from tcbench.core.timeline import Timeline
from tcbench.tracing.attribution import assemble
from tcbench.tracing.nsys_tables import ExportTables, InvalidValueError, UnknownSchemaError, open_export, thread_key

_Timed = TypeVar("_Timed", HostSpan, ApiCall, Activity)

REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")

_DOMAIN, _STEP, _CELL = "tcbench", "step", "cell "
"""The names in `tcbench.engine.measure.ranges`."""
_DALI = "DALI"
_MARK, _PUSH_POP, _DOMAIN_CREATE = 34, 59, 75
_PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")


# -- running it


@dataclass(frozen=True)
class Nsys:
    """An installed Nsight Systems. `version` is (year, number)."""

    path: str
    version: tuple[int, int]

    def command(self, report: Path, session: str, traced: Sequence[str]) -> list[str]:
        """Return the words to put before a command to record it into the file `report`. `session` is the name by which
        `end` finds the recording. `traced` holds the options for the device (`nsys_options`). Sampling is off: it takes
        time and needs privileges."""
        words = [self.path, "profile", f"--output={report}", "--force-overwrite=true", f"--session-new={session}"]
        words += ["--sample=none", "--cpuctxsw=none", "--kill=none"]
        return [*words, *traced]

    def end(self, session: str) -> None:
        """End a running session and the command that it records."""
        _call([self.path, "shutdown", "--kill=sigkill", f"--session={session}"])


def find() -> Nsys | None:
    """Return the Nsight Systems on PATH, or None."""
    path = shutil.which("nsys")
    if path is None:
        return None
    match = re.search(r"version (\d+)\.(\d+)", _call([path, "--version"]).stdout)
    return Nsys(path, (int(match[1]), int(match[2]))) if match else None


def to_sqlite(report: Path, target: Path) -> None:
    """Export a report to the SQLite file `target`. A `.qdstrm` file, which nsys leaves if it finds no importer, is
    imported first. Raises TraceError if nsys is missing or cannot read the report."""
    installed = find()
    if installed is None:
        raise TraceError(
            f"{report}: reading a report needs nsys on PATH; install Nsight Systems, or run on a machine that has it: "
            f"nsys export --type=sqlite {report.name}"
        )
    if report.suffix == ".qdstrm":
        imported = target.with_suffix(".nsys-rep")
        # The importer is in a folder `host-linux-...` next to that of nsys, or in Debian's /usr/lib/nsight-systems.
        folders = [*Path(installed.path).resolve().parents[1:3], Path("/usr/lib/nsight-systems")]
        importers = [path for folder in folders for path in sorted(folder.glob("host-linux-*/QdstrmImporter"))]
        if not importers:
            raise TraceError(f"{report}: nsys {installed.version[0]}.{installed.version[1]} has no QdstrmImporter here")
        answer = _call([str(importers[0]), "--input-file", str(report), "--output-file", str(imported)])
        if not imported.is_file():
            raise TraceError(f"{report}: QdstrmImporter cannot read this report ({answer.last_line})")
        report = imported
    options = ("--type=sqlite", "--force-overwrite=true", f"--output={target}")
    answer = _call([installed.path, "export", *options, str(report)])
    if answer.code or not target.is_file():
        raise TraceError(f"{report}: nsys cannot read this report ({answer.last_line})")


def report_of(stem: Path) -> Path | None:
    """Return the path of a recording's report, or None if there is none. `stem` is its path without the suffix."""
    return next((path for suffix in REPORTS if (path := stem.with_name(stem.name + suffix)).is_file()), None)


def _call(words: Sequence[str]) -> CommandAnswer:
    # With a display, the importer would open windows.
    return process.ask(words, environment={name: value for name, value in os.environ.items() if name != "DISPLAY"})


# -- reading it


def read(path: Path) -> tuple[Timeline, ...]:
    """Return a timeline for each process in an SQLite export that has tcbench's ranges. Raises TraceError if there is
    none or the file cannot be read."""
    return tuple(assemble(title, recording, "nsys") for title, recording in recordings(path))


def is_other_report(path: Path) -> bool:
    """Return whether a file is an SQLite export without tcbench's ranges. A file that cannot be read is not."""
    try:
        with open_export(path) as tables:
            domains = tables.values("NVTX_EVENTS", (), ("textId", "text"), f'"eventType" = {_DOMAIN_CREATE}')
            return all(tables.text(*row) != _DOMAIN for row in domains)
    except TraceError:
        return False


def recordings(path: Path) -> tuple[tuple[Title, Recording], ...]:
    """Return the cell's title and the recording of each process in an SQLite export that has tcbench's ranges, in the
    order in which the ranges begin. Times are those of the report. Raises TraceError."""
    with open_export(path) as tables:
        if "NVTX_EVENTS" not in tables:
            raise UnknownSchemaError("no table NVTX_EVENTS with the columns of ranges")
        recordings = tuple(_recordings(tables, path.stem))
    if not recordings:
        raise TraceError(f"{path}: it has no ranges of tcbench; expected a report of tcbench under `nsys profile`")
    return recordings


@dataclass(frozen=True)
class _Event:
    """An NVTX event, a range if it is of the kind `_PUSH_POP`. A process can give ranges a payload."""

    begin_ns: int
    end_ns: int
    kind: int
    domain: int | None
    process: int
    thread: int
    text: str
    payload: int | None


def merge_recordings(report: Recording, worker: Recording) -> Recording:
    """Return the part of a report's recording that covers the steps in the worker's recording, with the worker's clock.
    The input's work is the reported one or, if nothing is reported, the worker's. The clocks are aligned by the begins
    of the steps in both. Raises TraceError if the report has none of the steps."""
    begins = {span.step: span.begin_ns for span in worker.spans if span.kind == "step"}
    offsets = [begins[s.step] - s.begin_ns for s in report.spans if s.kind == "step" and s.step in begins]
    if not offsets:
        raise TraceError("Nsight Systems' report has none of the profiled steps")
    offset_ns = round(statistics.median(offsets))
    first_ns = min(begins.values())

    def shifted(spans: Iterable[_Timed]) -> Iterator[_Timed]:
        for span in spans:
            yield msgspec.structs.replace(span, begin_ns=span.begin_ns + offset_ns, end_ns=span.end_ns + offset_ns)

    reports_input = any(activity.kind == "input" for activity in report.activities)
    activities = (*shifted(report.activities), *(() if reports_input else worker.activities))
    return Recording(
        thread=report.thread,
        phases=worker.phases,
        spans=tuple(span for span in shifted(report.spans) if span.step in begins),
        # Without the GPU's remaining work on earlier steps.
        calls=tuple(call for call in shifted(report.calls) if call.begin_ns >= first_ns),
        activities=tuple(activity for activity in activities if activity.end_ns >= first_ns),
    )


def _recordings(tables: ExportTables, name: str) -> Iterator[tuple[Title, Recording]]:
    """Yield the recordings of all processes. `name` is the title of a process that does not name its cell."""
    events = sorted(_events(tables), key=lambda event: event.begin_ns)
    domains = {(event.process, event.domain): event.text for event in events if event.kind == _DOMAIN_CREATE}
    ranges, input_ranges = defaultdict[int, list[_Event]](list), defaultdict[int, list[_Event]](list)
    titles: dict[int, Title] = {}
    for event in events:
        process, domain = event.process, domains.get((event.process, event.domain), "")
        if event.kind == _MARK and domain == _DOMAIN and event.text.startswith(_CELL):
            titles[process] = _title(event.text) or titles.get(process) or _nameless(name)
        elif event.kind == _PUSH_POP and domain == _DOMAIN:
            ranges[process].append(event)
        elif event.kind == _PUSH_POP and _DALI in domain:
            input_ranges[process].append(event)
    calls = tables.calls() if ranges else []
    activities = tables.activities(calls, short_names=True) if ranges else []
    for process in ranges:
        thread = ranges[process][0].thread
        spans = tuple(_nested(ranges[process]))
        steps = {span.phase: None for span in spans if span.kind == "phase"}  # each phase once, in order
        work = (activity for activity in activities if activity.process == process)
        input_work = _input_work(event for event in input_ranges[process] if event.thread != thread)
        recording = Recording(
            thread=thread,
            phases=tuple(name for name in steps if name is not None),
            spans=spans,
            calls=tuple(call for call in calls if call.process == process and call.correlation),
            activities=(*work, *input_work),
        )
        yield titles.get(process, _nameless(name)), recording


def _events(tables: ExportTables) -> Iterator[_Event]:
    """Yield the NVTX events, without ranges that were not ended."""
    numbers = ("start", "end", "eventType", "domainId", "globalTid", *_PAYLOADS)
    for begin_ns, end_ns, kind, domain, global_id, *payloads, number, text in tables.values(
        "NVTX_EVENTS", numbers, ("textId", "text")
    ):
        if begin_ns is None:
            raise InvalidValueError("an NVTX event has no time")
        if end_ns is not None or kind != _PUSH_POP:
            payload = next((payload for payload in payloads if payload is not None), None)
            process, thread = thread_key(global_id)
            times_ns = begin_ns, begin_ns if end_ns is None else end_ns
            yield _Event(*times_ns, kind, domain, process, thread, tables.text(number, text), payload)


def _title(text: str) -> Title | None:
    """Return the title of a recording that tcbench wrote into a range; None if the text is not one."""
    try:
        return msgspec.json.decode(text.removeprefix(_CELL), type=Title)
    except msgspec.DecodeError:
        return None


def _nameless(name: str) -> Title:
    return Title(label=name, device="", device_name="an unnamed device", batch_size=0)


def _nested(ranges: Iterable[_Event]) -> Iterator[HostSpan]:
    """Yield the steps, phases and layers in the nested ranges of one thread, in the order of their begin."""
    open_ranges: list[_Event] = []
    for range_ in sorted(ranges, key=lambda r: (r.begin_ns, -r.end_ns)):
        while open_ranges and open_ranges[-1].end_ns <= range_.begin_ns:
            open_ranges.pop()
        if not open_ranges and range_.text == _STEP:
            yield HostSpan("step", range_.text, range_.payload, None, range_.begin_ns, range_.end_ns)
        elif len(open_ranges) == 1 and open_ranges[0].text == _STEP:
            yield HostSpan("phase", range_.text, open_ranges[0].payload, range_.text, range_.begin_ns, range_.end_ns)
        elif len(open_ranges) > 1 and open_ranges[0].text == _STEP:
            step, phase = open_ranges[0].payload, open_ranges[1].text
            yield HostSpan("layer", range_.text, step, phase, range_.begin_ns, range_.end_ns)
        open_ranges.append(range_)


def _input_work(ranges: Iterable[_Event]) -> tuple[Activity, ...]:
    """Return the outermost ranges of each input thread as activities. `stream` counts the threads from 0."""
    rows: dict[int, int] = {}
    ends: dict[int, int] = {}
    work = []
    for range_ in sorted(ranges, key=lambda r: (r.begin_ns, -r.end_ns)):
        if range_.begin_ns >= ends.get(range_.thread, range_.begin_ns):
            ends[range_.thread] = range_.end_ns
            row = rows.setdefault(range_.thread, len(rows))
            work.append(Activity("input", range_.text, row, 0, range_.begin_ns, range_.end_ns))
    return tuple(work)
