"""JSON as every command writes it: frozen dataclasses and structs as they are, units in the names of their fields."""

from typing import Any

import msgspec

from tcbench.core.text import cleaned


def encoded(value: Any) -> str:
    """The value as JSON, indented. What is not finite is null, since JSON has no infinity."""
    try:
        data = msgspec.json.encode(value, enc_hook=_as_text)
    except UnicodeEncodeError:  # the name of a file that is not UTF-8
        data = msgspec.json.encode(cleaned(msgspec.to_builtins(value, enc_hook=_as_text)))
    return msgspec.json.format(data, indent=1).decode()


def _as_text(value: object) -> str:
    """A text of a type of its own, as a caution among notes."""
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} is no JSON")


def document(schema: str, version: int = 1, /, **values: Any) -> str:
    """A document of a schema and its version, as JSON."""
    return encoded({"schema": schema, "schema_version": version, **values})


def versioned(**values: Any) -> str:
    """What is printed under --json and is no document of its own, with the version that all of it has."""
    return encoded({"schema_version": 1, **values})


def fields(of: object, names: str) -> dict[str, Any]:
    """A value's attributes by name, for JSON. `key=name.inner`: an attribute's attribute, None where that is None."""
    pairs = (name.partition("=") for name in names.split())
    return {key: _attribute(of, name or key) for key, _, name in pairs}


def _attribute(of: object, path: str) -> object:
    for name in path.split("."):
        of = None if of is None else getattr(of, name)
    return of
