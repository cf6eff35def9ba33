"""Consoles, tables that are written once, and the version of JSON: what all commands print with.

A table is columns, each with a heading, a kind and a value, over rows of any type; a console, Markdown and the page
(`tcbench.present.page.wording.table`) take any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tcbench.analysis.stats import Interval
from tcbench.core.record import Cell
from tcbench.present.document import encoded
from tcbench.present.format import factor, milliseconds, number, percent, plus_minus, rate, size
from tcbench.present.page.page import Badge, Field
from tcbench.present.terminal import harmless

JSON_SCHEMA_VERSION = 1
"""Version of everything printed under --json."""


_PLAIN_WIDTH = 132
"""Columns where there is no terminal to ask."""


class Screen(Console):
    """Colours are its own; a text is never markup, and its characters that a terminal would act on are shown as their
    escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def say(self, *lines: str, style: str = "") -> None:
        """Lines of text, which a terminal wraps where they are longer than it."""
        for line in lines:
            self.print(line, style=style, soft_wrap=True)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def make_console(*, stderr: bool = False, least: int = 80) -> Screen:
    """A console as wide as the terminal, or wide enough for a table in a file or pipe.

    A table is never squeezed below `least` columns: a narrower terminal wraps its lines, which loses nothing.
    """
    console = Screen(stderr=stderr)
    if stderr and console.is_terminal:
        return console
    return Screen(stderr=stderr, width=max(console.width, least) if console.is_terminal else _PLAIN_WIDTH)


def open_table(gap: int = 2, **options: Any) -> Table:
    """A table without lines, its columns `gap` apart."""
    return Table(**{"box": None, "pad_edge": False, "header_style": "bold", "padding": (0, gap, 0, 0)} | options)


# -- tables that any renderer takes --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """How the values of a column are written. `within`: how a console writes the interval behind its middle; the page
    has no room for it."""

    write: Callable[[Any], str] = str
    numeric: bool = True
    within: Callable[[Interval], str] | None = None


TEXT = Kind(numeric=False)
COUNT = Kind()
NUMBER = Kind(number)
RATE = Kind(rate, within=plus_minus)
FACTOR = Kind(factor, within=lambda ratio: "" if ratio.low == ratio.high else plus_minus(ratio))
SECONDS = Kind(milliseconds)
BYTES = Kind(size)
SHARE = Kind(percent)
WHOLE_SHARE = Kind(lambda share: percent(share, 0))

R = TypeVar("R")


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column over rows of any type. Its value is a number, an interval or whatever its kind writes; None is empty,
    and what is words already (a text in place of a figure, a badge, a field of the page) is written as it is.

    `mark` stands behind what is written. `style` is the console's. `wraps`: a text may be folded, and a number takes a
    second line before others are cut. `on`: the only renderer that shows it. `width`: the least of a console's."""

    heading: str
    value: Callable[[R], Any]
    kind: Kind = TEXT
    mark: Callable[[R], str] | None = None
    style: Callable[[R], str] | str = ""
    wraps: bool | None = None
    on: Literal["", "console", "page"] = ""
    width: int | None = None
    ratio: int | None = None

    def text(self, row: R, *, within: bool = True) -> str:
        """A row's value in words. `within`: with its interval, where the kind writes one."""
        value = self.value(row)
        if isinstance(value, Field):
            value = value.badge or value.text
        if isinstance(value, Interval):
            ends = self.kind.within(value) if within and self.kind.within else ""
            words = f"{self.kind.write(value.value)} {ends}".rstrip()
        elif isinstance(value, str | Text | Badge | None):
            words = value.word if isinstance(value, Badge) else str(value or "")
        else:
            words = self.kind.write(value)
        return words + (self.mark(row) if self.mark else "")

    def styled(self, row: R) -> Text:
        """The same for a console."""
        value = self.value(row)
        style = self.style if isinstance(self.style, str) else self.style(row)
        return value if isinstance(value, Text) else Text(self.text(row), style=style)


def grid(columns: Sequence[Column[R]], rows: Iterable[R | None], gap: int = 2, **options: Any) -> Table:
    """A table for a console. A row that is None is an empty line."""
    shown = [column for column in columns if column.on != "page"]
    table = open_table(gap, **options)
    for column in shown:
        wraps = not column.kind.numeric if column.wraps is None else column.wraps
        table.add_column(
            column.heading,
            justify="right" if column.kind.numeric else "left",
            overflow="fold" if wraps else "ellipsis",
            no_wrap=not wraps,
            min_width=column.width,
            ratio=column.ratio,
        )
    for row in rows:
        table.add_row(*(column.styled(row) for column in shown) if row is not None else ())
    return table


def heads(cells: Iterable[Cell], cell: Callable[[R], Cell]) -> list[Column[R]]:
    """Columns before a config's: model where there are several, batch size, ranks where a cell has several."""
    cells = list(cells)
    found = [Column[R]("batch", lambda row: cell(row).batch_size, COUNT, wraps=True)]
    if len({each.model for each in cells}) > 1:
        found.insert(0, Column("model", lambda row: cell(row).model))
    if many_ranks(cells):
        found.append(Column("ranks", lambda row: cell(row).ranks, COUNT, wraps=True))
    return found


def ladder(
    columns: Sequence[Column[R]],
    rows: Iterable[R],
    cell: Callable[[R], Cell],
    instead: Callable[[R], str | None] = lambda _: None,
    gap: int = 2,
    min_width: int = 18,
) -> Table:
    """A row per cell, model by model, batch size by batch size and ranks by ranks, an empty row between; a config that
    adds rungs to the one above shows what it adds. `instead`: what a row says in place of all figures."""
    rows = list(rows)
    before = heads(map(cell, rows), cell)
    config = Column[R]("config", str, width=min_width)
    table = grid([*before, config, *columns], (), gap)
    blocks: dict[tuple[str, ...], list[R]] = {}
    for row in rows:
        blocks.setdefault(tuple(head.text(row) for head in before), []).append(row)
    for head, group in blocks.items():
        if table.row_count:
            table.add_row()
        above = None
        for row in group:
            words = instead(row)
            figures = [column.styled(row) for column in columns if column.on != "page" and not words]
            figures += [Text(words, style="yellow")] if words else []
            table.add_row(*([""] * len(head) if above else head), Text(config_in_ladder(cell(row), above)), *figures)
            above = cell(row)
    return table


def markdown_lines(columns: Sequence[Column[R]], rows: Iterable[R], escaped: Callable[[str], str]) -> list[str]:
    """The lines of a Markdown table, headings as they stand."""
    return [
        f"| {' | '.join(column.heading for column in columns)} |",
        f"| {' | '.join('---:' if column.kind.numeric else '---' for column in columns)} |",
        *(f"| {' | '.join(escaped(column.text(row)) for column in columns)} |" for row in rows),
    ]


# -- cells ---------------------------------------------------------------------------------------------------------


def many_ranks(cells: Iterable[Cell]) -> bool:
    """Whether a table of these cells has a column of ranks."""
    return any(cell.ranks > 1 for cell in cells)


def config_in_ladder(cell: Cell, above: Cell | None) -> str:
    """A config's name below another's: what it adds, where it adds rungs to that one, or what it changes."""
    base, _, ablation = cell.config.partition(":")
    if above and ablation and above.config.partition(":")[0] == base:
        return f"  : {ablation}"
    if above and cell.config.startswith(above.config + "+"):
        return "  + " + " + ".join(cell.config.removeprefix(above.config + "+").split("+"))
    return cell.config


def versioned(**values: Any) -> str:
    """The JSON that --json prints, with the version of its form."""
    return encoded({"schema_version": JSON_SCHEMA_VERSION, **values})
