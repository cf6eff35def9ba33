"""Verdicts from ratios: each limit decides as it says, and looks split one level."""

import math

import numpy as np
import pytest
from gate_truth import IN_TURNS, Judgement, settle
from hypothesis import given
from hypothesis import strategies as st

from tcbench.analysis import verdict
from tcbench.analysis.verdict import Rule
from tcbench.analysis.welch import Estimate, LogRatio, SampleStats, log_ratio


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.9, "regression"), (0.969, "regression"), (0.971, "pass"), (1.0, "pass"), (1.0305, "pass"), (1.032, "improved")],
)
def test_a_ratio_that_is_certain_is_judged_by_the_threshold(ratio, expected):
    assert Rule().judge(LogRatio(math.log(ratio), 1e-9, 10.0)) == expected


@pytest.mark.parametrize(("ratio", "error"), [(0.97, 0.01), (0.95, 0.03), (1.0, 0.03)])
def test_what_is_neither_surely_slower_nor_surely_not_is_inconclusive(ratio, error):
    assert Rule().judge(LogRatio(math.log(ratio), error, 8)) == "inconclusive"


def test_the_test_is_one_sided_at_its_level():
    """Student's t at 8 degrees: 1.860 at 5%, 2.306 at 2.5%."""
    just = LogRatio(math.log(0.97) - 1.861 * 0.01, 0.01, 8)
    assert Rule().judge(just) == "regression"
    assert Rule(level=0.025).judge(just) == "inconclusive"
    assert Rule().judge(LogRatio(math.log(0.97) - 1.859 * 0.01, 0.01, 8)) == "inconclusive"


@given(st.floats(-0.5, 0.5), st.floats(1e-3, 0.2), st.floats(1, 50), st.sampled_from([Rule(), Rule(level=0.0025)]))
def test_where_the_usual_interval_seems_to_decide_the_one_that_does_not_is_told(log, error, degrees, rule):
    ratio, rule = LogRatio(log, error, degrees), rule.among(20)
    held_back, usual, worst = rule.held_back(ratio), ratio.interval(), 1 - rule.threshold
    seems = usual.high < worst or usual.low > worst
    assert (held_back is not None) == (seems and rule.judge(ratio) == "inconclusive")
    if held_back is not None:
        boundary = 1.0 if held_back.no_change else worst
        assert held_back.interval.low <= boundary <= held_back.interval.high
        assert held_back.confidence > 0.95


def test_that_it_may_not_have_changed_at_all_is_told():
    held_back = Rule().among(10).held_back(LogRatio(math.log(0.647), 0.14, 6))
    assert held_back.no_change and held_back.confidence == pytest.approx(0.999)
    assert held_back.interval.high > 1


@given(st.floats(-0.2, 0.2), st.floats(1e-6, 0.1), st.floats(1, 50))
def test_exchanging_the_sides_exchanges_regression_and_improvement(log, error, degrees):
    forth, back = Rule().judge(LogRatio(log, error, degrees)), Rule().judge(LogRatio(-log, error, degrees))
    assert (forth == "regression") == (back == "improved")


@given(st.floats(-0.1, 0.1), st.floats(1e-3, 0.05), st.integers(2, 8))
def test_so_many_more_trials_would_decide_and_one_fewer_would_not(log, deviation, n):
    current, base = SampleStats(n, log, deviation**2), SampleStats(n, 0.0, deviation**2)
    rule = Rule()
    if rule.judge(log_ratio(current, base)) != "inconclusive":
        return
    more = rule.more_trials(Estimate(current, base))

    def judged(m: int) -> str:
        return rule.judge(log_ratio(*(SampleStats(n + m, g.mean, g.variance) for g in (current, base))))

    if more is None:
        assert judged(verdict.MOST_TRIALS - n) == "inconclusive"
    else:
        assert judged(more) != "inconclusive"
        assert judged(more - 1) == "inconclusive"


def test_a_loss_of_the_threshold_itself_is_never_decided():
    group = SampleStats(5, 0.0, 1e-4)
    assert Rule().more_trials(Estimate(SampleStats(5, math.log(0.97), 1e-4), group)) is None


@pytest.mark.parametrize("trials", [(8,), (5, 8), (3, 5, 8), (3, 4, 6, 8)])
def test_interim_judgements_spend_the_whole_level_and_no_more(trials):
    interims = verdict.interims(trials, Rule(0.05, 0.1))
    assert math.fsum(interim.rule.level for interim in interims) == pytest.approx(0.1)
    assert {interim.rule.threshold for interim in interims} == {0.05}
    assert tuple(interim.trials for interim in interims) == trials


@pytest.mark.parametrize("trials", [(), (1, 2), (3, 3), (4, 3), (2, 3, 4, 5, 6)])
def test_interim_judgements_that_are_none_are_refused(trials):
    with pytest.raises(ValueError, match="expected"):
        verdict.interims(trials)


def test_a_look_sees_its_own_trials_only():
    """Later trials of a side must not reach an earlier look, or the level is no longer split as stated."""
    base, current = [100.0, 100.1, 99.9, *[1.0] * 5], [80.0, 80.1, 79.9, *[1000.0] * 5]
    assert settle([(current, base)], Judgement(verdict.interims(), IN_TURNS)) == [("regression", 0)]


def test_the_level_of_a_change_is_held_over_all_cells():
    """Student's t at 8 degrees: 3.355 at 0.5%, 6.442 at 0.01%."""
    seen = LogRatio(-0.3, 0.06, 8)
    assert Rule().judge(seen) == "regression"
    assert Rule().among(50).judge(seen) == "inconclusive"
    assert Rule().among(50).judge(LogRatio(-0.3, 0.046, 8)) == "regression"
    assert Rule().among(50).judge(LogRatio(0.3, 0.06, 8)) == "pass"


def test_the_power_is_the_share_of_slower_cells_that_are_found():
    random, error, degrees = np.random.default_rng(0), 0.006, 8
    rule = Rule().among(40)
    logs = math.log(1 - rule.slowdown) + error * random.standard_normal(4000)
    errors = error * np.sqrt(random.chisquare(degrees, 4000) / degrees)
    regressions = [rule.judge(LogRatio(log, e, degrees)) == "regression" for log, e in zip(logs, errors, strict=True)]
    assert rule.power(LogRatio(0.0, error, degrees)) == pytest.approx(np.mean(regressions), abs=0.02)
    assert rule.power(LogRatio(0.0, 0.0, 8)) == 1.0
    assert rule.power(LogRatio(0.0, math.inf, 1)) == 0.0
    assert Rule(threshold=0.06).slowdown == pytest.approx(0.1)
    assert 0 < Rule(threshold=0.9).power(LogRatio(0.0, 0.5, 8)) < 1
