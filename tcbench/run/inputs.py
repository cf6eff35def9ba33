"""The results that a command is given: the newest run, or the files, folders and ids that are named."""

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
"""The endings of files with timelines; all other files hold records."""

PROFILES = "profile-*.json.gz"
"""The timelines that `tcbench profile` leaves beside records."""

_BEGAN = re.compile(r"(?:^|-)(\d{8}-\d{6})(?:-(\d+))?(?:_.*)?$")
"""The end of a run's name: when it began (UTC), a number where several did, its label."""


def newest(out: Path, tell: Callable[[str], None], *, says: bool = False) -> Path:
    """The file of records under a folder whose run began last, by its name: a copy or a checkout makes every file new.
    What has another name is as old as its last write. A run is what `tcbench run` left: no side of a gate, one of which
    may be what was refused, and no file that git keeps, which may be anyone's. One that ended before its first record
    was whole is passed over. `says`: which it is, before anything else is printed. Raises SelectionError."""
    from tcbench.core.git import tracked
    from tcbench.core.store import OF_GATE, is_blank

    there = by_age(out)
    for path in there:
        if OF_GATE.fullmatch(path.stem):
            continue
        if is_blank(path):
            if path.stat().st_size:
                tell(f"note: {path}: holds only a line that is cut off; skipped")
        elif not tracked(path):
            if says:
                tell(f"the newest run: {path}")
            return path
    if not there:
        raise SelectionError(f"no results in {out}/; `tcbench run` makes some, or name a file")
    raise SelectionError(
        f"no run of yours in {out}/; `tcbench run` makes one, or name what is there, such as {there[0]}"
    )


def runs_here(out: Path) -> tuple[list[Path], int]:
    """Files of records that this machine left and git does not keep; how many others are. Raises SelectionError."""
    from tcbench.core.git import tracked
    from tcbench.core.store import runs
    from tcbench.engine.accelerators.device import kinds

    machines = {device.machine for kind in kinds().values() for device in kind.devices()}
    there = runs(out) if out.is_dir() else []
    here = [path for path in there if path.parent.name in machines and not tracked(path)]
    if not here:
        others = f"; `tcbench history {out}` shows those of others" if there else ", or name a file"
        raise SelectionError(f"no results of this machine in {out}/; `tcbench run` makes some{others}")
    return here, len(there) - len(here)


def by_age(out: Path) -> list[Path]:
    """The files of records under a folder, those that began last first."""
    from tcbench.core.store import runs

    there = runs(out) if out.is_dir() else []
    return sorted(there, key=lambda path: (_age(path), path), reverse=True)


_RECENT = 5


def recent(folder: Path, models: Iterable[str]) -> tuple[Path | None, tuple[Record, ...]]:
    """Of a machine's last runs the newest that measured one of these networks, and its trials of them: by these the
    next run is expected to take as long. What cannot be read tells nothing, and so does what git keeps."""
    from tcbench.core import store
    from tcbench.core.git import tracked

    wanted = frozenset(models)
    ours = (path for path in by_age(folder) if not tracked(path))
    for path in itertools.islice(ours, _RECENT):
        with contextlib.suppress(StoreError):
            records = store.read([path]).records
            if ran := tuple(r for r in records if r.status == "ok" and r.cell.model in wanted):
                return path, ran
    return None, ()


def newest_timeline(out: Path, tell: Callable[[str], None]) -> Path:
    """The profile that was taken last and that git does not keep; says which it is. Raises SelectionError."""
    from tcbench.core.git import tracked

    for path in sorted(out.rglob(PROFILES), key=lambda path: (_age(path), path), reverse=True):
        if not tracked(path):
            tell(f"the newest profile: {path}")
            return path
    raise SelectionError(f"no profile of yours in {out}/; `tcbench profile fp32` makes one, or name a file")


def _age(path: Path) -> tuple[str, int]:
    """A key that sorts runs from the oldest to the newest."""
    from tcbench.core.store import believable_start, stamp

    began = _BEGAN.search(path.name.removesuffix(".json.gz").removesuffix(".jsonl"))
    if began is None:
        return stamp(path.stat().st_mtime), 1
    return believable_start(began[1], path), int(began[2] or 1)


Accepted = Literal["records", "timelines", "profiles", "documents"]
"""The inputs that a command takes. "timelines": timelines beside records, or by themselves. "profiles": the same, and
timelines by themselves stand for the records of their trials. "documents": timelines and documents of `tcbench
numerics`, beside records."""


@dataclass(frozen=True)
class Results:
    """The results that a command was given, and the files of each kind; `notes` are about the files of records."""

    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    traces: tuple[Path, ...] = ()
    documents: tuple[Path, ...] = ()


def read_files(paths: Sequence[Path], tell: Callable[[str], None]) -> Results:
    """Read the current records of files and folders; notes on the files go to standard error too. Raises StoreError,
    also for no records."""
    from tcbench.core import store

    content = store.read(paths)
    if not content.records:
        why = content.notes[0] if content.notes else f"{', '.join(map(str, paths))}: no records in it"
        raise StoreError(f"{why}; `tcbench run` makes some")
    for note in content.notes:
        tell(f"note: {note}")
    return Results(store.current(content.records), content.notes, tuple(paths))


def read_results(names: Iterable[str] | None, out: Path, accepts: Accepted, tell: Callable[[str], None]) -> Results:
    """Read what a command line names: files, folders, ids of runs under `out`. Where no records are named the newest
    run is read, and standard error says which, and that it is simulated. Raises TcbenchError."""
    from tcbench.core import store

    paths, traces, written = [store.resolve(name, out) for name in names or ()], list[Path](), list[Path]()
    if accepts != "records":
        paths, traces = parted(paths)
    if accepts == "documents":
        written, traces = documents(traces)
    alone = accepts in ("timelines", "profiles") and bool(traces) and not paths
    results = Results((), paths=tuple(traces)) if alone else read_files(paths or [newest(out, tell, says=True)], tell)
    if not paths and any(record.environment and record.environment.simulated for record in results.records):
        tell("note: it is simulated")
    timelines: list[Timeline] = []
    for trace in traces:
        from tcbench import tracing

        timelines += (taken := tracing.read(trace))
        if alone and accepts == "profiles":
            if not taken or taken[0].record is None:
                why = "a timeline without the record of its trial; name the results it belongs to"
                raise SelectionError(f"{trace}: {why}")
            results = replace(results, records=(*results.records, taken[0].record))
    return replace(results, timelines=tuple(timelines), traces=tuple(traces), documents=tuple(written))


def chosen(
    records: Iterable[HasCell], configs: Sequence[str], batch_sizes: Sequence[int] | None
) -> tuple[HasCell, ...]:
    """Return the records of these configs (names or globs; none means all) and batch sizes. Raises SelectionError when
    none is left."""
    records = tuple(records)
    known_configs = list(dict.fromkeys(record.cell.config for record in records))
    wanted = set(named(configs, known_configs)) if configs else set(known_configs)
    sizes = set(batch_sizes or (record.cell.batch_size for record in records))
    selected = tuple(r for r in records if r.cell.config in wanted and r.cell.batch_size in sizes)
    if not selected:
        known = ", ".join(map(str, sorted({r.cell.batch_size for r in records if r.cell.config in wanted})))
        asked = ",".join(map(str, batch_sizes or ()))
        raise SelectionError(f"--bs {asked}: not in these results; expected some of {known}")
    return selected


def named(wanted: Iterable[str], there: Sequence[str]) -> list[str]:
    """Those of the configs `there` that names or globs mean, in their order. Raises SelectionError for no match."""
    matches: list[str] = []
    for name in wanted:
        matching = [config for config in there if config == name] or fnmatch.filter(there, name)
        if not matching:
            raise SelectionError(f"--config '{name}': not in these results; {hint(name, there)}")
        matches += matching
    return list(dict.fromkeys(matches))


def parted(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Files and folders of records; files of timelines."""
    records, timelines = list[Path](), list[Path]()
    for path in paths:
        (timelines if path.name.endswith(TIMELINES) and not path.is_dir() else records).append(path)
    return records, timelines


def documents(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Those of `tcbench numerics`; all others."""
    from tcbench.core.numerics import is_document

    def is_one(path: Path) -> bool:
        try:
            return path.name.startswith("numerics-") or is_document(files.read(path))
        except OSError:
            return False

    chosen = [path for path in paths if path.suffix == ".json" and path.is_file() and is_one(path)]
    return chosen, [path for path in paths if path not in chosen]


def files_beside(paths: Iterable[Path], pattern: str) -> dict[Path, Path]:
    """Files within folders of records, by where they really are, or that lie beside files of them: beside one that git
    does not keep no file that it does, which may be anyone's."""
    from tcbench.core.git import tracked

    found = dict[Path, Path]()
    for path in paths:
        if path.is_dir():
            there = list(path.rglob(pattern))
        elif there := list(path.parent.glob(pattern)):
            ours = not tracked(path)
            there = [file for file in there if not (ours and tracked(file))]
        found |= {file.resolve(): file for file in there}
    return found
