"""Sides that were measured in turns: paired where rounds waver, and right whether or not they go together."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcbench.analysis import rounds, welch

DRIFTING = [30.0, 50.0, 42.0, 35.0, 47.0, 39.0]
CURRENT = [x * f for x, f in zip(DRIFTING, [0.90, 0.91, 0.89, 0.90, 0.905, 0.895], strict=True)]
figures = st.lists(st.floats(1, 100), min_size=2, max_size=10)


def test_rounds_that_go_together_are_paired_as_the_t_test_of_scipy_pairs_them(stats):
    estimate = rounds.estimate(CURRENT, DRIFTING)
    assert estimate.by_round
    scipy_interval = stats.ttest_rel(np.log(CURRENT), np.log(DRIFTING)).confidence_interval(0.95)
    interval = estimate.ratio.interval()
    assert (interval.low, interval.high) == pytest.approx(
        (math.exp(scipy_interval.low), math.exp(scipy_interval.high)), rel=1e-12
    )
    assert interval.value == pytest.approx(0.9, rel=1e-3)


@pytest.mark.parametrize(
    ("base", "current"),
    [
        ([40.0, 40.4, 39.7, 40.2], [39.8, 40.1, 40.3, 40.0]),  # a machine that holds still
        (CURRENT[:5], DRIFTING),  # a side lost a trial: nobody knows of which round
    ],
)
def test_everything_else_is_welchs(base, current):
    estimate = rounds.estimate(base, current)
    assert not estimate.by_round
    assert estimate == welch.estimate(base, current)


@pytest.mark.parametrize(("deviation", "drift"), [(0.01, 0.15), (0.03, 0.03), (0.1, 0.15), (0.1, 0.0)])
def test_the_choice_does_not_spoil_the_interval(deviation, drift):
    """Whatever makes the rounds waver: the sides by themselves, the machine, or both."""
    random = np.random.default_rng(5)
    n, held = 4000, 0
    for _ in range(n):
        logs = deviation * random.standard_normal((2, 4)) + drift * random.standard_normal(4)
        held += rounds.estimate(*np.exp(logs).tolist()).ratio.interval().holds(1.0)
    # Welch's interval is wider than it must be where rounds drift too little to be paired.
    assert 0.94 <= held / n <= (0.96 if drift == 0.15 else 1.0)


@given(figures, st.data())
def test_exchanging_the_sides_inverts_the_ratio(base, data):
    other = data.draw(st.lists(st.floats(1, 100), min_size=len(base), max_size=len(base)))
    forth, back = rounds.estimate(base, other), rounds.estimate(other, base)
    assert forth.by_round == back.by_round
    for turned in (back, forth.inverse):
        assert turned.ratio.log == pytest.approx(-forth.ratio.log, abs=1e-12)
        assert turned.ratio.error == pytest.approx(forth.ratio.error, abs=1e-12)


def test_more_rounds_narrow_a_paired_ratio_as_more_rounds_would():
    estimate = rounds.estimate(CURRENT, DRIFTING)
    assert estimate.n == 6
    grown = estimate.with_more_trials(18)
    assert (grown.log, grown.degrees) == (estimate.ratio.log, 23)
    assert grown.error == pytest.approx(estimate.ratio.error / 2)


def test_a_difference_of_phases_is_paired_too(stats):
    base = [0.010, 0.018, 0.013, 0.011, 0.016, 0.014]
    current = [x + d for x, d in zip(base, [0.0010, 0.0011, 0.0009, 0.0010, 0.0011, 0.0009], strict=True)]
    difference = rounds.difference(current, base)
    scipy_interval = stats.ttest_rel(current, base).confidence_interval(0.95)
    assert (difference.low, difference.high) == pytest.approx((scipy_interval.low, scipy_interval.high))
    assert difference.value == pytest.approx(0.001)
    unpaired = welch.difference(current, base)
    assert unpaired.low < 0 < difference.low


@pytest.mark.parametrize("base", [[0.010, 0.01001, 0.0100, 0.00999], [0.0, 0.02, 0.01, 0.03]])
def test_phases_that_hold_still_or_take_no_time_are_not_paired(base):
    current = [x + 0.001 for x in base]
    unpaired = welch.difference(current, base)
    assert rounds.difference(current, base) == unpaired
