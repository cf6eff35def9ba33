"""The console, and tables that are written once, for it, the page and Markdown: columns with a heading, a kind and a
value over rows of any type."""

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.containers import Lines
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text

from tcbench.analysis.stats import Interval
from tcbench.core.groups import grouped
from tcbench.core.record import Cell
from tcbench.show.format import factor, milliseconds, number, percent, plus_minus, rate, size
from tcbench.show.next_steps import NextStep, next_lines
from tcbench.show.notes import broken, fitting
from tcbench.show.streams import harmless


class Screen(Console):
    """Colours are its own; a text is never markup, and its characters that a terminal would act on are shown as their
    escapes. `columns`: those of a terminal, None of a file or pipe. `details`: all notes are shown.

    Only a terminal is one: of Rich's variables FORCE_COLOR adds colours to a file, or with 0 takes those of a terminal,
    and TTY_COMPATIBLE changes nothing."""

    def __init__(self, *, columns: int | None = None, details: bool = False, **options: Any) -> None:
        stream = options.get("file") or (sys.stderr if options.get("stderr") else sys.stdout)
        forced = os.environ.get("FORCE_COLOR", "")
        if forced == "0":
            options.setdefault("no_color", True)
        elif forced and not stream.isatty():
            options.setdefault("color_system", "standard")
        options.setdefault("force_terminal", stream.isatty())
        super().__init__(markup=False, emoji=False, highlight=False, **options)
        self._columns, self._details = columns, details
        self._left_out: dict[str, None] = {}

    def say(self, *lines: str, style: str = "") -> None:
        """Lines of text. A terminal breaks them between words."""
        for line in lines:
            for part in [line] if self._columns is None else broken(line, self._columns):
                self.print(part, style=style, soft_wrap=True)

    def table(self, table: "Table[Any]", heading: str = "") -> None:
        """A table under its heading, and an empty line."""
        self.say(*filter(None, [heading]), style="bold")
        self.print(table)
        self.print()
        shown = table.columns_at(self.width)
        self._left_out |= dict.fromkeys(column.name for column in table.columns if column.spare and column not in shown)

    def notes(self, notes: Iterable[str]) -> None:
        """Notes under tables: all of them with --details, else those that matter most."""
        lacking = [f"A wider terminal also shows: {', '.join(self._left_out)}."] * bool(self._left_out)
        notes = [*lacking, *notes]
        self.say(*(notes if self._details else fitting(notes, self._columns or self.width)), style="dim")

    def offer(self, steps: Iterable[NextStep]) -> None:
        """Commands to go on with, the best first. Nothing breaks a command, so that it can be copied."""
        for line in next_lines(steps, self._columns or self.width):
            self.print(line, soft_wrap=True)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


class Words(Text):
    """A text of which a console breaks a word without room, such as a config's name, before a `+` and after `-_/.`."""

    def wrap(self, console: Console, width: int, *args: Any, **options: Any) -> Lines:
        return Lines(
            line
            for part in self.divide(breaks(self.plain, width))
            for line in part.wrap(console, width, *args, **options)
        )


_APART = (r"(?<=.)(?=\+)|(?<=[-/.])(?=.)", r"(?<=_)(?=.)")
"""Where words that have no room are broken; the second where the first has no place."""


def breaks(words: str, width: int) -> list[int]:
    """Where words that are wider than a line have to be broken."""
    found = []
    for word in re.finditer(r"\S+", words):
        begin = word.start()
        while cell_len(words[begin : word.end()]) > width:
            end = begin + max(1, len(set_cell_size(words[begin : word.end()], width).rstrip()))
            places = (list(re.finditer(where, words[begin : end + 1])) for where in _APART)
            begin += next((at[-1].start() for at in places if at), end - begin)
            found.append(begin)
    return found


Tone = Literal["good", "bad", "warn", "plain"]


@dataclass(frozen=True)
class Badge:
    """A word with an icon of the page's template, and a sign elsewhere: colour alone tells nothing here."""

    word: str
    icon: str
    tone: Tone = "plain"
    sign: str = ""

    @property
    def signed(self) -> str:
        """`▼ regression`."""
        return f"{self.sign} {self.word}"


@dataclass(frozen=True)
class Field:
    """A text or a badge. `key` is what it sorts by, None for the text itself; `swatch` fills a square before it."""

    text: str = ""
    key: float | None = None
    badge: Badge | None = None
    swatch: str = ""
    strong: bool = False

    @property
    def words(self) -> str:
        return self.badge.word if self.badge else self.text


@dataclass(frozen=True)
class Kind:
    """How a column's values are written. `within`: how a console, not the page, writes an interval's ends."""

    write: Callable[[Any], str] = str
    numeric: bool = True
    within: Callable[[Interval], str] | None = None

    def interval(self, value: Interval, *, within: bool = True) -> str:
        """An interval's middle; `within`: with what stands behind it."""
        ends = self.within(value) if within and self.within else ""
        return f"{self.write(value.value)} {ends}".rstrip()


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
    second line before others are cut. `on`: the only renderer that shows it. `width`: the least of a console's.
    `spare`: a console without room for all columns leaves it out, the last such column first. `key`: its name in JSON
    and exports, where these do not have the value already."""

    heading: str
    value: Callable[[R], Any]
    kind: Kind = TEXT
    mark: Callable[[R], str] | None = None
    style: Callable[[R], str] | str = ""
    wraps: bool | None = None
    on: Literal["", "console", "page"] = ""
    width: int | None = None
    ratio: int | None = None
    spare: bool = False
    key: str = ""

    @property
    def name(self) -> str:
        """The heading on one line."""
        return self.heading.replace("-\n", "-").replace("\n", " ").strip()

    @property
    def folds(self) -> bool:
        """Whether a console may break its texts into lines."""
        return not self.kind.numeric if self.wraps is None else self.wraps

    def least(self, rows: Iterable[R], whole: bool = False) -> int:
        """The width of a console's that it takes at least: no word is broken, but for the longest names of configs, and
        where they are to be `whole` no number's interval."""
        texts = [self.heading, *(self.styled(row).plain for row in rows)]
        if whole and self.kind.numeric:
            return max(self.least(()), *map(cell_len, texts[1:]), 0)
        if not self.folds:
            return max([self.width or 0, *(cell_len(line) for text in texts for line in text.splitlines())])
        return max([self.width or 0, *(min(cell_len(word), 32) for text in texts for word in text.split())])

    def text(self, row: R, *, within: bool = True) -> str:
        """A row's value in words. `within`: with its interval, where the kind writes one."""
        value = self.value(row)
        if isinstance(value, Interval):
            words = self.kind.interval(value, within=within)
        elif isinstance(value, Field):
            words = value.words
        elif isinstance(value, str | Text | Badge | None):
            words = value.word if isinstance(value, Badge) else str(value or "")
        else:
            words = self.kind.write(value)
        return words + (self.mark(row) if self.mark else "")

    def styled(self, row: R) -> Text:
        """The same for a console."""
        value = self.value(row)
        style = self.style if isinstance(self.style, str) else self.style(row)
        return value if isinstance(value, Text) else Words(self.text(row), style=style)

    def field(self, row: R) -> Field:
        """The same for the page, where it sorts by its value."""
        value = self.value(row)
        if isinstance(value, Field | Badge):
            return value if isinstance(value, Field) else Field(badge=value)
        middle = value.value if isinstance(value, Interval) else value
        return Field(self.text(row, within=False), middle if isinstance(middle, int | float) else None)


@dataclass(frozen=True)
class Table(Generic[R]):
    """Rows under columns; one that is None is an empty line. `filters`: the columns that the page offers to filter by.
    On a console, columns are `gap` apart, and headings have the style `header`, or are not shown where it is None."""

    columns: Sequence[Column[R]]
    rows: Sequence[R | None]
    caption: str = ""
    filters: tuple[str, ...] = ()
    gap: int = 2
    header: str | None = "bold"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Grid]:
        yield self.on_console(options.max_width)

    def on_console(self, width: int) -> Grid:
        """The table on a console so wide."""
        return self._grid(self.columns_at(width), self.rows)

    def columns_at(self, width: int) -> list[Column[R]]:
        """Return the columns that a console of this width shows. Spare columns are left out one by one, the last first,
        until the others have room."""
        columns = [column for column in self.columns if column.on != "page"]
        spare = [column for column in columns if column.spare]
        rows = [row for row in self.rows if row is not None]
        while spare and self._least(rows, columns) > width + self.gap:
            columns.remove(spare.pop())
        return columns

    def _least(self, rows: Sequence[R], columns: Sequence[Column[R]]) -> int:
        """Return the width that the columns take at least, with the gap after each."""
        return sum(column.least(rows) + self.gap for column in columns)

    def _grid(self, columns: Sequence[Column[R]], rows: Iterable[R | None]) -> Grid:
        grid = Grid(box=None, pad_edge=False, padding=(0, self.gap, 0, 0), header_style=self.header or "")
        grid.show_header = self.header is not None
        for column in columns:
            grid.add_column(
                column.heading,
                justify="right" if column.kind.numeric else "left",
                overflow="fold" if column.folds else "ellipsis",
                no_wrap=not column.folds,
                min_width=column.width,
                ratio=column.ratio,
            )
        for row in rows:
            grid.add_row(*(column.styled(row) for column in columns) if row is not None else ())
        return grid

    @functools.cached_property
    def heads(self) -> tuple[Column[R], ...]:
        """The columns of the page."""
        return tuple(column for column in self.columns if column.on != "console")

    @functools.cached_property
    def fields(self) -> tuple[tuple[Field, ...], ...]:
        """The rows of the page."""
        return tuple(tuple(head.field(row) for head in self.heads) for row in self.rows if row is not None)

    def values(self, name: str) -> tuple[str, ...]:
        """The different entries of a column of the page: numbers ascending, texts as they come."""
        place = [head.name for head in self.heads].index(name)
        entries = [row[place] for row in self.fields]
        if self.heads[place].kind.numeric:
            entries.sort(key=lambda field: field.key or 0.0)
        return tuple(dict.fromkeys(field.words for field in entries))

    def markdown(self, escaped: Callable[[str], str] = str) -> list[str]:
        """The lines of a Markdown table, headings as they stand."""
        return [
            f"| {' | '.join(column.heading for column in self.columns)} |",
            f"| {' | '.join('---:' if column.kind.numeric else '---' for column in self.columns)} |",
            *(
                f"| {' | '.join(escaped(column.text(row)) for column in self.columns)} |"
                for row in self.rows
                if row is not None
            ),
        ]


def keyed(columns: Iterable[Column[R]], row: R) -> dict[str, Any]:
    """A row's values by the keys of its columns, for JSON and exports."""
    return {column.key: column.value(row) for column in columns if column.key}


def heads(cells: Iterable[Cell], cell: Callable[[R], Cell]) -> list[Column[R]]:
    """Columns before a config's: model where there are several, batch size, ranks where a cell has several."""
    cells = list(cells)
    found = [Column[R]("batch", lambda row: cell(row).batch_size, COUNT, wraps=True, width=5)]
    if len({each.model for each in cells}) > 1:
        found.insert(0, Column("model", lambda row: cell(row).model, wraps=False))
    if many_ranks(cells):
        found.append(Column("ranks", lambda row: cell(row).ranks, COUNT, wraps=True))
    return found


@dataclass(frozen=True, kw_only=True)
class ConfigTable(Table[R]):
    """A row per cell, model by model, batch size by batch size and ranks by ranks, an empty row between; a config that
    adds rungs to the one above shows what it adds. `instead`: what a row says in place of all figures."""

    cell: Callable[[R], Cell]
    instead: Callable[[R], str | None] = lambda _: None
    min_width: int = 18

    def _blocks(self, rows: Sequence[R]) -> dict[tuple[str, ...], list[tuple[R, str]]]:
        """The rows that stand together, each with the name of its config, by what stands before the first."""
        before = heads(map(self.cell, rows), self.cell)
        blocks: dict[tuple[str, ...], list[tuple[R, str]]] = {}
        for head, block in grouped((tuple(head.text(row) for head in before), row) for row in rows).items():
            cells = list(map(self.cell, block))
            blocks[head] = list(zip(block, map(config_in_ladder, cells, [None, *cells]), strict=True))
        return blocks

    def _config_width(self, rows: Sequence[R]) -> int:
        """The width that configs take at least, broken between rungs."""
        names = [between_rungs(name, 0) for block in self._blocks(rows).values() for _, name in block]
        return max([self.min_width, *(cell_len(line) for name in names for line in name.split("\n"))])

    def _beside(self, rows: Sequence[R], columns: Sequence[Column[R]], whole: bool = False) -> int:
        """The width that all but the configs takes at least, with the gap after each column."""
        figures_of = [row for row in rows if not self.instead(row)]
        least = [head.least(rows) for head in heads(map(self.cell, rows), self.cell)]
        least += [column.least(figures_of, whole) for column in columns if column.on != "page"]
        return sum(least) + self.gap * len(least)

    def _least(self, rows: Sequence[R], columns: Sequence[Column[R]]) -> int:
        return self._beside(rows, columns) + self._config_width(rows) + self.gap

    def on_console(self, width: int) -> Grid:
        rows = [row for row in self.rows if row is not None]
        before, shown, least = heads(map(self.cell, rows), self.cell), self.columns_at(width), self._config_width(rows)
        cramped = self._beside(rows, shown) + least > width
        room = max(least, width - self._beside(rows, shown, whole=True) - self.gap)
        blocks = self._blocks(rows)
        names = {name: between_rungs(name, room) for block in blocks.values() for _, name in block}
        if cramped:
            names = {name: name for name in names}
        config = Column[R]("config", str, wraps=cramped, width=self.min_width)
        grid = self._grid([*before, config, *shown], ())
        for head, block in blocks.items():
            if grid.row_count:
                grid.add_row()
            for place, (row, name) in enumerate(block):
                words = self.instead(row)
                figures = [Text(words, style="yellow")] if words else [column.styled(row) for column in shown]
                grid.add_row(*([""] * len(head) if place else head), Words(names[name]), *figures)
        return grid


def between_rungs(config: str, width: int) -> str:
    """A config's name, or what it adds, in lines that are broken between rungs where it is wider than that."""
    plus = " + " if " + " in config else "+"
    first, *rungs = config.split(plus)
    lines = [first]
    for rung in rungs:
        if cell_len(f"{lines[-1]}{plus}{rung}") <= width:
            lines[-1] += plus + rung
        else:
            lines.append(f" {plus}{rung}")
    return "\n".join(lines)


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
