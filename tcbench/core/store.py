"""Records on disk, written so that none is lost or half written: append-only JSON lines, `OUT/MACHINE/RUN_ID.jsonl`."""

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

OF_GATE = re.compile(r"((?:gate|bisect)-\d{8}-\d{6}(?:-\d+)?)-(base|current|[0-9a-f]{12})")
"""The id of one of the two sides that a gate measured, or of a commit that was bisected."""

BASELINES = "baselines"
"""The folder under OUT that holds named copies of runs: a folder's records are those of its runs, without these."""

_BEGINS_WITHIN_S = 60
"""A run has locked its file so soon after it made it."""


class Store:
    """One run's file, open for appending, locked against a second writer. Raises StoreError."""

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
        self._whole = bytearray(self._end_last_line())
        files.sync_folder(path.parent)

    def _end_last_line(self) -> bytes:
        """End a last line that lacks its end, or drop it when a crash has left only half of it; what is there then."""
        data = self.path.read_bytes()
        if not data or data.endswith(b"\n"):
            return data
        start = data.rfind(b"\n") + 1
        try:
            decode(data[start:].removeprefix(codecs.BOM_UTF8))
        except RecordError:
            os.ftruncate(self._fd, start)
            return data[:start]
        os.write(self._fd, b"\n")
        return data + b"\n"

    def append(self, record: Record) -> None:
        """Write one record as one line and wait until it is on the disk. What was there before stays whole."""
        line = encode(record) + b"\n"
        self._check_in_place(line)
        try:
            written = os.write(self._fd, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            files.sync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):  # it may be that the file takes no change at all
                os.ftruncate(self._fd, len(self._whole))
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                self._write_again(f"{self.path}: the file cannot be written any more ({error.strerror})", line)
            raise StorageFullError(
                f"{self.path}: a record could not be written ({error.strerror}); earlier records are intact, "
                f"make room and go on with --resume"
            ) from None
        self._whole += line
        self._check_in_place()

    def _check_in_place(self, line: bytes = b"") -> None:
        """Check that the file has its name and its size still. Where it was removed, renamed, replaced or changed, all
        that was written to it, and the line, is written again: there, or beside what lies there now. Raises
        StorageGoneError, which says where."""
        mine = os.fstat(self._fd)
        with contextlib.suppress(OSError):
            if os.path.samestat(self.path.stat(), mine) and mine.st_size == len(self._whole):
                return
        if not self._gone and (self._whole or line):
            self._write_again(
                f"{self.path}: the file was removed, renamed, replaced or changed while the run went on", line
            )

    def _write_again(self, why: str, line: bytes) -> NoReturn:
        """Write it all, with the line, to a new file. Raises StorageGoneError, which says where."""
        self._gone = True
        path = self._written_again(bytes(self._whole) + line)
        if path is None:
            raise StorageGoneError(f"{why}, and what was in it could not be written again")
        folder = shlex.quote(str(self.path.parent))
        back = f"mkdir -p {folder} && mv {shlex.quote(str(path))} {folder}/, and then "
        raise StorageGoneError(
            f"{why}; all that was measured is kept in {path}; "
            f"{'' if path.parent == self.path.parent else back}go on with --resume"
        )

    def _written_again(self, data: bytes) -> Path | None:
        """A new file that holds it, beside the run's or in the folder for temporary files, by a name free in both."""
        run_id = re.sub(r"(-\d{8}-\d{6})-\d+$", r"\1", self.path.stem)
        folders = (self.path.parent, Path(tempfile.gettempdir()))
        for folder in folders:
            for name in itertools.chain([self.path.stem], (f"{run_id}-{number}" for number in itertools.count(2))):
                if any(os.path.lexists(place / f"{name}{SUFFIX}") for place in folders):
                    continue
                path = folder / f"{name}{SUFFIX}"
                try:
                    with files.replacing(path, taken="it is another's") as file:
                        file.write(data)
                except StoreError:
                    if os.path.lexists(path):
                        continue
                    break
                return path
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Give the file back. Raises StorageGoneError where it is not in its place any more."""
        try:
            self._check_in_place()
        finally:
            os.close(self._fd)


@dataclass(frozen=True)
class Read:
    """Records in the order they were written, and notes about the files."""

    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()


def read(paths: Iterable[Path]) -> Read:
    """All records of files and folders (searched for `*.jsonl`). Raises StoreError naming file and line. A last line
    that is cut off is a crash's trace: it is left out, and a note says so."""
    contents = [_read_file(file) for path in paths for file in _files(path)]
    notes = tuple(plain(note) for content in contents for note in content.notes)
    return Read(tuple(record for content in contents for record in content.records), notes)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(runs(path))
        if not files:
            raise StoreError(f"{path}: no results here (*{SUFFIX}); `tcbench run` makes some")
        return files
    if not path.exists():
        raise StoreError(f"{path}: no such file or folder; expected results of `tcbench run`")
    return [path]


def runs(folder: Path) -> list[Path]:
    """The files of records under a folder."""
    paths = (path for path in folder.rglob(f"*{SUFFIX}") if BASELINES not in path.relative_to(folder).parts[:-1])
    return [path for path in paths if path.is_file()]


def resolve(named: str, out: Path) -> Path:
    """The path that a result's name on the command line means: a file or folder, or the id of a run under `out`. Raises
    StoreError, also for an empty name: what a variable that is not set leaves is not the folder one stands in."""
    if not named:
        raise StoreError(f"'': no name of results; expected a file, a folder, or the id of a run in {out}/")
    path = Path(named)
    if path.exists():
        return path
    if "/" not in named and not named.endswith(SUFFIX):
        by_id = {path.stem: path for path in reversed(runs(out))} if out.is_dir() else {}
        if named in by_id:
            return by_id[named]
        expected = f"expected a file, a folder, or the id of a run in {out}/"
        raise StoreError(f"{named}: no such results; {hint(named, by_id, expected)}")
    raise StoreError(f"{named}: no such file or folder; expected results of `tcbench run`")


def _read_file(path: Path) -> Read:
    read_records: list[Record] = []
    decoder = RecordDecoder()
    try:
        with files.opened(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(files.LARGEST + 1), b""), start=1):
                if len(line) > files.LARGEST:
                    most = f"{files.LARGEST >> 20} MiB"
                    raise StoreError(f"{path}:{number}: a line of more than {most}, which no record is")
                if not line.strip():
                    continue
                try:
                    read_records.append(decoder.decode(line))
                except RecordError as error:
                    # Only the last line has no end.
                    if line.endswith(b"\n") or not (read_records or _begins_like_a_record(line)):
                        raise StoreError(f"{path}:{number}: {error}") from None
                    note = f"{path}: the last line is cut off and was left out; {len(read_records)} records read"
                    return Read(tuple(read_records), (note,))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
    return Read(tuple(read_records))


_BEGIN = b'{"schema_version":'
"""The beginning of each line that `append` writes."""


def _begins_like_a_record(cut_off: bytes) -> bool:
    return cut_off.startswith(_BEGIN) or _BEGIN.startswith(cut_off)


def is_blank(path: Path) -> bool:
    """Whether a run's file holds nothing yet, or only what a crash left of its first line."""
    try:
        with files.opened(path) as file:
            first = file.readline(files.LARGEST)
        if first.endswith(b"\n") or not _begins_like_a_record(first):
            return False
        return bool(_read_file(path).notes) or not first
    except (OSError, StoreError):  # whoever reads it says what is wrong
        return False


def new_run_id(scenario: str) -> str:
    """A run's name: its scenario and when it begins (UTC)."""
    return f"{scenario}-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"


def new_path(out: Path, machine: str, scenario: str, ending: str = "") -> Path:
    """A file of its own for a new run, made empty, so that a run that begins in the same second takes another. Its name
    ends with `ending`. Those that killed runs of the scenario left empty are taken away."""
    for left in (out / machine).glob(f"{glob.escape(scenario)}-{'[0-9]' * 8}-{'[0-9]' * 6}*{SUFFIX}"):
        _remove_left(left)
    run_id, number = new_run_id(scenario), 1
    while True:
        path = out / machine / f"{run_id}{f'-{number}' * (number > 1)}{ending}{SUFFIX}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
        except FileExistsError:
            if not path.is_file():  # the folder's place is taken by a file
                raise files.not_writable(path, "not a folder") from None
            number += 1
        except OSError as error:
            raise files.not_writable(path, error.strerror) from None
        else:
            return path


def _remove_left(path: Path) -> None:
    """Take away a run's file in which nothing was stored and that nobody writes, unless the run has just begun."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(file.fileno())
        if not status.st_size and time.time() - status.st_mtime > _BEGINS_WITHIN_S:
            path.unlink()


def latest(out: Path, machine: str | None, scenario: str, ending: str = "") -> Path | None:
    """The newest run of a scenario, as `newest_first` has it, or None."""
    return next(iter(newest_first(out, machine, scenario, ending)), None)


def newest_first(out: Path, machine: str | None, scenario: str, ending: str = "") -> list[Path]:
    """The runs of a scenario on a machine (None: on any) that have a record. Names carry the time, and end as
    `new_path` was told."""
    pattern = re.compile(re.escape(scenario) + r"-(\d{8}-\d{6})(?:-(\d+))?" + re.escape(ending + SUFFIX))
    paths = [path for folder in ([out / machine] if machine else _entries(out)) for path in _entries(folder)]
    found = [
        (believable_start(match[1], path), int(match[2] or 1), path)
        for path in paths
        if (match := pattern.fullmatch(path.name)) and path.is_file() and not is_blank(path)
    ]
    return [path for _, _, path in sorted(found, reverse=True)]


def believable_start(started: str, file: Path) -> str:
    """Return when a run started, such as "20261128-231500" (UTC), by its name. A name that lies in the future is of a
    clock that was wrong: then the file's last write stands for it, and where that lies in the future too, the run is
    older than all others."""
    now_s = time.time() + _CLOCKS_DIFFER_S
    if started <= stamp(now_s):
        return started
    written_at = file.stat().st_mtime
    return stamp(written_at) if written_at <= now_s else ""


def stamp(time_s: float) -> str:
    """Return a time since the epoch as runs are named by it, in UTC."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(time_s))


_CLOCKS_DIFFER_S = 600
"""The clock of a file server or of another node may be ahead by this."""


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def current(results: Iterable[Record]) -> tuple[Record, ...]:
    """The newest records. One whose figures contradict each other has failed."""
    return newest(map(reject_contradiction, results))


def newest(results: Iterable[Record]) -> tuple[Record, ...]:
    """Return one record per machine, run, cell and trial: the last written, where a resumed run measured one again or a
    trial was repeated. Two machines' runs have one id where they began in the same second."""
    results = tuple(results)
    machines = grouped((record.run_id, record.environment.machine) for record in results if record.environment)

    def machine(record: Record) -> str | None:
        """The machine it ran on; of a trial that died before it named one, that of its run, if that is one machine."""
        if record.environment is not None:
            return record.environment.machine
        of_run = set(machines.get(record.run_id, ()))
        return of_run.pop() if len(of_run) == 1 else None

    by_trial = {(machine(record), record.run_id, record.cell.key, record.trial): record for record in results}
    return tuple(by_trial.values())


def remove_empty(path: Path) -> None:
    """Take away the file of a run in which nothing was stored, and its folder where nothing else is in that."""
    with contextlib.suppress(OSError):
        if not path.stat().st_size:
            path.unlink()
            path.parent.rmdir()


def run_id_suffix(label: str | None) -> str:
    """The end of the name of a run with a label. Raises SelectionError."""
    if label is None:
        return ""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", label, re.ASCII):
        raise SelectionError(f"--label {label!a}: expected letters, digits, and any of _ . -")
    return f"_{label}"
