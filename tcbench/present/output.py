"""Standard output and error as places that may go away: a pipe that is closed, a full disk, a terminal that hung up.

Output that fails is never a verdict: a closed pipe ends the command as it does `cat` (exit code 141), anything else
is an error of one line. Without standard error the command goes on, since that only tells how it is going.
"""

import io
import os
import signal
import sys
from typing import TextIO

from tcbench.core.errors import OutputError

CLOSED_PIPE = 128 + signal.SIGPIPE
"""The exit code that a shell shows for a command ended by SIGPIPE."""


def guard() -> None:
    """Put both under guard."""
    for number in (0, 1, 2):  # a file that is opened must not take the number of one that is closed
        try:
            os.fstat(number)
        except OSError:
            # What is written to an output that is closed is lost, and that is an error, as it is for `ls`.
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)
    sys.stdout, sys.stderr = _guarded(sys.stdout, _Output), _guarded(sys.stderr, _Error)


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
    """Standard output: what it does not take ends the command. SystemExit passes through libraries that turn a broken
    pipe into exit code 1."""

    def lost(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            raise SystemExit(CLOSED_PIPE)
        raise OutputError(f"standard output cannot be written ({error.strerror})")


def _guarded(stream: TextIO | None, kind: type[_Error]) -> TextIO:
    """The stream over a file of that kind; another stream, in a test for one, stays as it is. A sign that a terminal
    lacks is shown as another."""
    if stream is None:  # it was closed
        return io.TextIOWrapper(
            io.BufferedWriter(kind(2 if kind is _Error else 1, "wb", closefd=False)), "utf-8", "replace"
        )
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
