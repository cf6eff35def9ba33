"""Consoles for tables, messages and progress. Rich is imported when the first one is made, because it loads slowly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tcbench.show.app import interruptible

if TYPE_CHECKING:
    from tcbench.show.tables import Screen

PLAIN_WIDTH = 132
"""The width of a console that is not a terminal, in columns."""


def make_console(*, stderr: bool = False, details: bool = False, quiet: bool = False) -> Screen:
    """Return a console as wide as the terminal (at least 80 columns), or PLAIN_WIDTH wide for a file or pipe."""
    from tcbench.show.tables import Screen

    console = Screen(stderr=stderr)
    if not console.is_terminal:
        return Screen(stderr=stderr, width=PLAIN_WIDTH, details=details, quiet=quiet)
    width = None if stderr else max(console.width, 80)
    return Screen(stderr=stderr, width=width, columns=console.width, details=details, quiet=quiet)


@contextlib.contextmanager
def stages(quiet: bool, describe: Callable[[], str] | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of several stages of work on standard error.

    Yield a function to call with the name of a stage, the units of work done, and their total. With `describe`, an
    interrupt ends the command with the text that it returns (`interruptible`)."""
    from tcbench.show.progress import Stages

    ending = contextlib.nullcontext() if describe is None else interruptible(describe)
    with ending, Stages(make_console(stderr=True, quiet=quiet)) as shown:
        yield shown.advance
