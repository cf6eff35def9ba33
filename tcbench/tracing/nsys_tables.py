"""The tables of Nsight Systems' export to SQLite.

The schema of the export differs between versions, and tables without rows are missing, so tables and columns are looked
up first. What else is relied on (Nsight Systems User Guide, "SQLite Schema Reference"; files of 2021.1 to 2026.2):

- All times are nanoseconds of one clock.
- `globalTid` and `globalPid` have the thread's id in their lowest 24 bits and the process's id in the next 24.
- `correlationId` links a call to its activities within a process. The table RUNTIME has the driver's calls too. Every
  node of a launched graph has the correlation of the launch; in GRAPH_TRACE a launched graph is one activity.
- `deviceId` numbers the devices that a process sees; TARGET_INFO_CUDA_DEVICE maps it to the machine's devices.
- NVTX_EVENTS has push/pop ranges (event type 59) and start/end ranges (60), with their name as `text` or `textId`.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tcbench.core.errors import TraceError
from tcbench.core.recording import Activity, ActivityKind, ApiCall, copy_name
from tcbench.core.text import plain
from tcbench.core.training_trace import ThreadKey
from tcbench.tracing.kineto import MOST_NS

_STEPS_PER_SIGNAL = 100_000
"""The number of SQLite instructions between two checks for signals; they take some milliseconds."""

CALL_TABLES = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
ACTIVITY_TABLES: tuple[tuple[str, ActivityKind], ...] = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "kernel"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "copy"),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "memset"),
    ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graph"),
)

_ACTIVITY = frozenset({"start", "end", "correlationId"})
_COLUMNS = {
    "StringIds": frozenset({"id", "value"}),
    "NVTX_EVENTS": frozenset({"start", "end", "eventType", "globalTid"}),
    **dict.fromkeys([*CALL_TABLES, *(table for table, _ in ACTIVITY_TABLES)], _ACTIVITY),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": frozenset({"start", "end"}),
    "TARGET_INFO_GPU": frozenset({"id", "name"}),
    "TARGET_INFO_CUDA_GPU": frozenset({"deviceId", "name"}),
    "TARGET_INFO_CUDA_DEVICE": frozenset({"gpuId", "cudaId", "pid"}),
}
"""The tables that are read, with the columns that they must have."""

_NOT_READ = re.compile(r"CUPTI_ACTIVITY_KIND_(SYNCHRONIZATION|CUDA_EVENT|OVERHEAD|MEMORY|OPENACC|OPENMP)|\w+_API$")
_OF_NSIGHT_SYSTEMS = re.compile(r"CUPTI_|NVTX_|StringIds|TARGET_INFO_|META_DATA_")
_WHOLE = frozenset({int, type(None)})
_LARGEST_ROW = 1 << 24
_MEMORIES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
"""The names of ENUM_CUDA_MEM_KIND, by their numbers."""

_CHECKED: set[tuple[Path, int, int]] = set()
"""The files, with their sizes and times, that SQLite found undamaged; it takes seconds for a large one."""

_PLACE = ("globalPid", "deviceId", "streamId", "correlationId", "graphNodeId", "graphId", "bytes")
_COPY = ("copyKind", "srcKind", "dstKind")


class UnknownSchemaError(Exception):
    """The report may have data in an unknown form, so that it must not be read as if it had none."""


class InvalidValueError(Exception):
    """A value in the report is none that Nsight Systems writes."""


@contextmanager
def open_export(path: Path) -> Iterator[ExportTables]:
    """Open an SQLite export for reading. Raises TraceError, also for an error of SQLite or of a value in the body."""
    try:
        # The URI is quoted, because '#' and '?' in a file's name would have a meaning for SQLite.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.set_progress_handler(lambda: 0, _STEPS_PER_SIGNAL)  # Python handles signals in this call
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # names may be in any encoding
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_ROW)
            state = path.stat()
            if (file := (path, state.st_size, state.st_mtime_ns)) not in _CHECKED:
                # In a damaged or crafted file a page may occur many times, so that a table has rows without end.
                (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if finding != "ok":
                    raise InvalidValueError(finding)
                _CHECKED.add(file)
            yield ExportTables(connection)
    except UnknownSchemaError as error:
        reason = "this version of tcbench does not support this form of Nsight Systems' export"
        raise TraceError(f"{path}: {plain(str(error))}: {reason}") from None
    except (sqlite3.Error, UnicodeDecodeError, InvalidValueError) as error:
        if str(error) == "interrupted":
            raise KeyboardInterrupt from None
        reason = plain(str(error))[:80]
        raise TraceError(f"{path}: not a complete SQLite export of Nsight Systems ({reason})") from None


class ExportTables:
    """A report in SQLite, of which only the existing tables and columns are read."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.begin_ns, self.end_ns, self.invalid_events = MOST_NS, -MOST_NS, 0
        # Only real tables: a crafted file may have views without end, and Nsight Systems makes no views.
        sources = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'")
        self._columns = columns = {name: self._columns_of(name) for (name,) in list(sources)}
        if not any(map(_OF_NSIGHT_SYSTEMS.match, columns)):
            raise InvalidValueError("a database of another program")
        self._tables = {name: self._newest(name, columns) for name in _COLUMNS}
        unread = columns.keys() - {*self._tables.values()}
        # Tables that may hold kernels or copies in a form that this version does not know.
        self._unknown = sorted(
            name
            for name in unread
            if not _NOT_READ.match(name) and ("KERNEL" in name.upper() or columns[name] >= _ACTIVITY)
        )
        self._strings = {number: str(text or "") for number, text in self.values("StringIds", ("id",), ("value",))}

    def _columns_of(self, table: str) -> frozenset[str]:
        return frozenset(name for (name,) in self._connection.execute("SELECT name FROM pragma_table_info(?)", [table]))

    @staticmethod
    def _newest(name: str, columns: Mapping[str, frozenset[str]]) -> str | None:
        """Return the table NAME, or its highest version such as NAME_V2, that has the required columns."""
        versions = {table: re.fullmatch(rf"{name}(?:_V(\d{{1,9}}))?", table) for table in columns}
        numbered = [(int(match[1] or 1), table) for table, match in versions.items() if match]
        return max(((n, table) for n, table in numbered if columns[table] >= _COLUMNS[name]), default=(0, None))[1]

    def __contains__(self, name: str) -> bool:
        """Return whether a table exists in a version that has the required columns."""
        return self._tables[name] is not None

    def _check_complete(self, kinds: Collection[ActivityKind], names: Collection[str]) -> None:
        """Raise UnknownSchemaError if kernels or copies must be in a table that is not known."""
        launched = bool(self._unknown) or any("Launch" in name for name in names)
        if launched and "kernel" not in kinds and "graph" not in kinds:
            where = f"tables {', '.join(self._unknown)}" if self._unknown else "no table of kernels"
            raise UnknownSchemaError(f"kernels were launched, but no known table lists them ({where})")
        if "copy" not in kinds and self._unknown and any("Memcpy" in name for name in names):
            raise UnknownSchemaError(f"no known table lists the copies (tables {', '.join(self._unknown)})")

    def values(
        self, name: str, numbers: Sequence[str], names: Sequence[str] = (), where: str = "1"
    ) -> Iterator[tuple[Any, ...]]:
        """Yield these columns of a table's rows for which a condition holds; None for a column that does not exist.
        Raises InvalidValueError for a value in `numbers` that is no whole number."""
        table = self._tables[name]
        if table is None:
            return
        columns = (f'"{name}"' if name in self._columns[table] else "NULL" for name in (*numbers, *names))
        for row in self._connection.execute(f'SELECT {", ".join(columns)} FROM "{table}" WHERE {where}'):
            if not _WHOLE.issuperset(map(type, row[: len(numbers)])):
                raise InvalidValueError(f"a number in {table} is not a whole number")
            yield row

    def events(
        self, table: str, numbers: Sequence[str], names: Sequence[str], where: str = "1"
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table that had ended when the recording did: begin, end, numbers, and names. Note their
        extent, and count those that end before they begin, which are left out."""
        for row in self.values(table, ("start", "end", *numbers), names, where):
            begin_ns, end_ns, *_ = row
            if end_ns is None:
                continue
            if begin_ns is None or max(abs(begin_ns), abs(end_ns)) > MOST_NS:
                raise InvalidValueError(f"a time in {table} is missing or too large")
            if end_ns < begin_ns:
                self.invalid_events += 1
                continue
            self.begin_ns, self.end_ns = min(self.begin_ns, begin_ns), max(self.end_ns, end_ns)
            yield row

    def calls(self) -> list[ApiCall]:
        """Return the calls of the GPU's API in all processes, in the order of their begin."""
        names: dict[object, str] = {}
        calls = []
        for table in CALL_TABLES:
            for begin_ns, end_ns, global_id, correlation, number in self.events(
                table, ("globalTid", "correlationId"), ("nameId",)
            ):
                if number not in names:
                    names[number] = re.sub(r"_v\d+$", "", plain(self.string(number)))
                process, thread = thread_key(global_id)
                calls.append(ApiCall(names[number], thread, correlation or 0, begin_ns, end_ns, process))
        return sorted(calls, key=lambda call: (call.begin_ns, -call.end_ns))

    def activities(self, calls: Iterable[ApiCall], *, short_names: bool) -> list[Activity]:
        """Return the work of all devices in the order of its begin. Where the report has no processes, it is that of
        the only process of the calls. Raises UnknownSchemaError if kernels or copies must be in an unknown table."""
        callers = {call.process for call in calls}
        lone = callers.pop() if len(callers) == 1 else 0
        device_rows = self.values("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
        devices = {(process, device): gpu for process, device, gpu in device_rows}
        columns = ("shortName", "demangledName") if short_names else ("demangledName", "shortName")
        names: dict[tuple[object, ...], str] = {}
        activities = []
        for table, kind in ACTIVITY_TABLES:
            for begin_ns, end_ns, owner, device, stream, correlation, node, graph, n_bytes, *named_by in self.events(
                table, (*_PLACE, *_COPY), columns
            ):
                key = kind, *named_by
                if key not in names:
                    names[key] = self._activity_name(kind, *named_by, short_names=short_names)
                process = lone if owner is None else thread_key(owner)[0]
                device = devices.get((process & 0xFFFFFF, device), device)
                place = stream or 0, correlation or 0, begin_ns, end_ns, n_bytes, node or None, graph or None
                activities.append(Activity(kind, names[key], *place, device or 0, process))
        self._check_complete({activity.kind for activity in activities}, {call.name for call in calls})
        return sorted(activities, key=lambda activity: (activity.begin_ns, activity.end_ns))

    def _activity_name(
        self, kind: ActivityKind, direction: int, source: int, target: int, *names: object, short_names: bool
    ) -> str:
        """Return a kernel's first name, or the direction of a copy, with the kinds of memory unless it is short."""
        if kind == "kernel":
            return plain(next(filter(None, map(self.string, names)), kind))
        if kind != "copy" or short_names:
            return copy_name(direction) if kind == "copy" else kind
        ends = [_MEMORIES[end] for end in (source, target) if end is not None and 0 <= end < len(_MEMORIES)]
        name = copy_name(direction).replace("memcpy", "Memcpy")
        return f"{name} ({' -> '.join(ends)})" if len(ends) == 2 else name

    def text(self, number: object, text: object) -> str:
        """Return the text of an NVTX event from its number in the list of strings or the text itself."""
        return str(text or self.string(number))

    def string(self, number: Any) -> str:
        """Return the string of a number in the list of strings, or a string itself."""
        if isinstance(number, int) and self._tables["StringIds"] is None:
            raise UnknownSchemaError("names are numbers, but the table StringIds is missing")
        return self._strings.get(number, "") if isinstance(number, int) else str(number or "")


def thread_key(global_id: int | None) -> ThreadKey:
    """Return the process, with the bits of its machine, and the thread of a global id."""
    return (global_id or 0) >> 24, (global_id or 0) & 0xFFFFFF
