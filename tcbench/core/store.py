"""Records on disk: append-only JSON lines in `OUT/MACHINE/RUN_ID.jsonl`, written so that a crash loses no record."""

import codecs
import contextlib
import datetime
import errno
import fcntl
import glob
import itertools
import os
import re
import shlex
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from tcbench.core import files
from tcbench.core.errors import SelectionError, StorageFullError, StorageGoneError, StoreError, hint
from tcbench.core.groups import grouped
from tcbench.core.record import Record, RecordDecoder, RecordError, decode, encode, reject_contradiction
from tcbench.core.text import plain

SUFFIX = ".jsonl"

GATE_RUN_ID = re.compile(r"((?:gate|bisect)-\d{8}-\d{6}(?:-\d+)?)-(base|current|[0-9a-f]{12})")
"""The run id of one side of a gate, or of a commit in a bisection."""

BASELINES = "baselines"
"""The folder under OUT with named copies of runs. Commands that read all results of a folder skip it."""

_BEGINS_WITHIN_S = 60
"""The time in which a new run locks its file, in seconds."""


class Store:
    """A run's file, open for appending and locked against other writers. Raises StoreError if it is not writable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gone = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise files.not_writable(path, error.strerror) from None
        if not files.lock(self._fd):
            os.close(self._fd)
            raise StoreError(f"{path}: another tcbench is writing this run; wait for it to end")
        self._content = bytearray(self._end_last_line())
        files.sync_folder(path.parent)

    def _end_last_line(self) -> bytes:
        """Complete the last line if it lacks only its line break, drop it if a crash cut it off, and return the content
        of the file."""
        content = self.path.read_bytes()
        if not content or content.endswith(b"\n"):
            return content
        start = content.rfind(b"\n") + 1
        try:
            decode(content[start:].removeprefix(codecs.BOM_UTF8))
        except RecordError:
            os.ftruncate(self._fd, start)
            return content[:start]
        os.write(self._fd, b"\n")
        return content + b"\n"

    def append(self, record: Record) -> None:
        """Append a record as one line and wait until it is on the disk. Earlier records stay intact if this fails.
        Raises StorageFullError, StorageGoneError."""
        line = encode(record) + b"\n"
        self._check_in_place(line)
        try:
            written = os.write(self._fd, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            files.sync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):  # the file may not accept any change
                os.ftruncate(self._fd, len(self._content))
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                self._write_again(f"{self.path}: the file can no longer be written ({error.strerror})", line)
            raise StorageFullError(
                f"{self.path}: a record could not be written ({error.strerror}); earlier records are intact; "
                f"free some space and continue with --resume"
            ) from None
        self._content += line
        self._check_in_place()

    def _check_in_place(self, line: bytes = b"") -> None:
        """Check that the file still has its path and its size. If it was removed, renamed, replaced or changed, write
        its content and the line to a new file and raise StorageGoneError."""
        state = os.fstat(self._fd)
        with contextlib.suppress(OSError):
            if os.path.samestat(self.path.stat(), state) and state.st_size == len(self._content):
                return
        if not self._gone and (self._content or line):
            self._write_again(f"{self.path}: the file was removed, renamed, replaced or changed during the run", line)

    def _write_again(self, reason: str, line: bytes) -> NoReturn:
        """Write the run's content and the line to a new file. Raises StorageGoneError with the path of that file."""
        self._gone = True
        path = self._rescue(bytes(self._content) + line)
        if path is None:
            raise StorageGoneError(f"{reason}, and its records could not be saved elsewhere")
        folder = shlex.quote(str(self.path.parent))
        back = f"mkdir -p {folder} && mv {shlex.quote(str(path))} {folder}/, and then "
        raise StorageGoneError(
            f"{reason}; all records were saved to {path}; "
            f"{'' if path.parent == self.path.parent else back}continue with --resume"
        )

    def _rescue(self, content: bytes) -> Path | None:
        """Write the content to a new file in the run's folder, or else in the folder for temporary files, under a name
        that is free in both. Return the file's path, or None if neither folder can be written."""
        run_id = re.sub(r"(-\d{8}-\d{6})-\d+$", r"\1", self.path.stem)
        folders = (self.path.parent, Path(tempfile.gettempdir()))
        for folder in folders:
            for name in itertools.chain([self.path.stem], (f"{run_id}-{number}" for number in itertools.count(2))):
                if any(os.path.lexists(each / f"{name}{SUFFIX}") for each in folders):
                    continue
                path = folder / f"{name}{SUFFIX}"
                try:
                    with files.replacing(path, error_if_exists="another process took this name") as file:
                        file.write(content)
                except StoreError:
                    if os.path.lexists(path):
                        continue
                    break
                return path
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file. Raises StorageGoneError if it is no longer at its path."""
        try:
            self._check_in_place()
        finally:
            os.close(self._fd)


@dataclass(frozen=True)
class Read:
    """Records in the order in which they were written, and notes about their files."""

    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()


def read(paths: Iterable[Path]) -> Read:
    """Read all records of files, and of the `*.jsonl` files in folders. A last line that a crash cut off is left out,
    with a note. Raises StoreError, with the file and the line of an invalid record."""
    contents = [_read_file(file) for path in paths for file in _files(path)]
    notes = tuple(plain(note) for content in contents for note in content.notes)
    return Read(tuple(record for content in contents for record in content.records), notes)


def _files(path: Path) -> list[Path]:
    """Return the files of records at a path: the file itself, or all runs in a folder, sorted. Raises StoreError if
    there are none."""
    if path.is_dir():
        files = sorted(runs(path))
        if not files:
            raise StoreError(f"{path}: no results here (*{SUFFIX}); measure some with `tcbench run`")
        return files
    if not path.exists():
        raise StoreError(f"{path}: no such file or folder; expected results of `tcbench run`")
    return [path]


def runs(folder: Path) -> list[Path]:
    """Return the files of records under a folder, without baselines."""
    paths = (path for path in folder.rglob(f"*{SUFFIX}") if BASELINES not in path.relative_to(folder).parts[:-1])
    return [path for path in paths if path.is_file()]


def resolve(name: str, out: Path) -> Path:
    """Return the path of results that the command line names: a file, a folder, or the id of a run under `out`. Raises
    StoreError if there are no such results, and for an empty name, which comes from an unset shell variable."""
    expected = f"expected a file, a folder, or the id of a run in {out}/"
    if not name:
        raise StoreError(f"'': an empty name; {expected}")
    path = Path(name)
    if path.exists():
        return path
    if "/" not in name and not name.endswith(SUFFIX):
        by_id = {path.stem: path for path in reversed(runs(out))} if out.is_dir() else {}
        if name in by_id:
            return by_id[name]
        raise StoreError(f"{name}: no such results; {hint(name, by_id, expected)}")
    raise StoreError(f"{name}: no such file or folder; expected results of `tcbench run`")


def _read_file(path: Path) -> Read:
    """Read the records of a file. Raises StoreError with file and line."""
    read_records: list[Record] = []
    decoder = RecordDecoder()
    try:
        with files.open_for_reading(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(files.LARGEST + 1), b""), start=1):
                if len(line) > files.LARGEST:
                    most = f"{files.LARGEST >> 20} MiB"
                    raise StoreError(f"{path}:{number}: the line is longer than {most}, so it is not a record")
                if not line.strip():
                    continue
                try:
                    read_records.append(decoder.decode(line))
                except RecordError as error:
                    # Only the last line can lack its line break.
                    if line.endswith(b"\n") or not (read_records or _begins_like_a_record(line)):
                        raise StoreError(f"{path}:{number}: {error}") from None
                    note = f"{path}: the last line is cut off and was left out; {len(read_records)} records read"
                    return Read(tuple(read_records), (note,))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
    return Read(tuple(read_records))


_BEGIN = b'{"schema_version":'
"""The beginning of every line of records."""


def _begins_like_a_record(cut_off: bytes) -> bool:
    return cut_off.startswith(_BEGIN) or _BEGIN.startswith(cut_off)


def is_blank(path: Path) -> bool:
    """Return whether a run's file is empty or has only the beginning of its first line, left by a crash."""
    try:
        with files.open_for_reading(path) as file:
            first = file.readline(files.LARGEST)
        if first.endswith(b"\n") or not _begins_like_a_record(first):
            return False
        return bool(_read_file(path).notes) or not first
    except (OSError, StoreError):  # reading the file will report the error
        return False


def new_run_id(scenario: str) -> str:
    """Return the id of a run that begins now: its scenario and the time (UTC)."""
    return f"{scenario}-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"


def new_path(out: Path, machine: str, scenario: str, ending: str = "") -> Path:
    """Create an empty file for a new run, and return its path. A run that begins in the same second gets another name.
    The run id ends with `ending`. Empty files of killed runs of the scenario are removed. Raises StoreError."""
    for earlier in (out / machine).glob(f"{glob.escape(scenario)}-{'[0-9]' * 8}-{'[0-9]' * 6}*{SUFFIX}"):
        _remove_abandoned(earlier)
    run_id, number = new_run_id(scenario), 1
    while True:
        path = out / machine / f"{run_id}{f'-{number}' * (number > 1)}{ending}{SUFFIX}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
        except FileExistsError:
            if not path.is_file():  # the parent folder is a file
                raise files.not_writable(path, "not a folder") from None
            number += 1
        except OSError as error:
            raise files.not_writable(path, error.strerror) from None
        else:
            return path


def _remove_abandoned(path: Path) -> None:
    """Remove a run's file if it is empty, not locked, and too old to belong to a run that has just begun."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(file.fileno())
        if not status.st_size and time.time() - status.st_mtime > _BEGINS_WITHIN_S:
            path.unlink()


def latest(out: Path, machine: str | None, scenario: str, ending: str = "") -> Path | None:
    """Return the file of a scenario's newest run, or None if there is none (see `newest_first`)."""
    return next(iter(newest_first(out, machine, scenario, ending)), None)


def newest_first(out: Path, machine: str | None, scenario: str, ending: str = "") -> list[Path]:
    """Return the files of a scenario's runs on a machine (None: on any machine) that have a record, the newest first.
    `ending` is the end of their names, as in `new_path`."""
    pattern = re.compile(re.escape(scenario) + r"-(\d{8}-\d{6})(?:-(\d+))?" + re.escape(ending + SUFFIX))
    dated = [
        (believable_start(match[1], path), int(match[2] or 1), path)
        for path in out.glob(f"{glob.escape(machine) if machine else '*'}/*{SUFFIX}")
        if (match := pattern.fullmatch(path.name)) and path.is_file() and not is_blank(path)
    ]
    return [path for _, _, path in sorted(dated, reverse=True)]


def believable_start(started: str, file: Path) -> str:
    """Return the start time of a run, such as "20261128-231500" (UTC), given its file and the time in the file's name.
    If the time is in the future because a clock was wrong, return the time of the file's last write; if that is in the
    future too, return "", which sorts before all times."""
    now_s = time.time() + _CLOCKS_DIFFER_S
    if started <= stamp(now_s):
        return started
    written_at = file.stat().st_mtime
    return stamp(written_at) if written_at <= now_s else ""


def stamp(time_s: float) -> str:
    """Return a time since the epoch in the format of run ids, in UTC."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(time_s))


_CLOCKS_DIFFER_S = 600
"""The seconds by which the clock of a file server or of another node may be ahead."""


def current(records: Iterable[Record]) -> tuple[Record, ...]:
    """Return the newest record of each trial. Records whose figures contradict each other count as failed."""
    return newest(map(reject_contradiction, records))


def newest(records: Iterable[Record]) -> tuple[Record, ...]:
    """Return the last record of each trial. Trials are distinguished by machine, run id, cell and number, since runs of
    two machines may have the same id. A trial has several records if a resumed run repeated it after a failure."""
    records = tuple(records)
    machines = grouped((record.run_id, record.environment.machine) for record in records if record.environment)

    def machine(record: Record) -> str | None:
        """Return the record's machine. If the record names none, return the machine of its run, or None if runs of
        several machines or of none have this id."""
        if record.environment is not None:
            return record.environment.machine
        candidates = set(machines.get(record.run_id, ()))
        return candidates.pop() if len(candidates) == 1 else None

    by_trial = {(machine(record), record.run_id, record.cell.key, record.trial): record for record in records}
    return tuple(by_trial.values())


def remove_empty(path: Path) -> None:
    """Remove a run's file if it is empty, and then its folder if that is empty too."""
    with contextlib.suppress(OSError):
        if not path.stat().st_size:
            path.unlink()
            path.parent.rmdir()


def run_id_suffix(label: str | None) -> str:
    """Return the end of the id of a run with a label, or "" without a label. Raises SelectionError if the label has
    other characters than letters, digits, and _ . -"""
    if label is None:
        return ""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", label, re.ASCII):
        raise SelectionError(f"--label {label!a}: expected letters, digits, and any of _ . -")
    return f"_{label}"
