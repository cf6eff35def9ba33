"""Pairs by their keys. Standard library only."""

from collections.abc import Iterable
from typing import TypeVar

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
