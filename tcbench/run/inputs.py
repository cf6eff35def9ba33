"""Find and read the results that a command takes: files, folders, ids of runs, or the newest run."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from tcbench.core import files
from tcbench.core.errors import SelectionError, StoreError, hint

if TYPE_CHECKING:
    from tcbench.analysis.summary import CellSummary
    from tcbench.core.record import Record
    from tcbench.core.timeline import Timeline

HasCell = TypeVar("HasCell", bound="Record | CellSummary")

TIMELINES = (".json", ".json.gz", ".sqlite", ".nsys-rep", ".qdrep", ".qdstrm")
"""Suffixes of timeline files. All other files hold records."""

PROFILES = "profile-*.json.gz"
"""The pattern of the timeline files that `tcbench profile` writes beside records."""

_START_TIME = re.compile(r"(?:^|-)(\d{8}-\d{6})(?:-(\d+))?(?:_.*)?$")
"""The end of a run's file name: start time (UTC), a number if several runs started in that second, and a label."""


def newest(out: Path, tell: Callable[[str], None], *, announce: bool = False) -> Path:
    """Return the file of the run that started last under `out`.

    The start time is read from the file name, because a copy or a checkout renews modification times. A name without a
    time counts by its modification time. Sides of a gate, files tracked by git and files without a complete record are
    skipped. `tell` receives notes on skipped files and, with `announce`, which run was taken.
    Raises SelectionError if there is no run."""
    from tcbench.core.git import tracked
    from tcbench.core.store import GATE_RUN_ID, is_blank

    paths = runs_by_age(out)
    for path in paths:
        if GATE_RUN_ID.fullmatch(path.stem):
            continue
        if is_blank(path):
            if path.stat().st_size:
                tell(f"note: {path}: contains only an incomplete line; skipped")
        elif not tracked(path):
            if announce:
                tell(f"the newest run: {path}")
            return path
    if not paths:
        raise SelectionError(f"no results in {out}/; measure some with `tcbench run`, or name a file")
    raise SelectionError(
        f"no run of your own in {out}/; measure one with `tcbench run`, or name an existing file, such as {paths[0]}"
    )


def local_runs(out: Path) -> tuple[list[Path], int]:
    """Return the runs that this machine measured and git does not track, and the number of all other runs under `out`.
    Raises SelectionError if this machine has none."""
    from tcbench.core.git import tracked
    from tcbench.core.store import runs
    from tcbench.engine.api import device_kinds

    machines = {device.machine for kind in device_kinds().values() for device in kind.devices()}
    paths = runs(out) if out.is_dir() else []
    local_paths = [path for path in paths if path.parent.name in machines and not tracked(path)]
    if not local_paths:
        remedy = f"; `tcbench history {out}` shows the others" if paths else ", or name a file"
        raise SelectionError(f"no results of this machine in {out}/; measure some with `tcbench run`{remedy}")
    return local_paths, len(paths) - len(local_paths)


def runs_by_age(out: Path) -> list[Path]:
    """Return the files of records under a folder, the run that started last first."""
    from tcbench.core.store import runs

    return sorted(runs(out) if out.is_dir() else [], key=lambda path: (_age(path), path), reverse=True)


_RECENT = 5


def recent_trials(folder: Path, models: Iterable[str]) -> tuple[Path | None, tuple[Record, ...]]:
    """Return the newest run that measured one of these networks, and its successful trials of them.

    Only the last few runs in a machine's folder are read. They predict how long the next run takes. Unreadable files
    and files tracked by git are skipped; without a match, return (None, ())."""
    from tcbench.core import store
    from tcbench.core.git import tracked

    model_names = frozenset(models)
    untracked = (path for path in runs_by_age(folder) if not tracked(path))
    for path in itertools.islice(untracked, _RECENT):
        with contextlib.suppress(StoreError):
            records = store.read([path]).records
            if trials := tuple(r for r in records if r.status == "ok" and r.cell.model in model_names):
                return path, trials
    return None, ()


def newest_timeline(out: Path, tell: Callable[[str], None]) -> Path:
    """Return the newest profile that git does not track, and tell which it is. Raises SelectionError without one."""
    from tcbench.core.git import tracked

    for path in sorted(out.rglob(PROFILES), key=lambda path: (_age(path), path), reverse=True):
        if not tracked(path):
            tell(f"the newest profile: {path}")
            return path
    raise SelectionError(f"no profile of your own in {out}/; record one with `tcbench profile fp32`, or name a file")


def _age(path: Path) -> tuple[str, int]:
    """Return a key by which files of runs and profiles are sorted from the oldest to the newest: the start time in the
    name, else the time of the last write, and the number within that second."""
    from tcbench.core.store import believable_start, stamp

    match = _START_TIME.search(path.name.removesuffix(".json.gz").removesuffix(".jsonl"))
    if match is None:
        return stamp(path.stat().st_mtime), 1
    return believable_start(match[1], path), int(match[2] or 1)


Accepted = Literal["records", "timelines", "profiles", "documents"]
"""The inputs that a command accepts.

- "records": records only.
- "timelines": timelines beside records, or alone.
- "profiles": timelines beside records, or alone; timelines alone also supply the records of their trials.
- "documents": timelines and documents of `tcbench numerics` beside records."""


@dataclass(frozen=True)
class Results:
    """The results that a command reads, with the files of each kind.

    `paths` are the files of records (or of timelines, if only these are read) and `notes` are about them; `traces` are
    the files of `timelines`."""

    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    traces: tuple[Path, ...] = ()
    documents: tuple[Path, ...] = ()


def read_files(paths: Sequence[Path], tell: Callable[[str], None]) -> Results:
    """Read the current records of files and folders, and tell the notes on these files. Raises StoreError, also if
    there are no records."""
    from tcbench.core import store

    content = store.read(paths)
    if not content.records:
        why = content.notes[0] if content.notes else f"{', '.join(map(str, paths))}: contains no records"
        raise StoreError(f"{why}; measure some with `tcbench run`")
    for note in content.notes:
        tell(f"note: {note}")
    return Results(store.current(content.records), content.notes, tuple(paths))


def read_results(names: Iterable[str] | None, out: Path, accepts: Accepted, tell: Callable[[str], None]) -> Results:
    """Read the files, folders and ids of runs under `out` that a command line names.

    If it names no records, read the newest run, and tell which run that is and whether it is simulated; if timelines
    are named and `accepts` allows them alone, read only these. Raises TcbenchError."""
    from tcbench.core import store

    paths, traces, numerics = [store.resolve(name, out) for name in names or ()], list[Path](), list[Path]()
    if accepts != "records":
        paths, traces = split_timelines(paths)
    if accepts == "documents":
        numerics, traces = split_numerics(traces)
    timelines = {trace: _read_timelines(trace) for trace in traces}  # before the newest run is looked for
    alone = accepts in ("timelines", "profiles") and bool(traces) and not paths
    results = (
        Results((), paths=tuple(traces)) if alone else read_files(paths or [newest(out, tell, announce=True)], tell)
    )
    if not paths and any(record.environment and record.environment.simulated for record in results.records):
        tell("note: this run is simulated")
    for trace, recorded in timelines.items():
        if alone and accepts == "profiles":
            if not recorded or recorded[0].record is None:
                why = "this timeline contains no record of its trial; also name the results that it belongs to"
                raise SelectionError(f"{trace}: {why}")
            results = replace(results, records=(*results.records, recorded[0].record))
    all_timelines = tuple(timeline for recorded in timelines.values() for timeline in recorded)
    return replace(results, timelines=all_timelines, traces=tuple(traces), documents=tuple(numerics))


def _read_timelines(path: Path) -> tuple[Timeline, ...]:
    """Read the timelines in a file. Raises TraceError."""
    from tcbench import tracing

    return tracing.read(path)


def select_cells(
    records: Iterable[HasCell], configs: Sequence[str], batch_sizes: Sequence[int] | None
) -> tuple[HasCell, ...]:
    """Return the records of these configs (names or globs) and batch sizes. None of either means all. Raises
    SelectionError if no record is left."""
    records = tuple(records)
    all_configs = list(dict.fromkeys(record.cell.config for record in records))
    config_names = set(match_configs(configs, all_configs)) if configs else set(all_configs)
    sizes = set(batch_sizes or (record.cell.batch_size for record in records))
    selected = tuple(r for r in records if r.cell.config in config_names and r.cell.batch_size in sizes)
    if not selected:
        present = ", ".join(map(str, sorted({r.cell.batch_size for r in records if r.cell.config in config_names})))
        option = ",".join(map(str, batch_sizes or ()))
        raise SelectionError(f"--bs {option}: not in these results; expected some of {present}")
    return selected


def match_configs(patterns: Iterable[str], configs: Sequence[str]) -> list[str]:
    """Return the configs that match one of the patterns (names or globs), in the order of the patterns, without
    duplicates. Raises SelectionError for a pattern without a match."""
    matches: list[str] = []
    for pattern in patterns:
        matching = [config for config in configs if config == pattern] or fnmatch.filter(configs, pattern)
        if not matching:
            raise SelectionError(f"--config '{pattern}': not in these results; {hint(pattern, configs)}")
        matches += matching
    return list(dict.fromkeys(matches))


def split_timelines(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Split paths into files and folders of records, and files of timelines."""
    records, timelines = list[Path](), list[Path]()
    for path in paths:
        (timelines if path.name.endswith(TIMELINES) and not path.is_dir() else records).append(path)
    return records, timelines


def split_profiler_traces(names: Iterable[str] | None) -> tuple[list[Path], list[str] | None]:
    """Split names into traces of other profilers and all others; None stays None. A folder without records stands for
    the traces in it, such as those of PyTorch's `tensorboard_trace_handler`."""
    from tcbench import tracing
    from tcbench.core.store import SUFFIX

    if names is None:
        return [], None
    traces: list[Path] = []
    other_names: list[str] = []
    for name in names:
        path = Path(name)
        has_records = path.is_dir() and any(path.rglob(f"*{SUFFIX}"))
        files_there = sorted(path.iterdir()) if path.is_dir() and not has_records else [path]
        recorded = [
            file
            for file in files_there
            if file.name.lower().endswith(TIMELINES) and file.is_file() and tracing.is_training(file)
        ]
        traces += recorded
        other_names += [] if recorded else [name]
    return traces, other_names


def split_numerics(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Split paths into documents of `tcbench numerics` and all others."""
    from tcbench.core.numerics import is_document

    def is_numerics(path: Path) -> bool:
        """Return whether a file is a document of `tcbench numerics`, by its name or else its content."""
        try:
            return path.name.startswith("numerics-") or is_document(files.read(path))
        except OSError:
            return False

    numerics = [path for path in paths if path.suffix == ".json" and path.is_file() and is_numerics(path)]
    return numerics, [path for path in paths if path not in numerics]


def files_beside(paths: Iterable[Path], pattern: str) -> dict[Path, Path]:
    """Return the files that match a glob, by their resolved paths. `paths` are folders, which are searched, and files
    of records, whose folders are searched without subfolders.

    Next to a file that git does not track, files that git tracks are skipped: they may be from someone else."""
    from tcbench.core.git import tracked

    matches = dict[Path, Path]()
    for path in paths:
        if path.is_dir():
            candidates = list(path.rglob(pattern))
        elif candidates := list(path.parent.glob(pattern)):
            untracked = not tracked(path)
            candidates = [file for file in candidates if not (untracked and tracked(file))]
        matches |= {file.resolve(): file for file in candidates}
    return matches
