"""Numbers are short, and a cell without one says why."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcbench.show.charts.wording import number


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (2e-6, "2.00µ"),
        (0.0123, "0.0123"),
        (4.561, "4.56"),
        (78.94, "78.9"),
        (1234.4, "1234"),
        (9.999, "10.0"),
        (9999.6, "10.0k"),
        (12345, "12.3k"),
        (4.56e6, "4.56M"),
    ],
)
def test_numbers_have_three_digits(value: float, said: str) -> None:
    assert number(value) == said


@given(st.floats(1e-9, 1e12))
def test_a_number_is_short_and_near_the_value(value: float) -> None:
    said = number(value)
    factor = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9}.get(said[-1], 1.0)
    assert len(said) <= 6
    assert math.isclose(float(said.rstrip("nµmkMG")) * factor, value, rel_tol=0.006)
