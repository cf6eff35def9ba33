"""JSON as every command writes it: frozen dataclasses and structs as they are, units in the names of their fields."""

from __future__ import annotations

from typing import Any

import msgspec

from tcbench.core.text import cleaned


def encoded(value: Any) -> str:
    """The value as JSON, indented. What is not finite is null, since JSON has no infinity."""
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:  # the name of a file that is not UTF-8
        data = msgspec.json.encode(cleaned(msgspec.to_builtins(value)))
    return msgspec.json.format(data, indent=1).decode()
