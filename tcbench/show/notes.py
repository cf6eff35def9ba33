"""Notes under a table: which of them a console shows, in which order, and where a line of text is broken."""

import shutil
import sys
import textwrap
from collections.abc import Iterable

import typer

MOST_LINES = 2
"""Lines of notes under a table. --details shows the rest."""


class Caution(str):
    """A note without which a figure would be misread. It stands before those that explain a heading or a sign."""

    __slots__ = ()


def broken(text: str, columns: int) -> list[str]:
    """The lines of a text in so many columns. Words stay whole; a line that goes on is indented."""
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        indent = line[: len(line) - len(line.lstrip())] + "  "
        whole = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": indent}
        lines += [line] if len(line) <= columns else textwrap.wrap(line, columns, **whole)  # type: ignore[arg-type]
    return lines


def aside(text: str) -> None:
    """A note on standard error: of files, and of what was left out."""
    columns = shutil.get_terminal_size().columns if sys.stderr.isatty() else len(text)
    typer.echo("\n".join(broken(text, columns)), err=True)


def fitting(notes: Iterable[str], columns: int) -> list[str]:
    """Of notes under a table those for which there is room, at least one: cautions before all others, each kind in its
    order. The last says how many more there are."""
    ordered = sorted(notes, key=lambda note: not isinstance(note, Caution))
    shown = ordered
    for n in range(len(ordered), 0, -1):
        left = len(ordered) - n
        shown = ordered[:n]
        if left:
            shown = [*shown[:-1], f"{shown[-1]} ({left} more: --details)"]
        if sum(len(broken(note, columns)) for note in shown) <= MOST_LINES:
            break
    return shown
