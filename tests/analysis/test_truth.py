"""The verdicts against simulated matrices whose truth is known: a small version of `benchmarks/gate_truth.py`.

Limits are the promised ones, widened where so few cells leave more chance than that: seeds are fixed.
"""

import dataclasses
import functools

import factories
import gate_truth
import numpy as np
import pytest
from gate_truth import Judgement

from tcbench.analysis import compare, welch
from tcbench.analysis.verdict import Rule

pytestmark = pytest.mark.long

MATRICES = 20
COMPARISONS = {
    "5 trials": Judgement(gate_truth.FIVE),
    "8 even trials": Judgement(gate_truth.EIGHT, machine=gate_truth.EVEN),
    "gate": Judgement(gate_truth.GATE, gate_truth.IN_TURNS),
    "gate, drifting": Judgement(gate_truth.GATE, gate_truth.IN_TURNS, gate_truth.DRIFTING),
}


@functools.cache
def truth(name: str, loss: float) -> gate_truth.Truth:
    return gate_truth.measure(COMPARISONS[name], loss, MATRICES)


@pytest.mark.parametrize("name", COMPARISONS)
def test_nothing_changed_is_no_regression_and_passes(name):
    rates = truth(name, 0.0)
    assert rates.regression <= 0.002
    assert rates.passed >= 0.95


@pytest.mark.parametrize(
    ("name", "least"), [("5 trials", 0.85), ("8 even trials", 0.98), ("gate", 0.91), ("gate, drifting", 0.9)]
)
def test_a_loss_of_5_percent_is_found(name, least):
    rates = truth(name, 0.05)
    assert rates.regression >= least - 0.02
    assert rates.passed <= 0.002


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_loss_of_just_the_threshold_is_rarely_called_a_regression(name):
    assert truth(name, 0.03).regression <= 0.07


@pytest.mark.parametrize("loss", gate_truth.LOSSES)
@pytest.mark.parametrize("name", COMPARISONS)
def test_the_interval_holds_the_truth_as_often_as_it_says(name, loss):
    error = np.sqrt(0.95 * 0.05 / (MATRICES * gate_truth.CELLS))
    assert 0.93 - error <= truth(name, loss).coverage <= 0.97 + error


@pytest.mark.parametrize(
    ("interims", "machine"), [(gate_truth.FIVE, gate_truth.NOISY), (gate_truth.EIGHT, gate_truth.MIXED)]
)
def test_where_trials_differ_by_more_than_the_threshold_a_matrix_that_did_not_change_is_not_red(interims, machine):
    rates = gate_truth.measure(Judgement(interims, machine=machine), 0.0, MATRICES)
    assert rates.matrices_with_regression == 0
    assert rates.passed > 0.1
    if machine is gate_truth.NOISY:  # each cell for itself would call one in some hundred a regression
        alone = tuple(dataclasses.replace(interim, rule=Rule(change_level=1.0)) for interim in interims)
        assert gate_truth.measure(Judgement(alone, machine=machine), 0.0, MATRICES).matrices_with_regression > 0


@pytest.mark.parametrize("name", ["5 trials", "8 even trials"])
def test_the_power_that_is_told_is_the_share_that_is_found(name):
    assert truth(name, 0.0).power == pytest.approx(truth(name, 0.05).regression, abs=0.025)


def test_a_gate_needs_fewer_trials_than_its_last_look():
    assert truth("gate", 0.0).trials < 5
    assert truth("gate", 0.03).trials > 7


def test_stalls_that_a_median_step_would_hide_are_found():
    truth = gate_truth.measure(COMPARISONS["5 trials"], 0.0, MATRICES // 4, stalls=True)
    assert truth.regression >= 0.93
    assert truth.passed <= 0.01


def test_accidents_raise_no_alarm_and_leave_more_undecided():
    rates = gate_truth.measure(Judgement(gate_truth.FIVE, machine=gate_truth.ACCIDENTS), 0.0, MATRICES)
    assert rates.matrices_with_regression <= 0.05
    assert 0.5 < rates.passed < 0.85


def test_compare_judges_records_as_the_simulation_judges_figures():
    random = np.random.default_rng(7)
    steps = {
        side: gate_truth.slower(random, gate_truth.step_times_s(random, range(6), 5), loss)
        for side, loss in (("base", 0.0), ("current", 0.04))
    }

    def records(side: str):
        for cell, trials_s in enumerate(steps[side]):
            for trial, times_s in enumerate(trials_s):
                measurement = factories.make_measurement(times_s.tolist(), block_steps=1000)
                # The first step of its only block does not count.
                yield factories.make_record(batch_size=2 + cell, trial=trial, run_id=side, measurement=measurement)

    comparison = compare.compare(records("base"), records("current"))
    for number, cell in enumerate(comparison.cells):
        groups = [
            welch.SampleStats.from_figures([(2 + number) / np.mean(t[1:]) for t in steps[side][number]])
            for side in ("current", "base")
        ]
        ratio = welch.log_ratio(*groups)
        assert cell.ratio.value == pytest.approx(ratio.value)
        assert (cell.ratio.low, cell.ratio.high) == pytest.approx((ratio.limit(0.025), ratio.limit(0.975)))
        assert cell.verdict == Rule().judge(ratio)
