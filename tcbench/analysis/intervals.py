"""Sets of time as sorted, disjoint intervals: union, intersection, difference, length. Pure functions of numbers.

An interval is (begin, end) with begin <= end; one without length counts as nothing.
"""

import bisect
import math
from collections.abc import Iterable, Sequence

Intervals = Sequence[tuple[float, float]]
"""Sorted and disjoint, as `union` leaves them."""


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The time in any of the intervals; overlaps count once."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted((begin, end) for begin, end in intervals if begin < end):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
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
    begins, ends = [begin for begin, _ in other], [end for _, end in other]
    return intersection(one, list(zip([-math.inf, *ends], [*begins, math.inf], strict=True)))


def covered(intervals: Intervals, other: Intervals) -> list[float]:
    """For each interval, how much of it `other` covers."""
    begins, lengths = [begin for begin, _ in intervals], [0.0] * len(intervals)
    for begin, end in intersection(intervals, other):
        lengths[bisect.bisect_right(begins, begin) - 1] += end - begin
    return lengths


def length(intervals: Intervals) -> float:
    """Total length."""
    return math.fsum(end - begin for begin, end in intervals)
