"""Grouping by key and by name. Imports only the standard library."""

from collections.abc import Iterable
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the list of values of each key. Keys and values keep their order."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def summed(pairs: Iterable[tuple[K, float]]) -> dict[K, float]:
    """Return the sum of the numbers of each key. Keys keep their order."""
    sums: dict[K, float] = {}
    for key, number in pairs:
        sums[key] = sums.get(key, 0.0) + number
    return sums


def by_name(definitions: Iterable[Any]) -> dict[str, Any]:
    """Return objects by their attribute `name`. Raises ValueError if two have the same name: the second would silently
    replace the first."""
    groups = grouped((definition.name, definition) for definition in definitions)
    for name, namesakes in groups.items():
        if len(namesakes) > 1:
            modules = ", ".join(sorted({type(namesake).__module__ for namesake in namesakes}))
            raise ValueError(
                f"several definitions have the name '{name}' ({modules}): expected a different name for each"
            )
    return {name: definition for name, (definition,) in groups.items()}
