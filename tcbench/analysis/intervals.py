"""Sets of time as sorted, disjoint intervals: union, intersection, difference, length. Pure functions of numbers.

An interval is (begin, end) with begin <= end; one without length counts as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Intervals = Sequence[tuple[float, float]]
"""Sorted and disjoint, as `union` leaves them."""


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The time in any of the intervals; overlaps count once."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = merged[-1][0], end
        else:
            merged.append((begin, end))
    return merged


def intersection(one: Intervals, other: Intervals) -> list[tuple[float, float]]:
    """The time in both."""
    shared, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        begin, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if begin < end:
            shared.append((begin, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return shared


def difference(one: Intervals, other: Intervals) -> list[tuple[float, float]]:
    """The time in `one` and not in `other`."""
    rest, j = [], 0
    for interval in one:
        begin, end = interval
        while j < len(other) and other[j][1] <= begin:
            j += 1
        k = j
        while k < len(other) and other[k][0] < end:
            if begin < other[k][0]:
                rest.append((begin, other[k][0]))
            begin = max(begin, other[k][1])
            k += 1
        if begin < end:
            rest.append((begin, end))
    return rest


def clip(intervals: Intervals, begin: float, end: float) -> list[tuple[float, float]]:
    """The part between two times."""
    return intersection(intervals, [(begin, end)])


def length(intervals: Intervals) -> float:
    """Total length."""
    return math.fsum(end - begin for begin, end in intervals)
