"""Evidence for claims from documents of `tcbench numerics`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tcbench.core.errors import SelectionError, StoreError
from tcbench.run.inputs import files_beside
from tcbench.show.notes import aside

if TYPE_CHECKING:
    from tcbench.analysis.claims import EvidenceSource

DOCUMENTS = "numerics-*.json"
"""File names of documents of `tcbench numerics`, which lie beside records."""


def training_evidence(requested: Sequence[Path], paths: Sequence[Path]) -> tuple[EvidenceSource, ...]:
    """Return sources that judge claims by training documents: at most one for a single rank and one for many.

    The documents are those in `requested`; if that is empty, the newest readable ones beside the records in `paths`.
    Documents in several folders belong to several machines, and none of them is used. Raises SelectionError if several
    documents of one rank, or of many, are requested, and StoreError if a requested document cannot be read."""
    from tcbench.commands.numerics.judgement import document_evidence
    from tcbench.core.numerics import read

    documents = files_beside(paths, DOCUMENTS)
    if len({path.parent for path in documents}) > 1:
        documents = {}
    chosen: dict[bool, EvidenceSource] = {}
    for path in requested or sorted(documents.values(), key=lambda document: document.name, reverse=True):
        try:
            document = read(path)
        except StoreError as error:
            if requested:
                raise
            aside(f"note: left out: {error}")
            continue
        many = document.setting.ranks > 1
        if many in chosen and requested:
            raise SelectionError(f"{len(requested)} documents of `tcbench numerics` were named; expected one")
        chosen.setdefault(many, document_evidence(document, source=path.name))

    return tuple(chosen.values())
