"""Standard output and standard error that handle failed writes and escape control characters.

A stream may fail: a closed pipe, a full disk, a terminal that hung up. If standard output fails, a closed pipe ends the
command with exit code 141, as it ends `cat`, and any other failure is an error of one line. If standard error fails,
the command goes on, because that only carries progress and notes.

Control characters in printed text, such as a file's name, are shown as escapes, so that no terminal acts on them.
Strings of records and traces are cleaned when they are decoded (`tcbench.core.text`); this module escapes all other
text, and `tcbench.show.tables` what Rich prints."""

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
"""The exit code that a shell reports for a command ended by SIGPIPE."""

STANDARD_OUTPUT = Path("/dev/stdout")
"""The file that `-o -` names."""

_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Control characters except tab and line feed, direction marks, line separators, and invisible characters."""


def harmless(text: str) -> str:
    """Replace the characters that a terminal would act on by escapes as in JSON."""
    return _ACTIVE.sub(lambda match: json.dumps(match[0])[1:-1] if match[0] != "\x7f" else "\\u007f", text)


def guard() -> None:
    """Replace sys.stdout and sys.stderr by this module's streams, open closed descriptors, unset bad terminal sizes."""
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch("[1-9][0-9]{0,3}", os.environ.get(name, "80")):
            del os.environ[name]
    for number in (0, 1, 2):  # a closed stream's descriptor must not be reused by the next open()
        try:
            os.fstat(number)
        except OSError:
            # Writing to a closed standard output must be an error, as it is for `ls`, so open it read-only.
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)
    sys.stdout, sys.stderr = _guarded(sys.stdout, _Output), _guarded(sys.stderr, _Error)
    if not isinstance(sys.stdout, _Harmless):
        sys.stdout = cast(TextIO, _Harmless(sys.stdout))
    if not isinstance(sys.stderr, _Harmless):
        sys.stderr = cast(TextIO, _Harmless(sys.stderr, 4000))  # an error may name a string of megabytes


def use_utf_8() -> None:
    """Write standard output in UTF-8 from now on, whatever the locale, so that it has the same bytes as a file."""
    stream = sys.stdout.rich_proxied_file if isinstance(sys.stdout, _Harmless) else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def is_terminal(path: Path) -> bool:
    """Return whether the path is standard output and that is a terminal."""
    return path == STANDARD_OUTPUT and os.isatty(1)


def write_file(path: Path, content: bytes, remedy: str = "") -> None:
    """Write `content` to the file that -o names, or to standard output.

    Raises StoreError, whose message ends with `remedy`, for a file, and OutputError for standard output."""
    if path == STANDARD_OUTPUT:
        with io.BufferedWriter(_Output(1, "wb", closefd=False)) as output:
            output.write(content)
    else:
        files.write(path, content, remedy)


class _Error(io.FileIO):
    """A raw standard error that discards what cannot be written."""

    def write(self, data: object, /) -> int:
        """Write to standard error. If it is gone, discard everything from now on."""
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            # Send everything from now on to /dev/null, including what Python flushes when it exits.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            self.handle_failure(error)
            return len(memoryview(data))  # type: ignore[arg-type]

    def handle_failure(self, error: OSError) -> None:
        """Handle a failed write. A failure of standard error is ignored."""


class _Output(_Error):
    """A raw standard output whose failure ends the command: libraries would turn a broken pipe into exit code 1."""

    def handle_failure(self, error: OSError) -> None:
        """End the command: with the exit code of SIGPIPE if a pipe was closed, else with an OutputError."""
        if isinstance(error, BrokenPipeError):
            raise SystemExit(CLOSED_PIPE)
        raise OutputError(f"standard output cannot be written ({error.strerror})")


def _guarded(stream: TextIO | None, kind: type[_Error]) -> TextIO:
    """Return a text stream like `stream` whose writes go through `kind`, which handles failed writes. A closed stream
    (None) gets a new one on descriptor 1 or 2. Characters that the encoding lacks are replaced."""
    if stream is None:  # it was closed
        closed = kind(2 if kind is _Error else 1, "wb", closefd=False)
        return io.TextIOWrapper(io.BufferedWriter(closed), "utf-8", "replace")
    if not isinstance(stream, io.TextIOWrapper):  # set up by a test
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
    """A stream that passes its text through `harmless`. Its other attributes are those of the wrapped stream."""

    def __init__(self, stream: TextIO, longest_line: int | None = None) -> None:
        # Rich looks for this name and writes to it directly, because its colours are escape sequences too.
        self.rich_proxied_file = stream
        self._longest_line = longest_line

    def write(self, text: str) -> int:
        """Write text without control characters, and with overlong lines cut."""
        limit = self._longest_line
        if limit is not None and len(text) > limit:
            text = "\n".join(line if len(line) <= limit else f"{line[:limit]}…" for line in text.split("\n"))
        self.rich_proxied_file.write(harmless(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # Typer would write to it directly if it took the encoding for ASCII
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)
