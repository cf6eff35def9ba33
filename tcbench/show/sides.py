"""The names of a comparison's two sides, and differences between them in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tcbench.core.groups import grouped

if TYPE_CHECKING:
    from tcbench.analysis.comparability import Difference


@dataclass(frozen=True)
class Labels:
    """The names of the two sides: files, a baseline, revisions; the command line's, made `plain` by the command.
    `files`: where the records of both are, as a command names them."""

    base: str = "base"
    current: str = "current"
    files: tuple[str, str] | None = None


UNNAMED = Labels()


def several(things: Sequence[str], most: int) -> str:
    """All of them, or the first few and how many more there are."""
    if len(things) <= most:
        return "; ".join(things)
    return "; ".join(things[:most]) + f"; and {len(things) - most} more"


def allowed(differences: Iterable[Difference], most: int = 8) -> list[str]:
    """Differences that were let pass, a line for each facet."""
    facets = grouped((difference.facet, difference.says) for difference in differences)
    return [f"{facet}: {several(says, most)}" for facet, says in facets.items()]
