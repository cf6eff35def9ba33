"""Sets of time do what sets do: checked against single milliseconds counted one by one."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tcbench.analysis import intervals

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def cells(spans: list[tuple[float, float]]) -> set[int]:
    return {i for begin, end in spans for i in range(int(begin), int(end))}


@given(pairs)
def test_a_union_covers_what_any_covers_once_and_in_order(some: list[tuple[int, int]]) -> None:
    merged = intervals.union(some)
    assert cells(merged) == cells(some)
    assert intervals.length(merged) == len(cells(some))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(merged))


@given(pairs, pairs)
def test_intersection_and_difference_part_a_set_in_two(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    a, b = intervals.union(first), intervals.union(second)
    both, rest = intervals.intersection(a, b), intervals.difference(a, b)
    assert cells(both) == cells(a) & cells(b)
    assert cells(rest) == cells(a) - cells(b)
    assert intervals.length(both) + intervals.length(rest) == intervals.length(a)
    assert intervals.covered(a, b) == [len(cells([span]) & cells(b)) for span in a]
