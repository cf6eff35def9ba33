"""Notes under tables: which of them a console shows, in which order, and how lines are wrapped."""

import shutil
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import typer

from tcbench.core.text import runnable
from tcbench.show.streams import STANDARD_OUTPUT

MOST_LINES = 2
"""The number of lines of notes under a table. --details shows the rest."""


class Caution(str):
    """A note without which a reader would misread a figure. Cautions are shown before other notes."""

    __slots__ = ()


def wrap_lines(text: str, columns: int) -> list[str]:
    """Wrap a text at word boundaries to lines of at most `columns`. Continuation lines are indented."""
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        indent = line[: len(line) - len(line.lstrip())] + "  "
        options = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": indent}
        lines += [line] if len(line) <= columns else textwrap.wrap(line, columns, **options)  # type: ignore[arg-type]
    return lines


def aside(text: str) -> None:
    """Print a note on standard error, such as which files were skipped."""
    text = runnable(text)
    columns = shutil.get_terminal_size().columns if sys.stderr.isatty() else len(text)
    typer.echo("\n".join(wrap_lines(text, columns)), err=True)


def echo_written(*paths: Path, err: bool = False) -> None:
    """Print the names of files that were written, except standard output, which `-o -` names."""
    if names := [str(path) for path in paths if path != STANDARD_OUTPUT]:
        typer.echo(f"wrote {' and '.join(names)}", err=err)


def notes_that_fit(notes: Iterable[str], columns: int) -> list[str]:
    """Return the notes that fit into MOST_LINES, at least one, cautions first. If some are left out, the last line says
    how many."""
    ordered = sorted(notes, key=lambda note: not isinstance(note, Caution))
    shown = ordered
    for n in range(len(ordered), 0, -1):
        left = len(ordered) - n
        shown = ordered[:n]
        if left:
            shown = [*shown[:-1], f"{shown[-1]} ({left} more: --details)"]
        if sum(len(wrap_lines(note, columns)) for note in shown) <= MOST_LINES:
            break
    return shown
