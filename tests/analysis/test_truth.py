"""The verdicts against simulated matrices whose truth is known: a small version of `benchmarks/gate_truth.py`.

Limits are the promised ones, widened where so few cells leave more chance than that: seeds are fixed.
"""

import dataclasses
import functools

import factories
import gate_truth
import msgspec
import numpy as np
import pytest
from gate_truth import Judgement

from tcbench.analysis import compare, welch
from tcbench.analysis.verdict import Rule

MATRICES = 20
COMPARISONS = {
    "5 trials": Judgement(gate_truth.FIVE),
    "5 even trials": Judgement(gate_truth.FIVE, machine=gate_truth.EVEN),
    "8 even trials": Judgement(gate_truth.EIGHT, machine=gate_truth.EVEN),
    "gate": Judgement(gate_truth.GATE, compare.IN_TURNS),
    "gate, drifting": Judgement(gate_truth.GATE, compare.IN_TURNS, gate_truth.DRIFTING),
}


@functools.cache
def truth(name: str, loss: float) -> gate_truth.Truth:
    return gate_truth.measure(COMPARISONS[name], loss, MATRICES)


def test_the_simulation_is_the_one_that_is_asked_for():
    random, cells = np.random.default_rng(0), range(50)
    times_s = gate_truth.step_times_s(random, cells, 8)
    assert times_s.shape == (50, 8, 200)
    # Steps that one real trial left: what a cell's trials have in common are its values, one factor a trial aside.
    first = times_s[7, 0] / times_s[7, 0].min()
    kept = gate_truth.real_trials()[7]
    assert len(np.unique(first.round(9))) <= len(kept)
    assert gate_truth.slower(random, times_s, 0.05).mean() == pytest.approx(times_s.mean() / 0.95)
    stalled = gate_truth.slower(random, times_s, 0.0, stalls=True)
    assert times_s.mean() / stalled.mean() == pytest.approx(1 - gate_truth.STALLS, rel=0.01)
    assert (stalled > times_s).mean() == pytest.approx(0.1)
    assert np.median(stalled, axis=-1).mean() == pytest.approx(np.median(times_s, axis=-1).mean(), rel=0.01)


def test_trials_of_each_machine_differ_as_it_says():
    random, cells = np.random.default_rng(0), range(40)
    even = np.log(gate_truth.step_times_s(random, cells, 50, gate_truth.EVEN).mean(axis=-1)).std(axis=1, ddof=1)
    assert even.mean() == pytest.approx(0.01, rel=0.05)
    mixed = np.log(gate_truth.step_times_s(random, cells, 50, gate_truth.MIXED).mean(axis=-1)).std(axis=1, ddof=1)
    assert mixed[:5].mean() < 0.02
    assert mixed[-5:].mean() == pytest.approx(0.045, rel=0.3)


def test_the_machine_with_accidents_is_the_one_that_is_asked_for():
    times_s = gate_truth.step_times_s(np.random.default_rng(0), range(400), 2, gate_truth.ACCIDENTS)
    spikes = times_s > 3 * gate_truth.STEP_TIME_S
    assert spikes.mean() == pytest.approx(0.005, rel=0.1)
    logs = np.log(np.where(spikes, times_s / 5, times_s))
    within = logs - logs.mean(axis=-1, keepdims=True)
    assert within.std() == pytest.approx(0.02, rel=0.02)
    lag_1 = (within[..., 1:] * within[..., :-1]).mean() / (within**2).mean()
    assert lag_1 == pytest.approx(0.5, abs=0.02)
    # The steps' own noise moves a trial's mean by 2% sqrt(3 / 200), the trial by 1%.
    assert logs.mean(axis=-1).std() == pytest.approx(0.0103, rel=0.06)


@pytest.mark.parametrize("name", COMPARISONS)
def test_nothing_changed_is_no_regression_and_passes(name):
    rates = truth(name, 0.0)
    assert rates.regression <= 0.002
    assert rates.passed >= 0.95


@pytest.mark.parametrize(
    ("name", "least"),
    [("5 trials", 0.85), ("5 even trials", 0.92), ("8 even trials", 0.98), ("gate", 0.91), ("gate, drifting", 0.9)],
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


@pytest.mark.parametrize("machine", [gate_truth.NOISY, gate_truth.MIXED])
@pytest.mark.parametrize("interims", [gate_truth.FIVE, gate_truth.EIGHT])
def test_where_trials_differ_by_more_than_the_threshold_a_matrix_that_did_not_change_is_not_red(interims, machine):
    rates = gate_truth.measure(Judgement(interims, machine=machine), 0.0, MATRICES)
    assert rates.matrices_with_regression == 0
    assert rates.passed > 0.1
    if machine is gate_truth.NOISY:  # each cell for itself would call one in some hundred a regression
        alone = tuple(dataclasses.replace(interim, rule=Rule(change_level=1.0)) for interim in interims)
        assert gate_truth.measure(Judgement(alone, machine=machine), 0.0, MATRICES).matrices_with_regression > 0


@pytest.mark.parametrize("name", ["5 trials", "5 even trials", "8 even trials"])
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


def test_an_interval_over_steps_would_cover_far_too_little():
    """What the trial as unit is for: the same figures, with each trial's steps as the sample."""
    random = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        [times_s] = gate_truth.step_times_s(random, range(1), 5)
        error = times_s.std() / np.sqrt(times_s.size)
        held += abs(times_s.mean() - gate_truth.STEP_TIME_S) <= 1.96 * error
    assert held / 300 < 0.75


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
                record = factories.make_record(batch_size=2 + cell, trial=trial, run_id=side)
                # The first step of its only block does not count.
                yield msgspec.structs.replace(record, measurement=measurement)

    comparison = compare.compare(records("base"), records("current"))
    for number, cell in enumerate(comparison.cells):
        groups = [
            welch.Group.of([(2 + number) / np.mean(t[1:]) for t in steps[side][number]]) for side in ("current", "base")
        ]
        ratio = welch.log_ratio(*groups)
        assert cell.ratio.value == pytest.approx(ratio.value)
        assert (cell.ratio.low, cell.ratio.high) == pytest.approx((ratio.limit(0.025), ratio.limit(0.975)))
        assert cell.verdict == Rule().judge(ratio)
