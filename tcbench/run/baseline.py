"""Baselines: named copies of results to compare with, stored as `OUT/baselines/NAME.jsonl`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tcbench.core import files, store
from tcbench.core.errors import StoreError, hint
from tcbench.core.record import Record, encode

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Baseline:
    """A summary of a baseline. `commits` are the commits of the user's project if recorded, else tcbench's commits,
    else its versions. `cells` and `trials` are numbers. `began_at` is the start of the first trial (UTC, ISO 8601)."""

    name: str
    path: Path
    machines: tuple[str, ...]
    scenarios: tuple[str, ...]
    commits: tuple[str, ...]
    cells: int
    trials: int
    began_at: str


@dataclass(frozen=True)
class BrokenBaseline:
    """A baseline that cannot be read, and why."""

    name: str
    path: Path
    reason: str


def keep(name: str, results: Iterable[Record], out: Path, *, replace: bool = False) -> Path:
    """Store the newest record of each trial in `results` as a baseline, and return its path. The file is written
    completely or not at all. Raises StoreError for an invalid name, for an existing baseline unless `replace`, without
    records, and if the file cannot be written."""
    path = _path(name, out)
    records = store.current(results)
    if not records:
        raise StoreError(f"baseline '{name}': no records to keep; measure some with `tcbench run`")
    exists = f"baseline '{name}': {path} already exists; --force replaces it"
    if path.exists() and not replace:
        raise StoreError(exists)
    remedy = "free some space, or store it elsewhere with --out FOLDER"
    with files.replacing(path, remedy, error_if_exists=None if replace else exists) as file:
        file.writelines(encode(record) + b"\n" for record in records)
    return path


def baseline_path(name: str, out: Path) -> Path:
    """Return the file of a baseline. Raises StoreError with a hint if there is none of this name."""
    path = _path(name, out)
    if path.is_file():
        return path
    existing = names(out)
    expected = "" if existing else f"`tcbench baseline set {name}` keeps the newest run under this name"
    raise StoreError(f"baseline '{name}': not found in {path.parent}/; {hint(name, existing, expected)}")


def names(out: Path) -> tuple[str, ...]:
    """Return the names of the existing baselines, sorted."""
    folder = out / store.BASELINES
    if not folder.is_dir():
        return ()
    return tuple(sorted(p.stem for p in folder.glob(f"*{store.SUFFIX}") if _NAME.fullmatch(p.stem) and p.is_file()))


def read(name: str, out: Path) -> Baseline:
    """Return the summary of the baseline of this name. Raises StoreError if it does not exist or cannot be read."""
    path = baseline_path(name, out)
    return describe(name, path, store.read([path]).records)


def describe(name: str, path: Path, records: Sequence[Record]) -> Baseline:
    """Return a summary of the records stored under a name. Raises StoreError if there are none."""
    if not records:
        raise StoreError(f"{path}: contains no records; `tcbench baseline set {name} --force` replaces it")
    environments = [record.environment for record in records if record.environment is not None]
    return Baseline(
        name=name,
        path=path,
        machines=tuple(dict.fromkeys(e.machine for e in environments)),
        scenarios=tuple(dict.fromkeys(record.cell.scenario for record in records)),
        commits=tuple(dict.fromkeys(e.project_commit or e.commit or f"tcbench {e.tcbench}" for e in environments)),
        cells=len(dict.fromkeys((e.machine if (e := record.environment) else None, record.cell) for record in records)),
        trials=len(records),
        began_at=min(record.started_at for record in records),
    )


def read_all(out: Path) -> tuple[Baseline | BrokenBaseline, ...]:
    """Return all baselines by name, including those that cannot be read."""
    baselines: list[Baseline | BrokenBaseline] = []
    for name in names(out):
        try:
            baselines.append(read(name, out))
        except StoreError as error:
            baselines.append(BrokenBaseline(name, baseline_path(name, out), str(error)))
    return tuple(baselines)


def remove(name: str, out: Path) -> Path:
    """Delete a baseline, and return the path of the deleted file. Raises StoreError."""
    path = baseline_path(name, out)
    try:
        path.unlink()
    except OSError as error:
        raise StoreError(f"{path}: cannot be removed ({error.strerror})") from None
    return path


def _path(name: str, out: Path) -> Path:
    """Return the path of a baseline of this name, existing or not. Raises StoreError for an invalid name."""
    if not _NAME.fullmatch(name):
        shown = ascii(name if len(name) <= 40 else f"{name[:37]}...")
        raise StoreError(
            f"baseline {shown}: bad name; expected up to 64 letters, digits, '.', '_' or '-', a letter or digit first"
        )
    return out / store.BASELINES / f"{name}{store.SUFFIX}"
