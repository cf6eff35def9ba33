"""Welch's t on logarithms, against SciPy's and against what must hold of any ratio."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcbench.analysis import welch
from tcbench.analysis.welch import SampleStats

figures = st.lists(st.floats(0.01, 1e4), min_size=2, max_size=12)


def ratio(numerator, denominator):
    return welch.log_ratio(SampleStats.from_figures(numerator), SampleStats.from_figures(denominator))


@given(figures, figures)
def test_the_interval_is_scipys_on_logarithms(stats, current, base):
    logs = [[math.log(x) for x in side] for side in (current, base)]
    if min(max(side) - min(side) for side in logs) < 1e-6:  # SciPy warns of those
        return
    scipy_interval = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    interval = ratio(current, base).interval()
    assert math.log(interval.low) == pytest.approx(scipy_interval.low, rel=1e-6, abs=1e-9)
    assert math.log(interval.high) == pytest.approx(scipy_interval.high, rel=1e-6, abs=1e-9)


def test_a_one_sided_limit_at_95_percent_is_the_90_percent_intervals():
    estimate = ratio([1.0, 1.1, 0.95], [2.0, 2.2, 2.1])
    assert estimate.limit(0.95) == estimate.interval(0.9).high
    assert estimate.limit(0.05) < estimate.value < estimate.limit(0.95)


def test_without_any_variation_the_ratio_is_certain():
    interval = ratio([2.0, 2.0], [1.0, 1.0, 1.0]).interval()
    assert (interval.low, interval.value, interval.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("wrong", [[1.0], [], [1.0, 0.0], [1.0, -1.0], [1.0, math.inf], [1.0, math.nan]])
def test_figures_that_make_no_group_are_refused(wrong):
    with pytest.raises(ValueError, match=r"two trials|positive and finite"):
        SampleStats.from_figures(wrong)


def test_the_geometric_mean_of_ratios_is_surer_than_each():
    draw = random.Random(0)
    ratios = [ratio(*([math.exp(draw.gauss(0, 0.01)) for _ in range(5)] for _ in range(2))) for _ in range(16)]
    mean = welch.geometric_mean(ratios)
    assert mean.log == pytest.approx(sum(r.log for r in ratios) / 16)
    assert mean.error == pytest.approx(math.sqrt(sum(r.error**2 for r in ratios)) / 16)
    assert mean.degrees > max(r.degrees for r in ratios)
    with pytest.raises(ValueError, match="mean"):
        welch.geometric_mean([])


def test_a_difference_is_in_the_figures_own_unit():
    difference = welch.difference([0.011, 0.012, 0.013], [0.010, 0.010, 0.010])
    assert difference.value == pytest.approx(0.002)
    assert difference.low < 0 < difference.high
    # 4.303 is Student's t at two degrees of freedom.
    assert difference.high - difference.value == pytest.approx(4.303 * 0.001 / math.sqrt(3), rel=1e-3)
