"""The page as frozen data: sections made of blocks, charts in per cent of their width, tables in words and sort keys.

Owns what a page can hold. Knows nothing of records or of HTML: sections are made of results elsewhere, and a template
writes them down. All texts are plain; escaping is the template's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tcbench.show.verdicts import Tone


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
    """What a sentence is about."""
    return Piece(text, strong=True)


@dataclass(frozen=True)
class Badge:
    """A word with an icon: colour alone tells nothing here. `icon` names a symbol of the template."""

    word: str
    icon: str
    tone: Tone = "plain"


# -- tables --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """What stands in a table: a text or a badge. `key` is what it sorts by, None for the text itself; `swatch` is the
    CSS class of a colour before it."""

    text: str = ""
    key: float | None = None
    badge: Badge | None = None
    swatch: str = ""
    hatch: str = ""


@dataclass(frozen=True)
class Column:
    """`key` names the column in the page, for filters. `long` texts wrap."""

    name: str
    numeric: bool = False
    key: str = ""
    long: bool = False


@dataclass(frozen=True)
class Table:
    """`filters` are the keys of the columns that the page offers to filter by."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Field, ...], ...]
    filters: tuple[str, ...] = ()

    def values(self, key: str) -> tuple[str, ...]:
        """What a column holds, each once, in order: numbers ascending, texts as they come."""
        place = [column.key for column in self.columns].index(key)
        fields = [row[place] for row in self.rows]
        if self.columns[place].numeric:
            fields.sort(key=lambda field: field.key or 0.0)
        return tuple(dict.fromkeys(field.badge.word if field.badge else field.text for field in fields))


# -- charts --------------------------------------------------------------------------------------------------------

MarkKind = Literal["bar", "whisker", "dot", "link", "rule"]


@dataclass(frozen=True)
class Mark:
    """A shape in a row; places are per cent of the chart's width. `look` is a CSS class, `hatch` a pattern's id.

    bar: from `x`, `width` wide. whisker: the same, with caps; `open_end` where it goes on. dot and rule: at `x`. link:
    at `x`, from this row to `rows` rows further down; it lies below bars.
    """

    kind: MarkKind
    x: float
    width: float = 0.0
    look: str = ""
    hatch: str = ""
    open_end: bool = False
    rows: int = 1


@dataclass(frozen=True)
class Row:
    """A line of a chart. `words` stand at `at` per cent, `aside` quietly after them, `tip` is all that is told of it,
    line by line."""

    label: str
    marks: tuple[Mark, ...]
    tip: tuple[str, ...]
    words: str = ""
    aside: str = ""
    at: float = 0.0
    strong: bool = False


@dataclass(frozen=True)
class Tick:
    """A number of the axis and its place, per cent."""

    x: float
    text: str


@dataclass(frozen=True)
class Shade:
    """A part of the plot behind the marks, per cent."""

    x: float
    width: float


@dataclass(frozen=True)
class Chart:
    """Rows on one axis. `heading` is short and stands above; `title` and `desc` are for who does not see it."""

    heading: str
    title: str
    desc: str
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    axis: str
    shades: tuple[Shade, ...] = ()
    reference: float | None = None


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    text: str
    look: str
    hatch: str = ""


@dataclass(frozen=True)
class Block:
    """A stretch of time in a lane of a timeline; places are per cent of its width."""

    x: float
    width: float
    look: str
    tip: tuple[str, ...] = ()
    word: str = ""
    hatch: str = ""


@dataclass(frozen=True)
class Area:
    """Merged work in a lane: an outline in units of 1000 x 100."""

    path: str
    look: str


@dataclass(frozen=True)
class Lane:
    """A row of a timeline; `waiting` are places at its foot where the host waits."""

    name: str
    blocks: tuple[Block, ...] = ()
    areas: tuple[Area, ...] = ()
    waiting: tuple[Block, ...] = ()
    tip: str = ""


@dataclass(frozen=True)
class Strip:
    """One cell's timeline. `aside` stands quietly after its heading."""

    heading: str
    aside: str
    says: str
    title: str
    desc: str
    lanes: tuple[Lane, ...]
    steps: tuple[Tick, ...]
    ticks: tuple[Tick, ...]


# -- blocks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prose:
    """Paragraphs."""

    kind: ClassVar[str] = "prose"
    paragraphs: tuple[Paragraph, ...]


@dataclass(frozen=True)
class Points:
    """A list of sentences; each may have a badge before it."""

    kind: ClassVar[str] = "points"
    items: tuple[tuple[Badge | None, Paragraph], ...]


@dataclass(frozen=True)
class Notice:
    """What a reader must not miss."""

    kind: ClassVar[str] = "notice"
    badge: Badge
    paragraph: Paragraph
    details: tuple[str, ...] = ()


_MOST_WORDS_EM = 19


@dataclass(frozen=True)
class Figure:
    """Charts of one scale side by side, the table behind them, and how to read them. `label_em` and `words_em` are the
    room for words beside the plot."""

    kind: ClassVar[str] = "figure"
    title: str
    charts: tuple[Chart, ...]
    table: Table
    legend: tuple[Key, ...] = ()
    notes: tuple[str, ...] = ()
    label_em: int = 8
    words_em: int = 8

    @property
    def wide(self) -> bool:
        """Whether a chart takes the page's width, since its words leave too little of half of it."""
        return len(self.charts) == 1 or self.label_em + self.words_em > _MOST_WORDS_EM


@dataclass(frozen=True)
class Timelines:
    """Timelines under each other on one time scale."""

    kind: ClassVar[str] = "timelines"
    title: str
    strips: tuple[Strip, ...]
    table: Table
    legend: tuple[Key, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    """A table. `folded`: behind a line that opens it."""

    kind: ClassVar[str] = "data"
    table: Table
    folded: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """Names and what they are."""

    kind: ClassVar[str] = "facts"
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    kind: ClassVar[str] = "heading"
    text: str


AnyBlock = Prose | Points | Notice | Figure | Timelines | Data | Facts | Heading


@dataclass(frozen=True)
class Section:
    """A part of the page with an entry in its contents."""

    id: str
    title: str
    blocks: tuple[AnyBlock, ...]


@dataclass(frozen=True)
class Hatch:
    """A pattern of lines and points over a fill."""

    id: str
    paths: tuple[str, ...]
    dots: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Page:
    """Everything. `colours` is the style sheet of the configs' fills."""

    title: str
    lead: Paragraph
    facts: tuple[str, ...]
    sections: tuple[Section, ...]
    colours: str
    hatches: tuple[Hatch, ...]
    made_by: str
