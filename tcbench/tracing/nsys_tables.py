"""The tables of Nsight Systems' export to SQLite.

The schema of the export differs between versions, and tables without rows are missing, so tables and columns are looked
up first. Source: Nsight Systems User Guide, section "SQLite Schema Reference"."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tcbench.core.errors import TraceError
from tcbench.core.recording import Activity, ActivityKind, ApiCall
from tcbench.core.text import plain

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


class UnknownSchemaError(Exception):
    """The report may have data in an unknown form, so that it must not be read as if it had none."""


@contextmanager
def open_export(path: Path) -> Iterator[ExportTables]:
    """Open an SQLite export for reading. Raises TraceError, also for an error of SQLite or of a value in the body."""
    try:
        # The URI is quoted, because '#' and '?' in a file's name would have a meaning for SQLite.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.row_factory = _row
            connection.set_progress_handler(lambda: 0, _STEPS_PER_SIGNAL)  # Python handles signals in this call
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # names may be in any encoding
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_ROW)
            # In a damaged or crafted file a page may occur many times, so that a table has rows without end.
            (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone().values()
            if finding != "ok":
                raise sqlite3.DatabaseError(finding)
            yield ExportTables(connection)
    except UnknownSchemaError as error:
        reason = "this version of tcbench does not support this form of Nsight Systems' export"
        raise TraceError(f"{path}: {plain(str(error))}: {reason}") from None
    except (sqlite3.Error, OverflowError, TypeError, ValueError) as error:
        if str(error) == "interrupted":
            raise KeyboardInterrupt from None
        reason = plain(str(error))[:80]
        raise TraceError(f"{path}: not a complete SQLite export of Nsight Systems ({reason})") from None


class ExportTables:
    """A report in SQLite, of which only the existing tables and columns are read."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        # Only real tables: a crafted file may have views without end, and Nsight Systems makes no views.
        sources = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'")
        self._columns = columns = {row["name"]: self._columns_of(row["name"]) for row in list(sources)}
        if not any(map(_OF_NSIGHT_SYSTEMS.match, columns)):
            raise ValueError("a database of another program")
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
        quoted = table.replace('"', '""')
        return frozenset(row["name"] for row in self._connection.execute(f'PRAGMA table_info("{quoted}")'))

    @staticmethod
    def _newest(name: str, columns: Mapping[str, frozenset[str]]) -> str | None:
        """Return the table NAME, or its highest version such as NAME_V2, that has the required columns."""
        versions = {table: re.fullmatch(rf"{name}(?:_V(\d{{1,9}}))?", table) for table in columns}
        numbered = [(int(match[1] or 1), table) for table, match in versions.items() if match]
        return max(((n, table) for n, table in numbered if columns[table] >= _COLUMNS[name]), default=(0, None))[1]

    def __contains__(self, name: str) -> bool:
        """Return whether a table exists in a version that has the required columns."""
        return self._tables[name] is not None

    def check_complete(self, activities: Iterable[Activity], calls: Iterable[ApiCall]) -> None:
        """Raise UnknownSchemaError if kernels or copies must be in a table that is not known."""
        kinds, names = {activity.kind for activity in activities}, {call.name for call in calls}
        if not kinds & {"kernel", "graph"} and (self._unknown or any("Launch" in name for name in names)):
            where = f"tables {', '.join(self._unknown)}" if self._unknown else "no table of kernels"
            raise UnknownSchemaError(f"kernels were launched, but no known table lists them ({where})")
        if "copy" not in kinds and self._unknown and any("Memcpy" in name for name in names):
            raise UnknownSchemaError(f"no known table lists the copies (tables {', '.join(self._unknown)})")

    def values(
        self, name: str, numbers: Sequence[str], names: Sequence[str] = (), where: str = "1"
    ) -> Iterator[tuple[Any, ...]]:
        """Yield these columns of a table's rows for which a condition holds; None for a column that does not exist.
        Raises ValueError for a value in `numbers` that is no whole number."""
        table = self._tables[name]
        if table is None:
            return
        columns = (f'"{name}"' if name in self._columns[table] else "NULL" for name in (*numbers, *names))
        cursor = self._connection.cursor()
        cursor.row_factory = None
        rows = cursor.execute(f'SELECT {", ".join(columns)} FROM "{table}" WHERE {where}')
        for row in rows:
            if not _WHOLE.issuperset(map(type, row[: len(numbers)])):
                raise ValueError(f"a number in {table} is not a whole number")
            yield row

    def rows(self, name: str) -> Iterator[SqlRow]:
        """Yield the rows of a table in the order of their start, without activities that were cut off."""
        table = self._tables[name]
        if table is None:
            return
        for row in self._connection.execute(f'SELECT * FROM "{table}" ORDER BY "start"'):
            if not isinstance(row["start"], int) or not isinstance(row["end"], int | None):
                raise ValueError(f"a time in {table} is not a whole number")
            if row["end"] is not None or name == "NVTX_EVENTS":  # an activity without an end was cut off
                yield row

    def text(self, event: SqlRow) -> str:
        """Return the text of an NVTX event."""
        return event["text"] or self.string(event["textId"])

    def string(self, number: Any) -> str:
        """Return the string of a number in the list of strings, or a string itself."""
        if isinstance(number, int) and self._tables["StringIds"] is None:
            raise UnknownSchemaError("names are numbers, but the table StringIds is missing")
        return self._strings.get(number, "") if isinstance(number, int) else str(number or "")


SqlRow = defaultdict[str, Any]
"""A row as a dictionary by column, with None for columns that do not exist."""


def _row(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> SqlRow:
    names = (name for name, *_ in cursor.description)
    return defaultdict(lambda: None, zip(names, values, strict=True))


def process_id(global_id: int | None) -> int:
    """Return the process id in a "serialised global id", which is 24 bits above the 24 bits of the thread id."""
    return ((global_id or 0) >> 24) & 0xFFFFFF
