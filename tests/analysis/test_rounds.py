"""Sides that were measured in turns: paired where rounds go together, never where they do not."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tcbench.analysis import rounds, welch
from tcbench.analysis.welch import Paired, Unpaired

DRIFTING = [30.0, 50.0, 42.0, 35.0, 47.0, 39.0]
CURRENT = [x * f for x, f in zip(DRIFTING, [0.90, 0.91, 0.89, 0.90, 0.905, 0.895], strict=True)]
figures = st.lists(st.floats(1, 100), min_size=2, max_size=10)


def test_rounds_that_go_together_are_paired_as_the_t_test_of_scipy_pairs_them():
    found = rounds.estimate(CURRENT, DRIFTING)
    assert isinstance(found, Paired)
    theirs = stats.ttest_rel(np.log(CURRENT), np.log(DRIFTING)).confidence_interval(0.95)
    interval = found.ratio.interval()
    assert (interval.low, interval.high) == pytest.approx((math.exp(theirs.low), math.exp(theirs.high)), rel=1e-12)
    assert interval.value == pytest.approx(0.9, rel=1e-3)


def test_pairing_takes_the_drift_out_of_the_interval():
    apart = welch.estimate(CURRENT, DRIFTING).ratio.interval()
    paired = rounds.estimate(CURRENT, DRIFTING).ratio.interval()
    assert apart.holds(1.0) and not paired.holds(0.97)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (DRIFTING, DRIFTING[1:] + DRIFTING[:1]),  # the rounds of one side exchanged
        (CURRENT[:3], DRIFTING[:3]),  # too few to know
        (CURRENT[:5], DRIFTING),  # a side lost a trial: nobody knows which round
        ([40.0] * 6, DRIFTING),  # one side does not waver
        ([1 / x for x in CURRENT], DRIFTING),  # against each other
    ],
)
def test_everything_else_is_welchs(one, other):
    found = rounds.estimate(one, other)
    assert isinstance(found, Unpaired)
    assert found == welch.estimate(one, other)


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), min_size=4, max_size=12))
def test_together_is_the_one_sided_test_of_pearsons_correlation(pairs):
    one, other = map(list, zip(*pairs, strict=True))
    if max(one) - min(one) < 1e-3 or max(other) - min(other) < 1e-3:
        return
    theirs = stats.pearsonr(one, other, alternative="greater")
    if abs(theirs.pvalue - rounds.LEVEL) > 1e-6:
        assert rounds.together(one, other) == (theirs.pvalue < rounds.LEVEL)


def test_rounds_that_have_nothing_in_common_are_seldom_believed_to():
    random = np.random.default_rng(3)
    believed = sum(rounds.together(*random.standard_normal((2, 6)).tolist()) for _ in range(20_000))
    assert believed / 20_000 == pytest.approx(rounds.LEVEL, rel=0.35)


@given(figures, st.data())
def test_exchanging_the_sides_inverts_the_ratio(one, data):
    other = data.draw(st.lists(st.floats(1, 100), min_size=len(one), max_size=len(one)))
    forth, back = rounds.estimate(one, other), rounds.estimate(other, one)
    assert type(forth) is type(back)
    for found in (back, forth.inverse):
        assert found.ratio.log == pytest.approx(-forth.ratio.log, abs=1e-12)
        assert found.ratio.error == pytest.approx(forth.ratio.error, abs=1e-12)


def test_more_rounds_narrow_a_paired_ratio_as_more_rounds_would():
    found = rounds.estimate(CURRENT, DRIFTING)
    assert found.n == 6
    grown = found.grown(18)
    assert (grown.log, grown.degrees) == (found.ratio.log, 23)
    assert grown.error == pytest.approx(found.ratio.error / 2)


def test_a_difference_of_phases_is_paired_too():
    base = [0.010, 0.018, 0.013, 0.011, 0.016, 0.014]
    current = [x + d for x, d in zip(base, [0.0010, 0.0011, 0.0009, 0.0010, 0.0011, 0.0009], strict=True)]
    found = rounds.difference(current, base)
    theirs = stats.ttest_rel(current, base).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    assert found.value == pytest.approx(0.001)
    apart = welch.difference(welch.Group.plain(current), welch.Group.plain(base))
    assert apart.low < 0 < found.low
    assert rounds.difference(current[::-1], base) == welch.difference(
        welch.Group.plain(current[::-1]), welch.Group.plain(base)
    )
