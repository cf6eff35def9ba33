"""How long an undecided gate still needs, and the command that goes on."""

import factories
import pytest

from tcbench.analysis.verdict import Rule, interims
from tcbench.commands.gate.outlook import Outlook, next_step, outlook
from tcbench.run import gate, gate_file
from tcbench.run.gate import BASE, CURRENT

CELL = factories.make_cell()


def after(ratios, trials=(3, 4, 6, 8)):
    """The state, the content and the records of a gate of one cell with these ratios of current to base."""
    sides = {
        side: [
            factories.make_record(cell=CELL, trial=n, images_per_s=100 * rate, duration_s=5.0)
            for n, rate in enumerate(rates)
        ]
        for side, rates in ((BASE, [1.0] * len(ratios)), (CURRENT, ratios))
    }
    state = gate.replay(gate.start(1, interims(trials, Rule())), [CELL], sides)
    question = gate_file.GateQuestion(
        base="a",
        current="b",
        scenario="cpu",
        cells=(CELL,),
        metrics=("throughput",),
        threshold=0.03,
        trials=trials,
    )
    return state, gate_file.GateFile(question=question, names=("a", "b")), sides[BASE], sides[CURRENT]


def test_the_time_still_needed_is_that_of_the_trials_that_would_decide():
    state, content, base, current = after([0.93, 0.99, 0.88])
    ahead = outlook(state, content, base, current)
    assert (state.looks_taken, ahead.undecided, ahead.near) == (1, 1, 0)
    assert ahead.more_trials > 0 and ahead.seconds == pytest.approx(ahead.more_trials * 10.0)
    assert ahead.trials == 3 + ahead.more_trials
    assert ahead.says.startswith(f"1 undecided cell of 1: about {ahead.more_trials} more trials a side, ")


def test_a_cell_on_the_threshold_is_not_said_to_need_trials():
    state, content, base, current = after([0.90, 1.04, 0.97])
    ahead = outlook(state, content, base, current)
    assert (ahead.near, ahead.more_trials, next_step(ahead, content)) == (1, 0, None)
    assert ahead.says == "1 undecided cell of 1; for it no number of trials would decide"


def test_a_decided_gate_needs_nothing():
    state, content, base, current = after([0.5, 0.51, 0.5])
    ahead = outlook(state, content, base, current)
    assert (ahead.undecided, next_step(ahead, content)) == (0, None)


def test_after_the_last_look_a_new_gate_has_as_many_trials_as_would_decide(monkeypatch):
    monkeypatch.setattr("sys.argv", ["tcbench", "gate", "--looks", "3,4", "--base", "HEAD", "--resume"])
    _, content, *_ = after([1.0], trials=(3, 4))
    ahead = Outlook(cells=2, undecided=1, near=0, more_trials=9, seconds=90.0, trials=13, planned_trials=4)
    step = next_step(ahead, content)
    assert step.words == ("gate", "--base", "HEAD", "--looks", "7,13")
    assert step.purpose == "a new gate with more trials: up to 2 min 10 s"
