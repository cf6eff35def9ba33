"""Consoles, tables of cells by batch size, and the version of JSON: what all commands print with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tcbench.core.record import Cell
from tcbench.present.document import encoded
from tcbench.present.terminal import harmless

JSON_SCHEMA_VERSION = 1
"""Version of everything printed under --json."""


_PLAIN_WIDTH = 132
"""Columns where there is no terminal to ask."""


class _Harmless(Console):
    """Colours are its own; a text is never markup, and its characters that a terminal would act on are shown as their
    escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def make_console(*, stderr: bool = False, least: int = 80) -> Console:
    """A console as wide as the terminal, or wide enough for a table in a file or pipe.

    A table is never squeezed below `least` columns: a narrower terminal wraps its lines, which loses nothing.
    """
    console = _Harmless(stderr=stderr)
    if stderr and console.is_terminal:
        return console
    return _Harmless(stderr=stderr, width=max(console.width, least) if console.is_terminal else _PLAIN_WIDTH)


def open_table(gap: int = 2, **options: Any) -> Table:
    """A table without lines, its columns `gap` apart."""
    return Table(**{"box": None, "pad_edge": False, "header_style": "bold", "padding": (0, gap, 0, 0)} | options)


def ladder_table(cells: Sequence[Cell], gap: int = 2, min_width: int = 18) -> Table:
    """A table for `add_by_batch` of these cells, with its columns of model and ranks where there are several, batch
    size, and config."""
    table = open_table(gap)
    for heading, justify, _ in heads_of(cells):
        table.add_column(heading, justify=justify)
    table.add_column("config", overflow="fold", min_width=min_width)
    return table


Head = tuple[str, Literal["left", "right"], Callable[[Cell], str]]


def heads_of(cells: Iterable[Cell]) -> list[Head]:
    """Columns before a config's: model where there are several, batch size, ranks where a cell has several. Of each its
    heading, side, and words of a cell."""
    cells = list(cells)
    heads: list[Head] = [("batch", "right", _batch_size)]
    if len({cell.model for cell in cells}) > 1:
        heads.insert(0, ("model", "left", _model))
    if many_ranks(cells):
        heads.append(("ranks", "right", _ranks))
    return heads


def _model(cell: Cell) -> str:
    return cell.model


def _batch_size(cell: Cell) -> str:
    return str(cell.batch_size)


def _ranks(cell: Cell) -> str:
    return str(cell.ranks)


def add_by_batch(table: Table, rows: Iterable[tuple[Cell, Iterable[RenderableType]]]) -> None:
    """A row per cell with its figures, model by model, batch size by batch size and ranks by ranks, an empty row
    between; a config that adds rungs to the one above shows what it adds."""
    rows = list(rows)
    heads = heads_of(cell for cell, _ in rows)
    blocks: dict[tuple[str, ...], list[tuple[Cell, Iterable[RenderableType]]]] = {}
    for cell, figures in rows:
        blocks.setdefault(tuple(of(cell) for _, _, of in heads), []).append((cell, figures))
    for head, group in blocks.items():
        if table.row_count:
            table.add_row()
        above = None
        for cell, figures in group:
            table.add_row(*([""] * len(head) if above else head), Text(config_in_ladder(cell, above)), *figures)
            above = cell


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
