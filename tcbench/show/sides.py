"""The two sides of a comparison: their names, and the differences between them in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tcbench.core.groups import grouped

if TYPE_CHECKING:
    from tcbench.analysis.comparability import Difference


@dataclass(frozen=True)
class Labels:
    """The names of a comparison's two sides, such as files, a baseline or revisions, safe to print. `files` are the
    paths of both sides' records, if they have files."""

    base: str = "base"
    current: str = "current"
    files: tuple[str, str] | None = None


UNNAMED = Labels()


def first_few(texts: Sequence[str], most: int) -> str:
    """Join texts by semicolons. Of more than `most`, join the first ones and say how many more there are."""
    more = len(texts) - most
    return "; ".join([*texts[:most], f"and {more} more"] if more > 0 else texts)


def allowed_lines(differences: Iterable[Difference], most: int = 8) -> list[str]:
    """Return a line per facet (what --allow can name) in which two sides differ, with its first `most` differences."""
    facets = grouped((difference.facet, difference.says) for difference in differences)
    return [f"{facet}: {first_few(texts, most)}" for facet, texts in facets.items()]
