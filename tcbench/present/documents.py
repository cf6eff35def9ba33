"""Documents of `tcbench numerics` among results: named, or beside records, they answer what training claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tcbench.core import files
from tcbench.core.errors import SelectionError, StoreError
from tcbench.present.notes import aside

if TYPE_CHECKING:
    from tcbench.analysis.claims import OtherSource

BESIDE = "numerics-*.json"
"""Documents of `tcbench numerics`, which lie beside records."""


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


def training(named: Sequence[Path], files: Sequence[Path]) -> OtherSource:
    """Judge claims by the documents that were named, or else the newest beside the records that can be read, one of one
    rank and one of many; documents of several folders are of several machines, and none of them is chosen.

    Raises SelectionError for several of a kind that were named, and StoreError for one that cannot be read.
    """
    from tcbench.analysis.claims import any_of
    from tcbench.analysis.numerics.judgement import by_training
    from tcbench.core.numerics import read

    beside = {
        document.resolve(): document
        for path in files
        for document in (path.rglob(BESIDE) if path.is_dir() else path.parent.glob(BESIDE))
    }
    if len({path.parent for path in beside}) > 1:
        beside = {}
    chosen: dict[bool, OtherSource] = {}
    for path in named or sorted(beside.values(), key=lambda document: document.name, reverse=True):
        try:
            document = read(path)
        except StoreError as error:
            if named:
                raise
            aside(f"note: left out: {error}")
            continue
        many = document.setting.ranks > 1
        if many in chosen and named:
            raise SelectionError(f"{len(named)} documents of `tcbench numerics` were named; name one")
        chosen.setdefault(many, by_training(document, source=path.name))

    return any_of(*chosen.values())
