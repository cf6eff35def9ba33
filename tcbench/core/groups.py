"""Pairs by their keys, and things by their names. Standard library only."""

from collections.abc import Iterable
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key; keys, and the values of one, in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def summed(pairs: Iterable[tuple[K, float]]) -> dict[K, float]:
    """The sum of each key's numbers; keys in the order in which they come."""
    sums: dict[K, float] = {}
    for key, number in pairs:
        sums[key] = sums.get(key, 0.0) + number
    return sums


def by_name(things: Iterable[Any]) -> dict[str, Any]:
    """Things by their `name`, in their order. Raises ValueError where two have one name: the later would stand in for
    the earlier without a word."""
    groups = grouped((thing.name, thing) for thing in things)
    if twice := [name for name, called in groups.items() if len(called) > 1]:
        where = sorted({type(thing).__module__ for thing in groups[twice[0]]})
        raise ValueError(f"'{twice[0]}' is the name of several ({', '.join(where)}): expected another for each")
    return {name: thing for name, (thing,) in groups.items()}
