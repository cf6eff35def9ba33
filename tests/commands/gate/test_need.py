"""How long an undecided gate still needs, and the command that continues."""

import factories
import msgspec

from tcbench.analysis.verdict import Rule, interims
from tcbench.commands.gate.need import Need, need_of, next_step
from tcbench.run import gate, gate_file
from tcbench.run.gate import BASE, CURRENT

CELLS = [factories.make_cell("fp32"), factories.make_cell("bf16")]


def after(*ratios_of_cells, trials=(3, 4, 6, 8)):
    """The state, the content and the records of a gate with these ratios of current to base, a list for each cell."""
    cells = CELLS[: len(ratios_of_cells)]
    sides = {side: [] for side in (BASE, CURRENT)}
    for cell, ratios in zip(cells, ratios_of_cells, strict=True):
        for side, rates in ((BASE, [1.0] * len(ratios)), (CURRENT, ratios)):
            sides[side] += [
                factories.make_record(cell=cell, trial=n, images_per_s=100 * rate, duration_s=5.0)
                for n, rate in enumerate(rates)
            ]
    state = gate.replay(gate.start(len(cells), interims(trials, Rule())), cells, sides)
    question = gate_file.GateQuestion(
        base="a",
        current="b",
        scenario="cpu",
        cells=tuple(cells),
        metrics=("throughput",),
        threshold=0.03,
        trials=trials,
    )
    return state, gate_file.GateFile(question=question, names=("a", "b")), sides[BASE], sides[CURRENT]


NOISY = [0.93, 0.99, 0.88]
NOISIER = [0.90, 1.01, 0.70]


def test_the_time_still_needed_is_that_of_the_trials_that_would_decide():
    need = need_of(*after(NOISY, NOISIER))
    assert (need.cells, need.undecided, need.decidable) == (2, 2, 2)
    assert 10 * need.more_trials < need.seconds < 20 * need.more_trials, "each cell has its own number of trials"
    assert need.trials == 3 + need.more_trials
    assert need.says.startswith(f"2 of 2 cells undecided; about {need.more_trials} more trials a side (")


def test_a_cell_on_the_threshold_is_not_said_to_need_trials():
    state, content, *sides = after([0.90, 1.04, 0.97])
    need = need_of(state, content, *sides)
    assert (need.undecided, need.decidable, next_step(need, content)) == (1, 0, None)
    assert need.says == "1 of 1 cell undecided: too noisy or too close to the threshold for any number of trials"


def test_a_decided_gate_needs_nothing():
    state, content, *sides = after([0.5, 0.51, 0.5])
    need = need_of(state, content, *sides)
    assert (need.undecided, next_step(need, content)) == (0, None)


def test_after_the_last_look_a_new_gate_has_as_many_trials_as_would_decide(monkeypatch):
    monkeypatch.setattr("sys.argv", ["tcbench", "gate", "--budget=1m", "--looks", "3,4", "--base", "HEAD", "--resume"])
    _, content, *_ = after([1.0], trials=(3, 4))
    numbers = {"more_trials": 9, "seconds": 90.0, "trials": 13, "planned_trials": 4}
    need = Need(cells=20, undecided=1, decidable=1, **numbers, round_s=200.0, undecided_round_s=10.0)
    assert need.says == (
        "1 of 20 cells undecided; about 9 more trials a side (1 min 30 s) would decide it, "
        "but the last look is after 4 trials"
    )
    step = next_step(need, content)
    assert step.words == ("gate", "--base", "HEAD", "--looks", "7,13")
    assert step.purpose == "a new gate with more trials: about 24 min 20 s"  # 7 rounds of all cells, 6 of one


def test_a_gate_without_budget_continues_where_it_stopped_with_what_it_decided(monkeypatch):
    """A cell is judged once at an incomplete look: it keeps its decision and is not judged again."""
    monkeypatch.setattr("sys.argv", ["tcbench", "gate", "--budget", "1m"])
    state, content, base, current = after([0.5, 0.51, 0.5], NOISY[:2])
    ended = state.ended()
    assert (state.looks_taken, ended.looks_taken) == (0, 1)
    content = gate_file.judged(content, ended, "the budget was spent")
    assert next_step(need_of(ended, content, base, current), content).words == ("gate", "--budget", "1m", "--resume")
    again = state.with_verdicts(content.verdicts)
    assert again.cells == ended.cells
    assert {trial.cell for trial in again.certain()} == {1}


def test_a_spent_gate_is_resumed_only_for_the_same_question_and_if_none_is_newer(tmp_path):
    _, content, *_ = after([1.0])
    question, other = content.question, msgspec.structs.replace(content.question, base="c")
    spent = msgspec.structs.replace(
        content, verdicts=(gate.GateVerdict("a", "throughput", "inconclusive"),), spent=True
    )
    ended = msgspec.structs.replace(spent, spent=msgspec.UNSET)
    files = [tmp_path / f"gate-20260101-00000{n}-verdicts.json" for n in range(3)]
    gate_file.write(files[0], spent)
    assert gate_file.unfinished(tmp_path, question) == files[0]
    gate_file.write(files[1], msgspec.structs.replace(spent, question=other))
    assert gate_file.unfinished(tmp_path, question) == files[0]
    gate_file.write(files[2], ended)
    assert gate_file.unfinished(tmp_path, question) is None
