"""Text from untrusted files, made safe to print, and formatting of numbers and shell commands.

Anyone may have written a file of records, documents or timelines. Their strings are cleaned here when they are read, so
that tables, charts, pages and exports contain nothing that a terminal or a browser would act on."""

import os
import shlex
import string
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec

LONGEST = 4000
"""The length to which strings are cut. Charts would lay out a string of megabytes letter by letter."""

MANY_LINES = ("log",)
"""Fields that keep their line breaks and their length: the output of a worker."""


def digits(number: float, n: int = 3) -> str:
    """Return a number in n significant digits, never with an exponent: 0.00005, 1.5, 1230."""
    return f"{Decimal(f'{number:.{n}g}'):f}"


def started_by_uv() -> bool:
    """Return whether this process was started by `uv run`."""
    return "UV_RUN_RECURSION_DEPTH" in os.environ


def runnable(text: str) -> str:
    """Return a message with `uv run` before each tcbench command that it quotes in backticks, if this process was
    started by `uv run`; else the message unchanged."""
    return text.replace("`tcbench ", "`uv run tcbench ") if started_by_uv() else text


def shell_line(words: Iterable[str]) -> str:
    """Return a command line that bash splits into these words, even if they contain bytes that are no text."""
    return " ".join(shlex.quote(word) if word.isprintable() else _in_octal(word) for word in words)


def _in_octal(word: str) -> str:
    printable = "".join(chr(byte) if chr(byte) in _PLAIN else f"\\{byte:03o}" for byte in os.fsencode(word))
    return f"$'{printable}'"


_PLAIN = frozenset(string.ascii_letters + string.digits + " !#$%&()*+,-./:;<=>?@[]^_{|}~")


def plain(text: str, *, lines: bool = False) -> str:
    """Return text with every unprintable character (control, text direction, invisible) as its escape sequence.

    The text becomes one line of at most LONGEST characters, unless `lines` is set: then all lines stay."""
    if not lines and len(text) > LONGEST:
        text = f"{text[:LONGEST]}…"
    if text.isprintable():
        return text
    if lines:
        return "\n".join(map(printable, text.expandtabs().split("\n")))
    return printable(text.replace("\n", " ").replace("\t", " "))


def printable(text: str) -> str:
    """Return text with every unprintable character, line breaks included, as its escape sequence."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cleaned(value: Any, field: str = "") -> Any:
    """Return a JSON value with `plain` applied to all strings and names in it. Raises RecursionError."""
    if isinstance(value, str):
        return plain(value, lines=field in MANY_LINES)
    if isinstance(value, dict):
        return {plain(name): cleaned(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [cleaned(inner) for inner in value]
    return value


def decode(data: bytes, type_: Any) -> Any:
    """Decode JSON to a type, with strings that are safe to print. Raises msgspec.DecodeError."""
    try:
        return msgspec.convert(cleaned(msgspec.json.decode(data)), type_)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def may_need_cleaning(line: bytes) -> bool:
    """Return whether a line of JSON may contain a string that `plain` would change. The test is quick; usual lines do
    not need cleaning."""
    # Bytes that are not UTF-8 become surrogates, which are not printable.
    if not line.isascii() and not line.strip().decode(errors="surrogateescape").isprintable():
        return True
    if b"\\" in line or b"\x7f" in line:
        return True
    # In JSON without backslashes every second part between quotes is a string.
    return len(line) > LONGEST and max(map(len, line.split(b'"')[1::2]), default=0) > LONGEST
