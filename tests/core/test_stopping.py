import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcbench.core.stopping import (
    StoppingRule,
    WarmUpRule,
    effective_size,
    relative_half_width,
    sample_size,
    t_quantile_975,
)


@pytest.mark.parametrize(
    ("least", "times", "over", "settled"),
    [
        (3, [], False, False),
        (3, [1.0, 1.0], False, False),
        (3, [1.0, 1.0, 1.0], True, True),
        (3, [9.0, 1.0, 1.0], False, False),
        (3, [9.0, 1.0, 1.0, 1.05], True, True),
        (3, [1.0, 2.0] * 5, True, False),
        (5, [1.0] * 4, False, False),
        # Where two steps are enough the last two have to agree.
        (2, [3.0, 1.0], False, False),  # the first, which is cold
        (2, [3.0, 1.0, 1.05], True, True),
        (2, [3.0, 1.0, 1.5], False, False),
        (1, [], False, False),
        (1, [3.0], True, True),
    ],
)
def test_warm_up_ends_when_steps_have_settled_or_the_cap_is_reached(least, times, over, settled):
    rule = WarmUpRule(min_steps=least, max_steps=10)
    assert (rule.is_over(times), rule.has_settled(times)) == (over, settled)


def test_warm_up_waits_for_its_least_steps_though_its_time_is_spent():
    assert not WarmUpRule(min_steps=3, max_steps=3, max_time_s=0.0).is_over([1.0] * 2)


def test_a_quiet_cell_stops_at_the_target_and_a_noisy_one_at_its_budget():
    rule = StoppingRule(target=0.02, max_time_s=60.0, min_steps=10)
    quiet = [1.0, 1.001] * 5
    noisy = [1.0, 2.0, 2.0, 1.0, 1.5] * 2
    assert rule.decide(quiet[:9], 99.0) == "continue"
    assert rule.decide(quiet, 10.0) == "target"
    assert rule.decide(noisy, 10.0) == "continue"
    assert rule.decide(noisy, 60.0) == "budget"


def test_two_stages_give_a_mean_the_interval_that_was_asked_for():
    draw = random.Random(1)
    held = []
    for _ in range(300):
        first = [draw.gauss(10.0, 1.0) for _ in range(5)]
        values = first + [draw.gauss(10.0, 1.0) for _ in range(sample_size(first, 0.5) - 5)]
        held.append(abs(sum(values) / len(values) - 10.0) <= 0.5)
    assert 0.92 <= sum(held) / len(held) <= 0.98
    assert sample_size([1.0], 0.1) == 1
    assert sample_size([1.0] * 4, 0.1) == 4


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 7, 10, 30, 100, 10_000])
def test_the_t_quantile_agrees_with_scipys(stats, degrees):
    assert t_quantile_975(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=2e-3)


@given(st.floats(1, 500))
def test_the_t_quantile_is_never_below_the_true_one_by_more_than_a_fifth_of_a_percent(stats, degrees):
    assert t_quantile_975(degrees) >= 0.998 * stats.t.ppf(0.975, degrees)


def test_the_half_width_of_independent_steps_is_students(stats):
    draw = random.Random(1)
    values = [draw.gauss(10, 1) for _ in range(200)]
    low, high = stats.t.interval(0.95, 199, loc=sum(values) / 200, scale=stats.sem(values))
    # The sample's own lag-1 correlation is small but not zero.
    assert relative_half_width(values) == pytest.approx((high - low) / 2 / (sum(values) / 200), rel=0.15)


def test_correlated_steps_count_for_less():
    draw = random.Random(2)
    value, values = 0.0, []
    for _ in range(4000):
        value = 0.5 * value + draw.gauss(0, 1)
        values.append(100 + value)
    assert effective_size(values) == pytest.approx(4000 / 3, rel=0.15)


@given(st.lists(st.floats(0.001, 1e3), min_size=2, max_size=50))
def test_the_effective_size_lies_between_two_and_all(values):
    assert 2 <= effective_size(values) <= len(values)
    assert relative_half_width(values) >= 0
    assert relative_half_width(values[:1]) == math.inf  # one value says nothing
