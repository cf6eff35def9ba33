"""Intervals: what they hold, how often, and what bends them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcbench.analysis import stats
from tcbench.analysis.stats import Interval

TIMES = st.lists(st.floats(1e-4, 10.0), min_size=2, max_size=40)


def ar1(rng: np.random.Generator, n: int, r: float, relative_sd: float) -> list[float]:
    """Step times about 1 s whose neighbours are correlated by r."""
    shocks = rng.normal(0, relative_sd * math.sqrt(1 - r * r), n)
    level = rng.normal(0, relative_sd)
    values = []
    for shock in shocks:
        level = r * level + shock
        values.append(1 + level)
    return values


@given(TIMES)
def test_an_interval_over_steps_holds_its_mean_and_stays_positive(times_s: list[float]) -> None:
    interval = stats.mean_of_steps(times_s)
    assert 0 <= interval.low <= interval.value <= interval.high
    assert interval.value == pytest.approx(sum(times_s) / len(times_s))


@given(st.lists(TIMES, min_size=2, max_size=6))
def test_an_interval_over_trials_holds_total_time_over_total_steps(trials_s: list[list[float]]) -> None:
    interval = stats.mean_of_trials(trials_s)
    assert 0 <= interval.low <= interval.value <= interval.high
    assert interval.value == pytest.approx(sum(map(sum, trials_s)) / sum(map(len, trials_s)))


def test_a_single_step_has_no_upper_limit() -> None:
    assert stats.mean_of_steps([0.5]) == Interval(0.5, 0.0, math.inf)
    assert stats.throughput(stats.mean_of_steps([0.5]), 8) == Interval(16.0, 0.0, math.inf)


def test_what_cannot_have_an_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="no steps"):
        stats.mean_of_steps([])
    with pytest.raises(ValueError, match="at least two"):
        stats.mean_of_trials([[1.0, 1.0]])
    with pytest.raises(ValueError, match="without a step"):
        stats.mean_of_trials([[1.0], []])


def test_throughput_is_images_over_total_time_and_not_a_mean_of_rates() -> None:
    times_s = [0.1, 0.1, 0.1, 0.7]
    images_per_s = stats.throughput(stats.mean_of_steps(times_s), 10).value
    assert images_per_s == pytest.approx(40 / 1.0)
    assert images_per_s != pytest.approx(sum(10 / t for t in times_s) / 4, rel=0.1)


def test_the_interval_over_trials_is_student_t_on_logarithms() -> None:
    # Means e^-1, 1, e: s = 1 and t(0.975; 2) = 4.3027, so the factor is exp(4.3027 / sqrt(3)).
    interval = stats.mean_of_trials([[math.exp(-1)] * 3, [1.0] * 3, [math.e] * 3])
    assert interval.high / interval.value == pytest.approx(math.exp(4.302653 / math.sqrt(3)), rel=1e-4)
    assert interval.value / interval.low == pytest.approx(math.exp(4.302653 / math.sqrt(3)), rel=1e-4)


def test_correlated_steps_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    steps = ar1(rng, 400, 0.8, 0.05)
    shuffled = list(rng.permutation(steps))
    assert stats.mean_of_steps(steps).relative_half_width > 2 * stats.mean_of_steps(shuffled).relative_half_width


@pytest.mark.parametrize("r", [0.0, 0.5, 0.8])
def test_the_interval_over_steps_covers_the_truth_about_as_often_as_it_says(r: float) -> None:
    """Steps correlated by r (AR(1)); 95% asked for. Estimating r from 200 steps costs a little."""
    rng = np.random.default_rng(20181215)
    runs = 1000
    covered = sum(stats.mean_of_steps(ar1(rng, 200, r, 0.05)).holds(1.0) for _ in range(runs))
    assert 0.92 <= covered / runs <= 0.98


def test_the_interval_over_trials_covers_where_that_over_steps_would_not() -> None:
    """Five trials of 30 steps; each trial has a level of its own, as real processes do."""
    rng = np.random.default_rng(20181215)
    runs, over_trials, over_steps = 1000, 0, 0
    for _ in range(runs):
        levels = np.exp(rng.normal(0, 0.03, 5))
        trials_s = [[float(level) * t for t in ar1(rng, 30, 0.5, 0.02)] for level in levels]
        over_trials += stats.mean_step_time(trials_s).holds(1.0)
        over_steps += stats.mean_of_steps([t for trial in trials_s for t in trial]).holds(1.0)
    assert 0.93 <= over_trials / runs <= 0.97
    assert over_steps < over_trials


def test_the_interval_of_a_ratio_covers_the_true_ratio() -> None:
    rng = np.random.default_rng(7)
    runs, covered = 1000, 0
    for _ in range(runs):
        fast = stats.throughput(stats.mean_of_steps([0.5 * t for t in ar1(rng, 60, 0.3, 0.05)]), 8)
        slow = stats.throughput(stats.mean_of_steps(ar1(rng, 60, 0.3, 0.1)), 8)
        covered += stats.ratio(fast, slow).holds(2.0)
    assert 0.92 <= covered / runs <= 0.98


INTERVALS = st.tuples(st.floats(1e-3, 1e6), st.floats(0, 0.9), st.floats(0, 3)).map(
    lambda t: Interval(t[0], t[0] * (1 - t[1]), t[0] * (1 + t[2]))
)


@given(INTERVALS, INTERVALS)
def test_a_ratio_turned_over_has_its_limits_turned_over(a: Interval, b: Interval) -> None:
    there, back = stats.ratio(a, b), stats.ratio(b, a)
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high)
    assert there.high == pytest.approx(1 / back.low)


def test_a_ratio_with_an_unbounded_side_is_unbounded_on_that_side() -> None:
    assert stats.ratio(Interval(2, 0, math.inf), Interval(1, 1, 1)) == Interval(2, 0.0, math.inf)


def test_the_relative_half_width_is_half_the_width_over_the_value() -> None:
    assert Interval(10, 9, 12).relative_half_width == pytest.approx(0.15)
