"""Records on disk: append-only JSON lines, `OUT/MACHINE/RUN_ID.jsonl`.

Owns writing them so that none is lost or half written, and reading them back. Knows nothing of what they mean.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tcbench import record as records
from tcbench.errors import StorageFullError, StoreError
from tcbench.record import FINAL_STATUSES, Record, RecordError

SUFFIX = ".jsonl"


class Store:
    """One run's file, open for appending, locked against a second writer. Raises StoreError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise StoreError(f"{path}: cannot be written ({error.strerror}); name another folder with --out") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise StoreError(f"{path}: another tcbench is writing this run; wait for it to end") from None
        self._mend()
        _sync_folder(path.parent)

    def _mend(self) -> None:
        """Drop the half line that a crash may have left at the end."""
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            os.ftruncate(self._fd, data.rfind(b"\n") + 1)

    def append(self, record: Record) -> None:
        """Write one record as one line and wait until it is on the disk. What was there before stays whole."""
        line = records.encode(record) + b"\n"
        size = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, size)
            raise StorageFullError(
                f"{self.path}: a record could not be written ({error.strerror}); earlier records are intact, "
                f"make room and go on with --resume"
            ) from None

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Read:
    """What was read: records in the order they were written, and what is worth saying about the files."""

    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()


def read(paths: Iterable[Path]) -> Read:
    """All records of files and folders (searched for `*.jsonl`). Raises StoreError naming file and line.

    A last line that is cut off is a crash's trace: it is left out, and a note says so.
    """
    found: list[Record] = []
    notes: list[str] = []
    for path in paths:
        for file in _files(path):
            one = _read_file(file)
            found += one.records
            notes += one.notes
    return Read(tuple(found), tuple(notes))


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(path.rglob(f"*{SUFFIX}"))
        if not files:
            raise StoreError(f"{path}: no results here (*{SUFFIX}); `tcbench run` makes some")
        return files
    if not path.exists():
        raise StoreError(f"{path}: no such file or folder; expected results of `tcbench run`")
    return [path]


def _read_file(path: Path) -> Read:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
    lines = data.split(b"\n")
    cut_off = lines.pop()
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(records.decode(line))
        except RecordError as error:
            raise StoreError(f"{path}:{number}: {error}") from None
    if not cut_off:
        return Read(tuple(found))
    try:
        found.append(records.decode(cut_off))
    except RecordError as error:
        if not found:
            raise StoreError(f"{path}:1: {error}") from None
        return Read(tuple(found), (f"{path}: the last line is cut off and was left out; {len(found)} records read",))
    return Read(tuple(found))


def new_run_id(scenario: str, now: datetime.datetime | None = None) -> str:
    """A run's name: its scenario and when it began (UTC)."""
    now = now or datetime.datetime.now(datetime.UTC)
    return f"{scenario}-{now:%Y%m%d-%H%M%S}"


def new_path(out: Path, machine: str, scenario: str) -> Path:
    """A file of its own for a new run."""
    run_id = new_run_id(scenario)
    path, number = out / machine / f"{run_id}{SUFFIX}", 2
    while path.exists():
        path, number = out / machine / f"{run_id}-{number}{SUFFIX}", number + 1
    return path


def latest(out: Path, machine: str, scenario: str) -> Path | None:
    """The newest run of a scenario on a machine, or None. Names carry the time, so the last name is the newest."""
    return max((out / machine).glob(f"{scenario}-[0-9]*{SUFFIX}"), default=None)


def current(found: Iterable[Record]) -> tuple[Record, ...]:
    """One record per cell and trial: the last written, where a resumed run measured one again."""
    newest: dict[tuple[str, str, int], Record] = {}
    for record in found:
        newest[record.run_id, record.cell.key, record.trial] = record
    return tuple(newest.values())


def done(found: Iterable[Record]) -> frozenset[tuple[str, int]]:
    """Cell key and trial of what need not run again: ok, skipped, out of memory."""
    return frozenset((r.cell.key, r.trial) for r in current(found) if r.status in FINAL_STATUSES)


def _sync_folder(folder: Path) -> None:
    """Make a new file's name durable too."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
