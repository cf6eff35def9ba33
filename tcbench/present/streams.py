"""The boundary to the terminal: control characters in the name of a file or in an error are shown as escapes.

A terminal acts on such characters: it moves, clears, colours, writes right to left. Strings of records and traces are
cleaned when they are decoded (`tcbench.core.text`); this catches all other text.
Everything that is printed comes through here or, where Rich colours it, through `tcbench.views.throughput.table`.
"""

import sys
from typing import Any, TextIO, cast

from tcbench.present.terminal import harmless

_LONGEST_LINE = 4000
"""Characters of a line on standard error: an error may name a string of megabytes."""


class _Harmless:
    """A stream whose text passes through `harmless`; everything else is the stream's own, but for its buffer."""

    def __init__(self, stream: TextIO, longest_line: int | None = None) -> None:
        # Rich's name for what it writes to itself: its own colours are escapes too.
        self.rich_proxied_file = stream
        self._longest_line = longest_line

    def write(self, text: str) -> int:
        most = self._longest_line
        if most is not None and len(text) > most:
            text = "\n".join(line if len(line) <= most else f"{line[:most]}…" for line in text.split("\n"))
        self.rich_proxied_file.write(harmless(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # Typer would write to it where it takes the stream for an ASCII one
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)


def guard() -> None:
    """Put both streams of this process behind it."""
    if not isinstance(sys.stdout, _Harmless):
        sys.stdout = cast(TextIO, _Harmless(sys.stdout))
    if not isinstance(sys.stderr, _Harmless):
        sys.stderr = cast(TextIO, _Harmless(sys.stderr, _LONGEST_LINE))
