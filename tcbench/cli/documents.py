"""Documents of `tcbench numerics` among results: named, or beside records, they answer what training claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tcbench.core.errors import SelectionError, StoreError

if TYPE_CHECKING:
    from tcbench.analysis.claims import OtherSource

BESIDE = "numerics-*.json"
"""Documents of `tcbench numerics`, which lie beside records."""


def documents(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Those of `tcbench numerics`; all others."""
    from tcbench.core.numerics import is_document

    def is_one(path: Path) -> bool:
        return path.name.startswith("numerics-") or is_document(path.read_bytes())

    chosen = [path for path in paths if path.suffix == ".json" and path.is_file() and is_one(path)]
    return chosen, [path for path in paths if path not in chosen]


def training(named: Sequence[Path], files: Sequence[Path]) -> OtherSource:
    """Judge claims by the document that was named, or else the newest beside the records that can be read; documents of
    several folders are of several machines, and none of them is chosen.

    Raises SelectionError for several that were named, and StoreError for one that cannot be read.
    """
    from tcbench.analysis.claims import no_other_source
    from tcbench.core.numerics import read
    from tcbench.numerics.judgement import by_training

    if len(named) > 1:
        raise SelectionError(f"{len(named)} documents of `tcbench numerics` were named; name one")
    beside = {
        document.resolve(): document
        for path in files
        for document in (path.rglob(BESIDE) if path.is_dir() else path.parent.glob(BESIDE))
    }
    if len({path.parent for path in beside}) > 1:
        beside = {}
    for path in named or sorted(beside.values(), key=lambda document: document.name, reverse=True):
        try:
            return by_training(read(path), source=path.name)
        except StoreError as error:
            if named:
                raise
            typer.echo(f"note: left out: {error}", err=True)
    return no_other_source
