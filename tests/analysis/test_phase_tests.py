"""Whether a phase got slower: what is sure of it beside the other phases, and what another phase undoes."""

import numpy as np
import pytest

from tcbench.analysis import phase_tests
from tcbench.analysis.phase_tests import NONE, PhaseTrials
from tcbench.analysis.verdict import Rule

STEP_S = {"io": 0.001, "forward": 0.029, "backward": 0.05, "update": 0.02}
RULE = Rule().among(12)


def matrix(grown_s, cells=12, trials=5, by_round=False, seed=3):
    """Cells whose trials differ by 4%, their phases by 0.4% more, and rounds by 10%; one takes `grown_s` longer."""
    random = np.random.default_rng(seed)

    def side(grown_s, rounds):
        common = rounds + 0.04 * random.standard_normal(trials)
        return {
            name: list(time_s * (1 + common + 0.004 * random.standard_normal(trials)) + grown_s.get(name, 0.0))
            for name, time_s in STEP_S.items()
        }

    rounds = [0.1 * random.standard_normal(trials) * by_round for _ in range(cells)]
    grown = [grown_s, *[{}] * (cells - 1)]
    return [PhaseTrials(0.1, side({}, r), side(g, r), by_round) for r, g in zip(rounds, grown, strict=True)]


def decisions(judged):
    return [{name: phase.decision for name, phase in phases.items() if phase.decision} for phases in judged]


@pytest.mark.parametrize("by_round", [False, True])
@pytest.mark.parametrize(
    ("grown_s", "expected"),
    [
        ({"forward": 0.005}, {"forward": "slower"}),
        ({"backward": 0.005}, {"backward": "slower"}),
        ({"update": 0.005}, {"update": "slower"}),
        ({"update": 0.002}, {}),  # less than the threshold
        ({"backward": 0.006, "update": -0.006}, {"backward": "moved", "update": "faster"}),
        ({"update": -0.006}, {}),  # beside it the others seem to have grown
        ({name: 0.05 * time_s for name, time_s in STEP_S.items()}, {}),  # all of them alike: the whole tells it
    ],
)
def test_a_loss_is_found_in_its_phase_and_nowhere_else(grown_s, expected, by_round):
    cells = matrix(grown_s, by_round=by_round)
    judged = phase_tests.judge(cells, RULE)
    assert decisions(judged) == [expected] + [{}] * (len(cells) - 1)
    [lost] = [name for name, decision in expected.items() if decision == "slower"] or [None]
    assert phase_tests.lost(judged[0]) == lost
    if lost:
        assert judged[0][lost].slower_by.holds(grown_s[lost] / 0.1)
        assert judged[0][lost].slower_by.relative_half_width < 0.15
        assert judged[0][lost].unadjusted.by_round == by_round


def test_few_trials_do_not_tell_what_phases_have_in_common():
    few, enough = (phase_tests.judge(matrix({"backward": 0.005}, cells), RULE)[0]["backward"] for cells in (1, 3))
    assert (few.adjusted, few.decision) == (few.unadjusted, None)
    assert (enough.adjusted.ratio.error < enough.unadjusted.ratio.error / 3, enough.decision) == (True, "slower")


@pytest.mark.parametrize(("name", "grown_s", "decision"), [("backward", 0.00333, "slower"), ("io", 0.0031, None)])
def test_long_phases_have_more_of_the_level(name, grown_s, decision):
    """The second phase would be slower with equal shares of the level, and the first would not."""
    assert phase_tests.judge(matrix({name: grown_s}), RULE)[0][name].decision == decision


def io_of(cells, io_s):
    """The same, with these seconds of io on each side."""
    return [
        PhaseTrials(0.1, *({**side, "io": list(s)} for side, s in zip((cell.base, cell.current), io_s(), strict=True)))
        for cell in cells
    ]


def test_a_phase_that_varies_by_itself_does_not_hide_what_the_others_have_in_common():
    random = np.random.default_rng(1)
    cells = io_of(matrix({}), lambda: 0.02 * (1 + 0.3 * random.standard_normal((2, 5))))
    judged = phase_tests.judge(cells, RULE)[0]["backward"]
    assert judged.adjusted.ratio.error < judged.unadjusted.ratio.error / 5


def test_what_one_cell_has_alone_counts_no_more_for_it():
    random = np.random.default_rng(1)
    noise = 0.01 * (1 + 0.3 * random.standard_normal((2, 5)))
    cells = matrix({"backward": 0.005})
    cells[0] = PhaseTrials(0.1, {**cells[0].base, "own": noise[0]}, {**cells[0].current, "own": noise[1]})
    assert phase_tests.judge(cells, RULE)[0]["backward"].adjusted.ratio.error < 0.004


def test_a_small_phase_that_changed_by_itself_says_little_of_the_others():
    """io takes twice as long: 1% of the step."""
    judged = phase_tests.judge(matrix({"backward": 0.008, "io": 0.001}), RULE)
    assert decisions(judged)[0]["backward"] == "slower"


@pytest.mark.parametrize("by_round", [False, True])
def test_a_trial_that_lacks_a_phase_takes_none_of_the_others_away(by_round):
    cells = matrix({"update": 0.005}, by_round=by_round)
    shorter = {name: times_s[:4] if name == "io" else times_s for name, times_s in cells[1].base.items()}
    cells[1] = PhaseTrials(0.1, shorter, cells[1].current, by_round)
    assert decisions(phase_tests.judge(cells, RULE))[:2] == [{"update": "slower"}, {}]


@pytest.mark.parametrize("current_s", [[0.0] * 5, [0.0, 0.0, 0.006, 0.006, 0.006]])
def test_a_phase_that_took_no_time_tells_nothing_of_the_others(current_s):
    judged = phase_tests.judge(io_of(matrix({"update": 0.005}), lambda: ([0.0] * 5, current_s)), RULE)
    assert judged[0]["update"].decision == "slower"
    assert judged[0]["update"].adjusted.ratio.error < judged[0]["update"].unadjusted.ratio.error / 3
    assert judged[1]["io"].decision is None


def test_a_phase_that_took_no_time_may_get_slower():
    grown = io_of(matrix({})[:1], lambda: ([0.0] * 5, [0.1, 0.101, 0.102, 0.1, 0.103]))
    assert decisions(phase_tests.judge([*grown, *matrix({})[1:]], RULE))[0] == {"io": "slower"}


def test_cells_whose_loss_is_sure_leave_the_level_to_the_rest():
    """Whatever two phases have in common is the whole step: the sum that must be slower varies as much."""

    def of_two(cell):
        return PhaseTrials(
            0.1, *({name: side[name] for name in ("forward", "backward")} for side in (cell.base, cell.current))
        )

    grown_s = {"forward": 0.011}
    lone = [*map(of_two, matrix(grown_s, seed=4))]
    many = [lone[0], *(of_two(matrix(grown_s, 1, seed=seed)[0]) for seed in range(100, 111))]
    assert [phase_tests.judge(cells, RULE)[0]["forward"].decision for cells in (lone, many)] == ["unsettled", "slower"]


def test_power_counts_what_would_be_taken_for_moved():
    sure = matrix({})
    assert phase_tests.power(sure, phase_tests.judge(sure, RULE), RULE) > 0.9
    # One phase shares nothing with the others, and may undo what any of them loses.
    random = np.random.default_rng(1)
    wild = io_of(sure, lambda: 0.02 + 0.0005 * random.standard_normal((2, 5)))
    judged = phase_tests.judge(wild, RULE)
    assert phase_tests.power(wild, judged, RULE) == pytest.approx(0.51, abs=0.02)
    assert phase_tests.power([NONE], [{}], RULE) is None
    idle = [PhaseTrials(0.1, *2 * [{"io": [0.0] * 5, "update": [0.0] * 5}])]
    assert phase_tests.power(idle, phase_tests.judge(idle, RULE), RULE) == 1
