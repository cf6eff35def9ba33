"""Consoles for tables, messages and progress. What draws on them is imported when one is made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tcbench.show.app import interruptible

if TYPE_CHECKING:
    from tcbench.show.tables import Screen

PLAIN_WIDTH = 132
"""Columns where there is no terminal to ask."""


def make_console(*, stderr: bool = False, details: bool = False, quiet: bool = False) -> Screen:
    """As wide as the terminal, and 80 columns at least, or wide enough for a table in a file. `quiet`: silent."""
    from tcbench.show.tables import Screen

    console = Screen(stderr=stderr)
    if not console.is_terminal:
        return Screen(stderr=stderr, width=PLAIN_WIDTH, details=details, quiet=quiet)
    width = None if stderr else max(console.width, 80)
    return Screen(stderr=stderr, width=width, columns=console.width, details=details, quiet=quiet)


@contextlib.contextmanager
def stages(quiet: bool, says: Callable[[], str] | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """What goes before an answer, counted on standard error: to be told what, how much of it is done, of how much. With
    `says`, an interrupt within it ends the command as in `interruptible`."""
    from tcbench.show.progress import Stages

    ending = contextlib.nullcontext() if says is None else interruptible(says)
    with ending, Stages(make_console(stderr=True, quiet=quiet)) as shown:
        yield shown.advance
