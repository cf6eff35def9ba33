"""Which files a command reads when it is given results: the newest run, or what is named, records and timelines."""

from __future__ import annotations

import difflib
import fnmatch
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tcbench.core.errors import SelectionError

if TYPE_CHECKING:
    from tcbench.core.record import Record

TIMELINES = (".json", ".json.gz", ".sqlite", ".nsys-rep", ".qdrep", ".qdstrm")
"""How files of timelines end; everything else holds records."""


_BEGAN = re.compile(r"(?:^|-)(\d{8}-\d{6})(?:-(\d+))?(?:-(?:base|current))?$")
"""The end of a run's name: when it began (UTC), a number where several did, the side of a gate."""


def newest(out: Path) -> Path:
    """The file of records under a folder whose run began last, by its name: a copy or a checkout makes every file new.
    What has another name is as old as its last write. Of a gate's two sides it is the current one. One that ended
    before its first record was whole is passed over. Raises SelectionError."""
    from tcbench.core.store import is_blank, runs

    there = [path for path in (runs(out) if out.is_dir() else []) if not _is_base(path)]
    for path in sorted(there, key=lambda path: (_age(path), path), reverse=True):
        if not is_blank(path):
            return path
        if path.stat().st_size:
            typer.echo(f"note: {path}: holds nothing but a line that is cut off; passed over", err=True)
    raise SelectionError(f"no results in {out}/; `tcbench run` makes some, or name a file")


def _age(path: Path) -> tuple[str, int, float]:
    """What sorts runs from the oldest to the newest."""
    written_at = path.stat().st_mtime
    began = _BEGAN.search(path.stem)
    if began is None:
        return time.strftime("%Y%m%d-%H%M%S", time.gmtime(written_at)), 1, written_at
    return began[1], int(began[2] or 1), written_at


def _is_base(path: Path) -> bool:
    """Whether it is what a gate judged another file against."""
    side = path.stem.removesuffix("-base")
    return side != path.stem and path.with_stem(f"{side}-current").is_file()


def read(named: Iterable[str] | None, out: Path, default: Path | None = None) -> tuple[Record, ...]:
    """The current records of what was named: files, folders, ids of runs under `out`; of `default`, else the newest
    run there, where nothing was. What is worth saying of the files goes to standard error. Raises StoreError or
    SelectionError."""
    from tcbench.core import store

    paths = [store.resolve(name, out) for name in named or ()] or [default or newest(out)]
    found = store.read(paths)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    return store.current(found.records)


def chosen(
    records: Iterable[Record], configs: Sequence[str] = (), batch_sizes: Sequence[int] | None = None
) -> tuple[Record, ...]:
    """Those of these configs (names or globs; all where none is given) and batch sizes. Raises SelectionError when a
    name matches nothing that was run."""
    records = tuple(records)
    if not records:
        raise SelectionError("no records in these results; `tcbench run` makes some")
    there = list(dict.fromkeys(record.cell.config for record in records))
    wanted = set(named(configs, there)) if configs else set(there)
    sizes = set(batch_sizes or (record.cell.batch_size for record in records))
    found = tuple(r for r in records if r.cell.config in wanted and r.cell.batch_size in sizes)
    if not found:
        known = ", ".join(map(str, sorted({r.cell.batch_size for r in records if r.cell.config in wanted})))
        asked = ",".join(map(str, batch_sizes or ()))
        raise SelectionError(f"--bs {asked}: not in these results; expected some of {known}")
    return found


def named(wanted: Iterable[str], there: Sequence[str]) -> list[str]:
    """Those of the configs `there` that names or globs mean, in their order. Raises SelectionError for one that means
    none."""
    found: list[str] = []
    for name in wanted:
        matching = [config for config in there if config == name] or fnmatch.filter(there, name)
        if not matching:
            close = difflib.get_close_matches(name, there, n=1)
            known = ", ".join(there[:6]) + (", ..." if len(there) > 6 else "")
            hint = f"did you mean '{close[0]}'?" if close else f"expected some of {known}"
            raise SelectionError(f"--config '{name}': not in these results; {hint}")
        found += matching
    return list(dict.fromkeys(found))


def parted(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Files and folders of records; files of timelines."""
    records, timelines = list[Path](), list[Path]()
    for path in paths:
        (timelines if path.name.endswith(TIMELINES) and not path.is_dir() else records).append(path)
    return records, timelines
