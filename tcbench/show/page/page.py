"""The page as frozen data: sections made of blocks, charts as markup, tables (`tcbench.show.tables`).

Owns what a page can hold. Knows nothing of records or of HTML: sections are made of results elsewhere, and a template
writes them down. All other texts are plain; escaping is the template's.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tcbench.show.tables import Badge, Table


@dataclass(frozen=True)
class Piece:
    """A part of a paragraph; `strong` where it is what the paragraph is about."""

    text: str
    strong: bool = False


Paragraph = tuple[Piece, ...]


def say(*parts: str | Piece) -> Paragraph:
    """A paragraph of plain and strong parts."""
    return tuple(Piece(part) if isinstance(part, str) else part for part in parts)


def strong(text: str) -> Piece:
    """The subject of a sentence."""
    return Piece(text, strong=True)


@dataclass(frozen=True)
class Prose:
    """Paragraphs."""

    paragraphs: tuple[Paragraph, ...]


@dataclass(frozen=True)
class Points:
    """A list of sentences; each may have a badge before it."""

    items: tuple[tuple[Badge | None, Paragraph], ...]


@dataclass(frozen=True)
class Notice:
    """A remark that a reader must not miss."""

    badge: Badge
    paragraph: Paragraph
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """A chart as markup; `wide` where it is wider than the page."""

    svg: str
    wide: bool


@dataclass(frozen=True)
class Figure:
    """A chart, how to read it, and the table behind it. Drawn when first asked for, once: most of a page's time."""

    title: str
    draw: Callable[[], Drawn]
    table: Table[Any]
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def drawn(self) -> Drawn:
        return self.draw()


@dataclass(frozen=True)
class Data:
    """A table. `folded`: behind a line that opens it."""

    table: Table[Any]
    folded: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FactList:
    """Names and what they are."""

    pairs: tuple[tuple[str, str | Paragraph], ...]


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str


AnyBlock = Prose | Points | Notice | Figure | Data | FactList | Heading


@dataclass(frozen=True)
class Section:
    """A part of the page with an entry in its contents."""

    id: str
    title: str
    blocks: tuple[AnyBlock, ...]


@dataclass(frozen=True)
class Page:
    """Everything. `paints` are the fills of the swatches in tables, `hatches` the markup of their patterns."""

    title: str
    lead: Paragraph
    facts: tuple[str, ...]
    sections: tuple[Section, ...]
    paints: tuple[str, ...]
    hatches: str
    made_by: str
