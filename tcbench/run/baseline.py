"""Baselines: named copies of results to compare with, `OUT/baselines/NAME.jsonl`."""

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
    """A baseline's contents. `commits` are those of the user's project where records tell one, else tcbench's own, else
    its versions. `began_at` is that of the first trial: UTC, ISO 8601."""

    name: str
    path: Path
    machines: tuple[str, ...]
    scenarios: tuple[str, ...]
    commits: tuple[str, ...]
    cells: int
    trials: int
    began_at: str


@dataclass(frozen=True)
class Broken:
    """A baseline that cannot be read, and why."""

    name: str
    path: Path
    reason: str


def keep(name: str, results: Iterable[Record], out: Path, *, replace: bool = False) -> Path:
    """Keep the current ones of these records under a name; returns the file. It is there whole or not at all. Raises
    StoreError: a name that is none, one that is taken unless `replace`, no records, a folder that cannot be written."""
    path = _place(name, out)
    kept = store.current(results)
    if not kept:
        raise StoreError(f"baseline '{name}': no records to keep; `tcbench run` makes some")
    taken = f"baseline '{name}': {path} is there already; --force replaces it"
    if path.exists() and not replace:
        raise StoreError(taken)
    remedy = "make room, or keep it elsewhere with --out FOLDER"
    with files.replacing(path, remedy, error_if_exists=None if replace else taken) as file:
        file.writelines(encode(record) + b"\n" for record in kept)
    return path


def baseline_path(name: str, out: Path) -> Path:
    """The file of a baseline. Raises StoreError with a hint when there is none of this name."""
    place = _place(name, out)
    if place.is_file():
        return place
    known = names(out)
    expected = "" if known else f"`tcbench baseline set {name}` keeps the newest run under this name"
    raise StoreError(f"baseline '{name}': none of this name in {place.parent}/; {hint(name, known, expected)}")


def names(out: Path) -> tuple[str, ...]:
    """The baselines there are, by name."""
    folder = out / store.BASELINES
    if not folder.is_dir():
        return ()
    return tuple(sorted(p.stem for p in folder.glob(f"*{store.SUFFIX}") if _NAME.fullmatch(p.stem) and p.is_file()))


def read(name: str, out: Path) -> Baseline:
    """The contents of the baseline of this name. Raises StoreError."""
    place = baseline_path(name, out)
    return describe(name, place, store.read([place]).records)


def describe(name: str, place: Path, held: Sequence[Record]) -> Baseline:
    """The summary of records kept under a name. Raises StoreError when there are none."""
    if not held:
        raise StoreError(f"{place}: no records in it; `tcbench baseline set {name} --force` makes it anew")
    environments = [record.environment for record in held if record.environment is not None]
    return Baseline(
        name=name,
        path=place,
        machines=tuple(dict.fromkeys(e.machine for e in environments)),
        scenarios=tuple(dict.fromkeys(record.cell.scenario for record in held)),
        commits=tuple(dict.fromkeys(e.project_commit or e.commit or f"tcbench {e.tcbench}" for e in environments)),
        cells=len(dict.fromkeys((e.machine if (e := record.environment) else None, record.cell) for record in held)),
        trials=len(held),
        began_at=min(record.started_at for record in held),
    )


def everything(out: Path) -> tuple[Baseline | Broken, ...]:
    """All baselines by name; one that cannot be read does not hide the others."""
    baselines: list[Baseline | Broken] = []
    for name in names(out):
        try:
            baselines.append(read(name, out))
        except StoreError as error:
            baselines.append(Broken(name, baseline_path(name, out), str(error)))
    return tuple(baselines)


def remove(name: str, out: Path) -> Path:
    """Delete a baseline; returns the file that was. Raises StoreError."""
    place = baseline_path(name, out)
    try:
        place.unlink()
    except OSError as error:
        raise StoreError(f"{place}: cannot be removed ({error.strerror})") from None
    return place


def _place(name: str, out: Path) -> Path:
    """The file of a baseline of this name, which need not be there. Raises StoreError for what is no name."""
    if not _NAME.fullmatch(name):
        shown = ascii(name if len(name) <= 40 else f"{name[:37]}...")
        raise StoreError(
            f"baseline {shown}: not a name; expected up to 64 letters, digits, '.', '_' or '-', a letter or digit first"
        )
    return out / store.BASELINES / f"{name}{store.SUFFIX}"
