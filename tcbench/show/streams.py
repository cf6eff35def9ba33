"""The boundary to standard output and error. They may go away: a pipe that is closed, a full disk, a terminal that hung
up. Output that fails is never a verdict: a closed pipe ends the command as it does `cat` (exit code 141), anything else
is an error of one line. Without standard error the command goes on, since that only tells how it is going.

A terminal acts on control characters in the name of a file or in an error: it moves, clears, colours, writes right to
left. They are shown as escapes. Strings of records and traces are cleaned when they are decoded (`tcbench.core.text`);
this catches all other text that is printed, and `tcbench.show.tables` what Rich colours."""

import io
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any, TextIO, cast

from tcbench.core import files
from tcbench.core.errors import OutputError

CLOSED_PIPE = 128 + signal.SIGPIPE
"""The exit code that a shell shows for a command ended by SIGPIPE."""

STANDARD_OUTPUT = Path("/dev/stdout")
"""The file that `-o -` names."""

_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Controls (C0 but for tab and line feed, DEL, C1), marks of direction, separators of lines, what is invisible."""


def harmless(text: str) -> str:
    """Text with escapes, as JSON writes them, in place of the characters that a terminal would act on."""
    return _ACTIVE.sub(lambda match: json.dumps(match[0])[1:-1] if match[0] != "\x7f" else "\\u007f", text)


def guard() -> None:
    """Put both streams of this process under guard, and forget sizes of a terminal that none has."""
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch("[1-9][0-9]{0,3}", os.environ.get(name, "80")):
            del os.environ[name]
    for number in (0, 1, 2):  # a file that is opened must not take the number of one that is closed
        try:
            os.fstat(number)
        except OSError:
            # What is written to an output that is closed is lost, and that is an error, as it is for `ls`.
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)
    sys.stdout, sys.stderr = _guarded(sys.stdout, _Output), _guarded(sys.stderr, _Error)
    if not isinstance(sys.stdout, _Harmless):
        sys.stdout = cast(TextIO, _Harmless(sys.stdout))
    if not isinstance(sys.stderr, _Harmless):
        sys.stderr = cast(TextIO, _Harmless(sys.stderr, 4000))  # an error may name a string of megabytes


def use_utf_8() -> None:
    """Write standard output in UTF-8 from now on, whatever the locale: what a program reads is the same bytes as in a
    file that -o names."""
    stream = sys.stdout.rich_proxied_file if isinstance(sys.stdout, _Harmless) else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def is_terminal(path: Path) -> bool:
    """Return whether the path is standard output, and that is a terminal, which shows no pictures."""
    return path == STANDARD_OUTPUT and os.isatty(1)


def write_file(path: Path, content: bytes, remedy: str = "") -> None:
    """Write the file that -o names. Raises StoreError, with the remedy, or OutputError when it cannot be written."""
    if path == STANDARD_OUTPUT:
        with io.BufferedWriter(_Output(1, "wb", closefd=False)) as output:
            output.write(content)
    else:
        files.write(path, content, remedy)


class _Error(io.FileIO):
    """Standard error: what it does not take is lost."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            # From here on all of it goes nowhere, also what Python still holds when it ends.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            self.lost(error)
            return len(memoryview(data))  # type: ignore[arg-type]

    def lost(self, error: OSError) -> None:
        pass


class _Output(_Error):
    """What it does not take ends the command, by SystemExit: libraries make a broken pipe exit code 1."""

    def lost(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            raise SystemExit(CLOSED_PIPE)
        raise OutputError(f"standard output cannot be written ({error.strerror})")


def _guarded(stream: TextIO | None, kind: type[_Error]) -> TextIO:
    """The stream over a file of that kind; a test's stays as it is. A sign that a terminal lacks becomes another."""
    if stream is None:  # it was closed
        lost = kind(2 if kind is _Error else 1, "wb", closefd=False)
        return io.TextIOWrapper(io.BufferedWriter(lost), "utf-8", "replace")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.reconfigure(errors="replace")
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if not isinstance(raw, io.FileIO):
        return stream
    file = io.BufferedWriter(kind(raw.fileno(), "wb", closefd=False))
    return io.TextIOWrapper(
        file,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


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
