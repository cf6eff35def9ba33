"""Tables that are declared once for the console, the page and Markdown, and the console itself.

A table has columns over rows of any type; a column has a heading, a kind (the format of its values) and a value."""

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
from tcbench.core.text import runnable
from tcbench.show.format import factor, milliseconds, number, percent, plus_minus, rate, size
from tcbench.show.next_steps import NextStep, next_lines
from tcbench.show.notes import notes_that_fit, wrap_lines
from tcbench.show.streams import harmless


class Screen(Console):
    """A Rich console without markup, which shows control characters as escapes.

    `columns` is the width of a terminal, None for a file or pipe. With `details` it shows all notes. The environment
    variable FORCE_COLOR adds colours to a file, or with 0 removes those of a terminal; TTY_COMPATIBLE has no effect."""

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
        """Print lines of text. A terminal wraps them between words."""
        for line in lines:
            for part in [line] if self._columns is None else wrap_lines(line, self._columns):
                self.print(part, style=style, soft_wrap=True)

    def table(self, table: "Table[Any]", heading: str = "") -> None:
        """Print a table under its heading, and an empty line. `notes` names the columns that had no room."""
        self.say(*filter(None, [heading]), style="bold")
        self.print(table)
        self.print()
        shown = table.columns_at(self.width)
        self._left_out |= dict.fromkeys(column.name for column in table.columns if column.spare and column not in shown)

    def notes(self, notes: Iterable[str]) -> None:
        """Print notes under tables: all of them with --details, otherwise those that matter most."""
        omitted = [f"A wider terminal also shows: {', '.join(self._left_out)}."] * bool(self._left_out)
        notes = [type(note)(runnable(note)) for note in (*omitted, *notes)]
        self.say(*(notes if self._details else notes_that_fit(notes, self._columns or self.width)), style="dim")

    def offer(self, steps: Iterable[NextStep]) -> None:
        """Print suggested commands, the best first. A command is never wrapped, so that it can be copied."""
        for line in next_lines(steps, self._columns or self.width):
            self.print(line, soft_wrap=True)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as Rich does, with control characters shown as escapes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


class Words(Text):
    """A text whose long words, such as names of configs, may wrap before a `+` and after any of `-_/.`."""

    def wrap(self, console: Console, width: int, *args: Any, **options: Any) -> Lines:
        """Wrap long words at `wrap_positions`, and everything else as Rich does."""
        return Lines(
            line
            for part in self.divide(wrap_positions(self.plain, width))
            for line in part.wrap(console, width, *args, **options)
        )


_BREAKS = (r"(?<=.)(?=\+)|(?<=[-/.])(?=.)", r"(?<=_)(?=.)")
"""Patterns of the places where a long word may wrap. The second applies if the first has no match."""


def wrap_positions(words: str, width: int) -> list[int]:
    """Return the positions in a text where words that are wider than `width` columns have to wrap.

    A word wraps at the last match of `_BREAKS` that fits, or after the last character that fits."""
    positions = []
    for word in re.finditer(r"\S+", words):
        begin = word.start()
        while cell_len(words[begin : word.end()]) > width:
            end = begin + max(1, len(set_cell_size(words[begin : word.end()], width).rstrip()))
            places = (list(re.finditer(pattern, words[begin : end + 1])) for pattern in _BREAKS)
            begin += next((matches[-1].start() for matches in places if matches), end - begin)
            positions.append(begin)
    return positions


Tone = Literal["good", "bad", "warn", "plain"]


@dataclass(frozen=True)
class Badge:
    """A word with an icon on the page and a sign elsewhere, so that nothing depends on colour alone."""

    word: str
    icon: str
    tone: Tone = "plain"
    sign: str = ""

    @property
    def signed(self) -> str:
        """The sign and the word: "▼ regression"."""
        return f"{self.sign} {self.word}"


@dataclass(frozen=True)
class Field:
    """A text or a badge in a table of the page.

    Rows are sorted by `key`, or by the text if that is None. `swatch` is the fill of a square before the text."""

    text: str = ""
    key: float | None = None
    badge: Badge | None = None
    swatch: str = ""
    strong: bool = False

    @property
    def words(self) -> str:
        """The text of the field or the word of its badge."""
        return self.badge.word if self.badge else self.text


@dataclass(frozen=True)
class Kind:
    """The format of a column's values. `write_ends` formats the ends of an interval, on a console only."""

    write: Callable[[Any], str] = str
    numeric: bool = True
    write_ends: Callable[[Interval], str] | None = None

    def interval(self, interval: Interval, *, with_ends: bool = True) -> str:
        """Format the middle of an interval, and after it the ends if `with_ends` is true and the kind formats them."""
        ends = self.write_ends(interval) if with_ends and self.write_ends else ""
        return f"{self.write(interval.value)} {ends}".rstrip()


TEXT = Kind(numeric=False)
COUNT = Kind()
NUMBER = Kind(number)
RATE = Kind(rate, write_ends=plus_minus)
FACTOR = Kind(factor, write_ends=lambda ratio: "" if ratio.low == ratio.high else plus_minus(ratio))
SECONDS = Kind(milliseconds)
BYTES = Kind(size)
SHARE = Kind(percent)
WHOLE_SHARE = Kind(lambda share: percent(share, 0))

R = TypeVar("R")


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column over rows of any type.

    Its `kind` formats the value; texts, badges and fields are shown as they are, and None is empty.

    - `mark` is appended to the formatted value.
    - `style` applies on the console only.
    - `wraps`: whether the console may wrap the value (default: only texts).
    - `on`: the only renderer that shows the column.
    - `width`: the least width on the console; `ratio`: the column's share of free width, as in Rich.
    - `spare`: the console may leave the column out if there is no room, the last such column first.
    - `key`: the name of the value in JSON and exports, unless they have it already."""

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
        """Return the heading on one line."""
        return self.heading.replace("-\n", "-").replace("\n", " ").strip()

    @property
    def may_wrap(self) -> bool:
        """Return whether a console may wrap the column's values."""
        return not self.kind.numeric if self.wraps is None else self.wraps

    def least_width(self, rows: Iterable[R], keep_intervals: bool = False) -> int:
        """Return the least width on a console at which no word wraps, except words of more than 32 columns. With
        `keep_intervals`, the intervals of numbers do not wrap either."""
        texts = [self.heading, *(self.styled(row).plain for row in rows)]
        if keep_intervals and self.kind.numeric:
            return max(self.least_width(()), *map(cell_len, texts[1:]), 0)
        if not self.may_wrap:
            return max([self.width or 0, *(cell_len(line) for text in texts for line in text.splitlines())])
        return max([self.width or 0, *(min(cell_len(word), 32) for text in texts for word in text.split())])

    def text(self, row: R, *, with_ends: bool = True) -> str:
        """Return a row's value with its mark as text. An interval is its middle and, with `with_ends`, its ends."""
        value = self.value(row)
        if isinstance(value, Interval):
            words = self.kind.interval(value, with_ends=with_ends)
        elif isinstance(value, Field):
            words = value.words
        elif isinstance(value, str | Text | Badge | None):
            words = value.word if isinstance(value, Badge) else str(value or "")
        else:
            words = self.kind.write(value)
        return words + (self.mark(row) if self.mark else "")

    def styled(self, row: R) -> Text:
        """Format a row's value with its style, for a console."""
        value = self.value(row)
        style = self.style if isinstance(self.style, str) else self.style(row)
        return value if isinstance(value, Text) else Words(self.text(row), style=style)

    def field(self, row: R) -> Field:
        """Return a row's value as a field of the page, whose sort key is the number or the interval's middle."""
        value = self.value(row)
        if isinstance(value, Field | Badge):
            return value if isinstance(value, Field) else Field(badge=value)
        middle = value.value if isinstance(value, Interval) else value
        return Field(self.text(row, with_ends=False), middle if isinstance(middle, int | float) else None)


@dataclass(frozen=True)
class Table(Generic[R]):
    """Rows under columns. A row that is None is an empty line.

    `filters` are the columns by which the page can filter. On a console, `gap` is the space between columns, and
    `header` the style of the headings; None hides them."""

    columns: Sequence[Column[R]]
    rows: Sequence[R | None]
    caption: str = ""
    filters: tuple[str, ...] = ()
    gap: int = 2
    header: str | None = "bold"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Grid]:
        yield self.on_console(options.max_width)

    def on_console(self, width: int) -> Grid:
        """Render the table for a console of this width."""
        return self._grid(self.columns_at(width), self.rows)

    def columns_at(self, width: int) -> list[Column[R]]:
        """Return the columns that a console of this width shows. Spare columns are left out one by one, the last first,
        until the others have room."""
        columns = [column for column in self.columns if column.on != "page"]
        spare = [column for column in columns if column.spare]
        rows = [row for row in self.rows if row is not None]
        while spare and self._least_width(rows, columns) > width + self.gap:  # no gap after the last column
            columns.remove(spare.pop())
        return columns

    def _least_width(self, rows: Sequence[R], columns: Sequence[Column[R]]) -> int:
        """Return the width that the columns take at least, with the gap after each."""
        return sum(column.least_width(rows) + self.gap for column in columns)

    def _grid(self, columns: Sequence[Column[R]], rows: Iterable[R | None]) -> Grid:
        """Return Rich's grid of these columns and rows; a row that is None is left empty."""
        grid = Grid(box=None, pad_edge=False, padding=(0, self.gap, 0, 0), header_style=self.header or "")
        grid.show_header = self.header is not None
        for column in columns:
            grid.add_column(
                column.heading,
                justify="right" if column.kind.numeric else "left",
                overflow="fold" if column.may_wrap else "ellipsis",
                no_wrap=not column.may_wrap,
                min_width=column.width,
                ratio=column.ratio,
            )
        for row in rows:
            grid.add_row(*(column.styled(row) for column in columns) if row is not None else ())
        return grid

    @functools.cached_property
    def heads(self) -> tuple[Column[R], ...]:
        """Return the columns of the page."""
        return tuple(column for column in self.columns if column.on != "console")

    @functools.cached_property
    def fields(self) -> tuple[tuple[Field, ...], ...]:
        """Return the rows of the page."""
        return tuple(tuple(head.field(row) for head in self.heads) for row in self.rows if row is not None)

    def values(self, name: str) -> tuple[str, ...]:
        """Return the different values of a column of the page: numbers ascending, texts in order of appearance."""
        place = [head.name for head in self.heads].index(name)
        fields = [row[place] for row in self.fields]
        if self.heads[place].kind.numeric:
            fields.sort(key=lambda field: field.key or 0.0)
        return tuple(dict.fromkeys(field.words for field in fields))

    def markdown(self, escaped: Callable[[str], str] = str) -> list[str]:
        """Return the lines of a Markdown table. `escaped` escapes values, not headings."""
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
    """Return the values of a row by the keys of its columns, for JSON and exports. Columns without key are left out."""
    return {column.key: column.value(row) for column in columns if column.key}


def cell_columns(cells: Iterable[Cell], cell_of: Callable[[R], Cell]) -> list[Column[R]]:
    """Return the columns before the config: batch size, model if the cells have several, and ranks if any has more
    than one. `cell_of` returns the cell of a row."""
    cells = list(cells)
    columns = [Column[R]("batch", lambda row: cell_of(row).batch_size, COUNT, wraps=True, width=5)]
    if len({cell.model for cell in cells}) > 1:
        columns.insert(0, Column("model", lambda row: cell_of(row).model, wraps=False))
    if many_ranks(cells):
        columns.append(Column("ranks", lambda row: cell_of(row).ranks, COUNT, wraps=True))
    return columns


@dataclass(frozen=True, kw_only=True)
class ConfigTable(Table[R]):
    """A table with a row per cell, in blocks of the same model, batch size and ranks.

    A config that extends the config above it shows only the rungs that it adds. `why_no_figures` returns a text that a
    row shows in place of its figures, such as a trial's status; None or "" if the row has figures."""

    cell: Callable[[R], Cell]
    why_no_figures: Callable[[R], str | None] = lambda _: None
    min_width: int = 18

    def _blocks(self, rows: Sequence[R]) -> dict[tuple[str, ...], list[tuple[R, str]]]:
        """Return the rows in blocks, each row with the name of its config as shown.

        Keys are the texts of the columns before the config: batch size, and model and ranks if shown."""
        leading = cell_columns(map(self.cell, rows), self.cell)
        blocks: dict[tuple[str, ...], list[tuple[R, str]]] = {}
        for head, block in grouped((tuple(column.text(row) for column in leading), row) for row in rows).items():
            cells = list(map(self.cell, block))
            blocks[head] = list(zip(block, map(config_in_ladder, cells, [None, *cells]), strict=True))
        return blocks

    def _config_width(self, rows: Sequence[R]) -> int:
        """Return the least width of the configs, wrapped between rungs."""
        names = [between_rungs(name, 0) for block in self._blocks(rows).values() for _, name in block]
        return max([self.min_width, *(cell_len(line) for name in names for line in name.split("\n"))])

    def _width_without_configs(
        self, rows: Sequence[R], columns: Sequence[Column[R]], keep_intervals: bool = False
    ) -> int:
        """Return the least width of all columns but the configs, with the gap after each column. With `keep_intervals`,
        the intervals of numbers do not wrap."""
        rows_with_figures = [row for row in rows if not self.why_no_figures(row)]
        least = [column.least_width(rows) for column in cell_columns(map(self.cell, rows), self.cell)]
        least += [column.least_width(rows_with_figures, keep_intervals) for column in columns if column.on != "page"]
        return sum(least) + self.gap * len(least)

    def _least_width(self, rows: Sequence[R], columns: Sequence[Column[R]]) -> int:
        return self._width_without_configs(rows, columns) + self._config_width(rows) + self.gap

    def on_console(self, width: int) -> Grid:
        """Return the grid for a console of this width. Config names wrap between rungs, or anywhere if necessary."""
        rows = [row for row in self.rows if row is not None]
        leading, shown = cell_columns(map(self.cell, rows), self.cell), self.columns_at(width)
        least = self._config_width(rows)
        cramped = self._width_without_configs(rows, shown) + least > width
        room = max(least, width - self._width_without_configs(rows, shown, keep_intervals=True) - self.gap)
        blocks = self._blocks(rows)
        names = {name: between_rungs(name, room) for block in blocks.values() for _, name in block}
        if cramped:
            names = {name: name for name in names}
        config = Column[R]("config", str, wraps=cramped, width=self.min_width)
        grid = self._grid([*leading, config, *shown], ())
        for head, block in blocks.items():
            if grid.row_count:
                grid.add_row()
            for place, (row, name) in enumerate(block):
                words = self.why_no_figures(row)
                figures = [Text(words, style="yellow")] if words else [column.styled(row) for column in shown]
                grid.add_row(*([""] * len(head) if place else head), Words(names[name]), *figures)
        return grid


def between_rungs(config: str, width: int) -> str:
    """Wrap a config's name, or the rungs that it adds, between rungs to lines of at most `width` columns. A line is
    wider if it holds a single rung that does not fit."""
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
    """Return whether a table of these cells needs a column of ranks."""
    return any(cell.ranks > 1 for cell in cells)


def config_in_ladder(cell: Cell, above: Cell | None) -> str:
    """Return a config's name for a row below the cell `above`: only the rungs or the ablation that it adds, if it
    extends the config above it."""
    base, _, ablation = cell.config.partition(":")
    if above and ablation and above.config.partition(":")[0] == base:
        return f"  : {ablation}"
    if above and cell.config.startswith(above.config + "+"):
        return "  + " + " + ".join(cell.config.removeprefix(above.config + "+").split("+"))
    return cell.config
