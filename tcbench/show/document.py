"""JSON output of all commands, from dataclasses and structs. Field names contain the units."""

from typing import Any

import msgspec

from tcbench.core.text import cleaned


def encoded(value: Any) -> str:
    """Encode a value as indented JSON. Infinities and NaN become null, since JSON has neither."""
    try:
        text = msgspec.json.encode(value, enc_hook=_as_text)
    except UnicodeEncodeError:  # a file name that is not UTF-8
        text = msgspec.json.encode(cleaned(msgspec.to_builtins(value, enc_hook=_as_text)))
    return msgspec.json.format(text, indent=1).decode()


def _as_text(value: object) -> str:
    """Convert an instance of a subclass of str, such as a `Caution`, to a plain str for msgspec."""
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} is no JSON")


def document(schema: str, version: int = 1, /, **values: Any) -> str:
    """Return a JSON document with the name and version of its schema."""
    return encoded({"schema": schema, "schema_version": version, **values})


def versioned(**values: Any) -> str:
    """Return --json output that has no schema name, with the version number common to all such output."""
    return encoded({"schema_version": 1, **values})


def fields(source: object, names: str) -> dict[str, Any]:
    """Return attributes of an object by name, for JSON.

    `names` are separated by spaces. `key=name.inner` stores an attribute of an attribute under another key; it is None
    if the outer attribute is None."""
    pairs = (name.partition("=") for name in names.split())
    return {key: _attribute(source, name or key) for key, _, name in pairs}


def _attribute(source: object, path: str) -> object:
    for name in path.split("."):
        source = None if source is None else getattr(source, name)
    return source
