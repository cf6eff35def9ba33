"""Documents of `tcbench numerics` by which claims are judged, beside records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tcbench.core.errors import SelectionError, StoreError
from tcbench.run.inputs import files_beside
from tcbench.show.notes import aside

if TYPE_CHECKING:
    from tcbench.analysis.claims import EvidenceSource

BESIDE = "numerics-*.json"
"""Documents of `tcbench numerics`, which lie beside records."""


def training(named: Sequence[Path], paths: Sequence[Path]) -> tuple[EvidenceSource, ...]:
    """Return functions that judge claims by the documents that were named, or else by the newest beside the records
    that can be read, one of one rank and one of many. Documents of several folders are of several machines, and none of
    them is chosen. Raises SelectionError for several of a kind that were named, and StoreError for one that cannot be
    read."""
    from tcbench.commands.numerics.judgement import by_training
    from tcbench.core.numerics import read

    beside = files_beside(paths, BESIDE)
    if len({path.parent for path in beside}) > 1:
        beside = {}
    chosen: dict[bool, EvidenceSource] = {}
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

    return tuple(chosen.values())
