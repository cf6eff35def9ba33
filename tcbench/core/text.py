"""Text that anyone may have written, made safe to show when it is read: here, and nowhere later. And plain digits.

Records, documents and timelines come from files that anyone may have made. Whoever decodes them sends their strings
through here, so that tables, charts, pages and exports hold nothing that a terminal or a browser would act on.
"""

import os
import shlex
import string
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec

LONGEST = 4000
"""Characters of a string that anybody reads; one of megabytes would be laid out letter by letter."""

MANY_LINES = ("log",)
"""Fields that keep their line breaks and their length: a worker's standard error."""


def digits(value: float, n: int = 3) -> str:
    """A number in so many digits, and never with an exponent: 0.00005, 1.5, 1230."""
    return f"{Decimal(f'{value:.{n}g}'):f}"


def shell_line(words: Iterable[str]) -> str:
    """Return a command line that bash takes as these words, also where a name is not text in this locale."""
    return " ".join(shlex.quote(word) if word.isprintable() else _in_octal(word) for word in words)


def _in_octal(word: str) -> str:
    printable = "".join(chr(byte) if chr(byte) in _PLAIN else f"\\{byte:03o}" for byte in os.fsencode(word))
    return f"$'{printable}'"


_PLAIN = frozenset(string.ascii_letters + string.digits + " !#$%&()*+,-./:;<=>?@[]^_{|}~")


def plain(text: str, *, lines: bool = False) -> str:
    """Text in which every character that is not printable (controls, marks of direction, what is invisible) is shown
    as its escape. One line of at most LONGEST characters, unless `lines`: these stay, whole."""
    if not lines and len(text) > LONGEST:
        text = f"{text[:LONGEST]}…"
    if text.isprintable():
        return text
    if lines:
        return "\n".join(map(printable, text.expandtabs().split("\n")))
    return printable(text.replace("\n", " ").replace("\t", " "))


def printable(text: str) -> str:
    """Text in which every character that is not printable is shown as its escape, line breaks too."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cleaned(value: Any, field: str = "") -> Any:
    """A JSON value with all of its strings and names `plain`. Raises RecursionError."""
    if isinstance(value, str):
        return plain(value, lines=field in MANY_LINES)
    if isinstance(value, dict):
        return {plain(name): cleaned(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [cleaned(inner) for inner in value]
    return value


def decode(data: bytes, type_: Any) -> Any:
    """JSON as a type, its strings safe to show. Raises msgspec.DecodeError."""
    try:
        return msgspec.convert(cleaned(msgspec.json.decode(data)), type_)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def may_need_cleaning(line: bytes) -> bool:
    """Whether JSON on one line may hold a string that is not `plain`: a quick test, which all usual lines pass."""
    # What is not UTF-8 becomes surrogates, which are not printable.
    if not line.isascii() and not line.strip().decode(errors="surrogateescape").isprintable():
        return True
    if b"\\" in line or b"\x7f" in line:
        return True
    # Without a backslash every second part between quotes is a string.
    return len(line) > LONGEST and max(map(len, line.split(b'"')[1::2]), default=0) > LONGEST
