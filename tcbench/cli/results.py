"""Which files a command reads when it is given results: the newest run, or what is named, records and timelines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tcbench.errors import SelectionError

if TYPE_CHECKING:
    from tcbench.record import Record

TIMELINES = (".json", ".json.gz", ".sqlite", ".nsys-rep", ".qdrep", ".qdstrm")
"""How files of timelines end; everything else holds records."""


def newest(out: Path) -> Path:
    """The file of records under a folder that was written last. Raises SelectionError."""
    from tcbench.store import runs

    found = [path for path in runs(out) if path.stat().st_size] if out.is_dir() else []
    files = sorted(found, key=lambda path: path.stat().st_mtime)
    if not files:
        raise SelectionError(f"no results in {out}/; `tcbench run` makes some, or name a file")
    return files[-1]


def read(named: Iterable[str] | None, out: Path, default: Path | None = None) -> tuple[Record, ...]:
    """The current records of what was named: files, folders, ids of runs under `out`; of `default`, else the newest
    run there, where nothing was. What is worth saying of the files goes to standard error. Raises StoreError or
    SelectionError."""
    from tcbench import store

    paths = [store.resolve(name, out) for name in named or ()] or [default or newest(out)]
    found = store.read(paths)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    return store.current(found.records)


def parted(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Files and folders of records; files of timelines."""
    records, timelines = list[Path](), list[Path]()
    for path in paths:
        (timelines if path.name.endswith(TIMELINES) and not path.is_dir() else records).append(path)
    return records, timelines
