"""The HTML report as data: a page of sections, which consist of blocks such as charts and tables. Charts are markup;
all other texts are plain, and the template escapes them."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tcbench.show.tables import Badge, Table


@dataclass(frozen=True)
class Piece:
    """A part of a paragraph. A strong part is emphasised."""

    text: str
    strong: bool = False


Paragraph = tuple[Piece, ...]


def say(*parts: str | Piece) -> Paragraph:
    """Return a paragraph of plain texts and strong pieces."""
    return tuple(Piece(part) if isinstance(part, str) else part for part in parts)


def strong(text: str) -> Piece:
    """Return an emphasised piece of a paragraph."""
    return Piece(text, strong=True)


@dataclass(frozen=True)
class Prose:
    """A block of paragraphs."""

    paragraphs: tuple[Paragraph, ...]


@dataclass(frozen=True)
class Points:
    """A list of paragraphs, each with or without a badge in front."""

    items: tuple[tuple[Badge | None, Paragraph], ...]


@dataclass(frozen=True)
class Notice:
    """A remark that readers must not miss."""

    badge: Badge
    paragraph: Paragraph
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """A chart as markup. `wide` means that it is wider than the page."""

    svg: str
    wide: bool


@dataclass(frozen=True)
class Figure:
    """A chart with notes and the table of its numbers. It is drawn once, when first needed, because that is slow."""

    title: str
    draw: Callable[[], Drawn]
    table: Table[Any]
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def drawn(self) -> Drawn:
        """The chart as markup, drawn on first use."""
        return self.draw()


@dataclass(frozen=True)
class Data:
    """A table with notes. A folded one is hidden until the reader opens it."""

    table: Table[Any]
    folded: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FactList:
    """A list of names with their values."""

    pairs: tuple[tuple[str, str | Paragraph], ...]


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str


AnyBlock = Prose | Points | Notice | Figure | Data | FactList | Heading


@dataclass(frozen=True)
class Section:
    """A section of the page, listed in its table of contents."""

    id: str
    title: str
    blocks: tuple[AnyBlock, ...]


@dataclass(frozen=True)
class Page:
    """The whole page. `paints` are the fills of the swatches in tables, `hatches` the markup of their patterns."""

    title: str
    lead: Paragraph
    facts: tuple[str, ...]
    sections: tuple[Section, ...]
    paints: tuple[str, ...]
    hatches: str
    made_by: str
