"""Reads Chrome traces of any size event by event, in bounded memory.

A file is unpacked and parsed in pieces of 1 MiB. While a value does not end, each further piece is twice as large as
the last, and a value that has not ended after 64 Mi characters is refused: at most twice as much text is kept.
Numbers with a fraction stay text, because a double cannot hold microseconds since 1970 to the nanosecond.
"""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tcbench.core import files
from tcbench.core.errors import TraceError

EVENTS = "traceEvents"
"""The key of the list of events; a file may also be that list alone."""

_PIECE_BYTES = 1 << 20
_MOST_VALUE_CHARACTERS = 1 << 26
"""A value that has not ended after as many characters is not read on."""

_DECODER = json.JSONDecoder(parse_float=str, parse_constant=str)
_BLANKS = " \t\r\n"


def members(path: Path, most_bytes: int) -> Iterator[tuple[str, Any]]:
    """Yield the members of a trace's top-level object in the order of the file. The list of events is not yielded as a
    whole: each event is yielded with the key `EVENTS`.

    Raises TraceError if the file cannot be read, is cut off or damaged, or has more than `most_bytes` when unpacked.
    """
    try:
        with files.open_for_reading(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else files.open_for_reading(path) as opened:
            yield from _Parser(opened, most_bytes).members()
    except _TooLargeError as error:
        raise TraceError(f"{path}: {error}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TraceError(f"{path}: the compressed file is cut off or damaged; copy or record it again") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise TraceError(f"{path}: not a whole JSON trace ({reason}); copy or record it again") from None


class _TooLargeError(Exception):
    """The file, or one value in it, exceeds a limit."""


class _Parser:
    """Parses the text of a file from front to back."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, most_bytes: int, piece_bytes: int = _PIECE_BYTES) -> None:
        self._file, self._piece_bytes = file, piece_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._most_bytes, self._bytes = most_bytes, 0
        self._text, self._position, self._dropped = "", 0, 0
        self._ended = False

    def members(self) -> Iterator[tuple[str, Any]]:
        if self._peek() == "[":
            yield from ((EVENTS, event) for event in self._elements())
        else:
            yield from self._object_members()
        self._expect("")

    def _object_members(self) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        while self._peek() != "}":
            key = self._parse()
            self._expect(":")
            if key == EVENTS and self._peek() == "[":
                yield from ((EVENTS, event) for event in self._elements())
            else:
                yield str(key), self._parse()
            if self._peek() != "}":
                self._expect(",")
        self._expect("}")

    def _elements(self) -> Iterator[Any]:
        self._expect("[")
        while self._peek() != "]":
            yield self._parse()
            if self._peek() != "]":
                self._expect(",")
        self._expect("]")

    def _parse(self) -> Any:
        self._peek()
        piece_bytes = self._piece_bytes
        while True:
            try:
                parsed, end = _DECODER.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                # An unfinished value fails at the end of the text, except for a string, which fails at its begin.
                unfinished = error.msg.startswith("Unterminated string") or error.pos > len(self._text) - 16
                if self._ended or not unfinished:
                    raise ValueError(f"{error.msg} at character {self._dropped + error.pos}") from None
            else:
                if end < len(self._text) - len("e+") or self._ended:  # else a number may go on in the next piece
                    self._position = end
                    return parsed
            if len(self._text) - self._position > _MOST_VALUE_CHARACTERS:
                raise _TooLargeError(f"an event of more than {_MOST_VALUE_CHARACTERS >> 20} MiB; not a trace")
            self._read(piece_bytes)
            piece_bytes *= 2

    def _peek(self) -> str:
        """Return the next character that is not blank; empty at the end of the file."""
        while True:
            while self._position < len(self._text):
                if self._text[self._position] not in _BLANKS:
                    return self._text[self._position]
                self._position += 1
            if self._ended:
                return ""
            self._read(self._piece_bytes)

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            expected = f"'{character}'" if character else "the end of the file"
            raise ValueError(f"expected {expected} at character {self._dropped + self._position}")
        self._position += 1

    def _read(self, n_bytes: int) -> None:
        """Drop the text that was parsed, and append the next piece."""
        piece = self._file.read(n_bytes)
        self._bytes += len(piece)
        if self._bytes > self._most_bytes:
            limit = f"{self._most_bytes / 2**20:.0f} MiB"
            raise _TooLargeError(f"more than {limit} unpacked; `tcbench explain --most-mib` raises the limit")
        self._ended = not piece
        self._dropped += self._position
        self._text = self._text[self._position :] + self._decode(piece, not piece)
        self._position = 0
