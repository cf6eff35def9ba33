"""The figure of a trial, an interval's width, and how often intervals over steps and over trials hold the truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcbench.analysis import stats, welch
from tcbench.analysis.stats import Interval, stall_s
from tcbench.analysis.welch import SampleStats
from tcbench.core.stopping import relative_half_width

TIMES = st.lists(st.floats(1e-4, 10.0), min_size=2, max_size=40)


def throughput(*trials_s: list[float], batch_size: int = 1) -> Interval:
    return welch.throughput(batch_size, trials_s).geometric_mean.interval()


def ar1(rng: np.random.Generator, n: int, r: float, relative_sd: float) -> list[float]:
    """Step times about 1 s whose neighbours are correlated by r."""
    shocks = rng.normal(0, relative_sd * math.sqrt(1 - r * r), n)
    level = rng.normal(0, relative_sd)
    values = []
    for shock in shocks:
        level = r * level + shock
        values.append(1 + level)
    return values


@given(st.lists(TIMES, min_size=1, max_size=6))
def test_an_interval_holds_the_geometric_mean_of_the_trials_throughput(trials_s: list[list[float]]) -> None:
    interval = throughput(*trials_s, batch_size=8)
    assert 0 <= interval.low <= interval.value <= interval.high
    rates = [8 * len(times_s) / sum(times_s) for times_s in trials_s]
    assert interval.value == pytest.approx(math.prod(rates) ** (1 / len(rates)))


def test_of_a_single_step_no_limit_is_known() -> None:
    assert throughput([0.5], batch_size=8) == Interval(pytest.approx(16.0), 0.0, math.inf)


def test_what_has_no_figure_is_refused() -> None:
    with pytest.raises(ValueError, match="no steps"):
        throughput([])
    with pytest.raises(ValueError, match="no steps"):
        throughput([1.0], [])
    with pytest.raises(ValueError, match="at least two"):
        throughput()


def test_throughput_is_images_over_total_time_and_not_a_mean_of_rates() -> None:
    times_s = [0.1, 0.1, 0.1, 0.7]
    assert stats.images_per_s(10, times_s) == pytest.approx(40 / 1.0)
    assert stats.images_per_s(10, times_s) != pytest.approx(sum(10 / t for t in times_s) / 4, rel=0.1)


def test_the_interval_over_trials_is_student_t_on_logarithms() -> None:
    # Means e^-1, 1, e: s = 1 and t(0.975; 2) = 4.3027, so the factor is exp(4.3027 / sqrt(3)).
    interval = throughput([math.exp(-1)] * 3, [1.0] * 3, [math.e] * 3)
    assert interval.high / interval.value == pytest.approx(math.exp(4.302653 / math.sqrt(3)), rel=1e-4)
    assert interval.value / interval.low == pytest.approx(math.exp(4.302653 / math.sqrt(3)), rel=1e-4)


def test_the_interval_over_steps_is_as_wide_as_the_stopping_rule_says() -> None:
    times_s = ar1(np.random.default_rng(2), 100, 0.5, 0.05)
    assert throughput(times_s).relative_half_width == pytest.approx(relative_half_width(times_s), rel=0.01)


@pytest.mark.parametrize("r", [0.0, 0.5, 0.8])
def test_the_interval_over_steps_covers_the_truth_about_as_often_as_it_says(r: float) -> None:
    """Steps correlated by r (AR(1)); 95% asked for. Estimating r from 200 steps costs a little."""
    rng = np.random.default_rng(20181215)
    runs = 1000
    covered = sum(throughput(ar1(rng, 200, r, 0.05)).holds(1.0) for _ in range(runs))
    assert 0.92 <= covered / runs <= 0.98


def test_a_ratio_with_a_side_of_one_step_has_no_limits() -> None:
    steady = SampleStats.from_steps(2.0, [0.5] * 10)
    assert welch.log_ratio(steady, SampleStats.from_steps(1.0, [1.0])).interval() == Interval(2.0, 0.0, math.inf)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], 3.0),
        ([1.0, 3.0], 2.0),
        ([9.0, 1.0, 2.0], 2.0),
        ([1.0, 2.0, 3.0, 90.0], 2.5),
        ([*map(float, range(20)), 100.0, -100.0], 9.5),
        ([*[1.0] * 22, 5.0, 5.0, 5.0], 1 + 4 / 21),
    ],
)
def test_a_typical_value_leaves_out_a_tenth_at_each_end_and_at_least_one(values, expected) -> None:
    assert stats.typical(values) == pytest.approx(expected)


def test_a_step_far_beyond_the_others_is_a_stall():
    steps_s = [0.01] * 104
    assert stall_s([*steps_s, 5.01]) == 5.01
    assert stall_s([*steps_s, 0.15]) is None, "a hiccup that costs the trial little"
    assert stall_s([0.1, 0.1, 0.4] * 20) is None
    assert stall_s([0.01] * 3 + [5.0]) is None, "too few steps to tell what is usual"
    assert stall_s([]) is None
