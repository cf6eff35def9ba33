"""Sets of time as sorted, disjoint intervals: union, intersection, difference, length. Pure functions of numbers. An
interval is (begin, end) with begin <= end; an interval of length 0 is dropped."""

import bisect
import math
from collections.abc import Iterable, Sequence

Intervals = Sequence[tuple[float, float]]
"""Sorted, disjoint intervals, such as `union` returns."""


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the time that lies in any of the intervals; overlaps count once."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted((begin, end) for begin, end in intervals if begin < end):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def intersection(first: Intervals, second: Intervals) -> list[tuple[float, float]]:
    """Return the time that lies in both sets."""
    shared, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            shared.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return shared


def difference(first: Intervals, second: Intervals) -> list[tuple[float, float]]:
    """Return the time that lies in `first` and not in `second`."""
    begins, ends = [begin for begin, _ in second], [end for _, end in second]
    return intersection(first, list(zip([-math.inf, *ends], [*begins, math.inf], strict=True)))


def covered(intervals: Intervals, cover: Intervals) -> list[float]:
    """Return, for each interval, the length of its overlap with `cover`."""
    begins, lengths = [begin for begin, _ in intervals], [0.0] * len(intervals)
    for begin, end in intersection(intervals, cover):
        lengths[bisect.bisect_right(begins, begin) - 1] += end - begin
    return lengths


def length(intervals: Intervals) -> float:
    """Return the total length of the intervals."""
    return math.fsum(end - begin for begin, end in intervals)
