"""The gate's sequence of trials and its decisions, with a fake executor: no process runs here."""

import json
import math
import random
from collections.abc import Callable

import factories
import pytest
from gate_truth import IN_TURNS, Judgement, settle
from hypothesis import given, settings
from hypothesis import strategies as st

from tcbench.analysis.compare import METRICS, compare
from tcbench.analysis.verdict import Rule, interims
from tcbench.core import store
from tcbench.core.record import Record
from tcbench.run import gate, gate_file
from tcbench.run.gate import BASE, CURRENT, Gate, Trial

RULE = Rule()
CELLS = tuple(factories.make_cell(batch_size=n) for n in (1, 2))


def record(trial: Trial, rate: float = 40.0, status="ok", cells=CELLS, **changes) -> Record:
    """A trial whose every step takes the same time, at `rate` images/s."""
    cell = cells[trial.cell]
    measurement = factories.make_measurement([cell.batch_size / rate] * 12, **changes) if status == "ok" else None
    run_id = f"gate-{trial.side}"
    return factories.make_record(status=status, cell=cell, trial=trial.number, run_id=run_id, measurement=measurement)


def drive(state: Gate, execute: Callable[[Trial], Record], most: int = 1000):
    """The whole gate: its end, and every trial with its record, in order."""
    ran: list[tuple[Trial, Record]] = []
    while (ahead := state.certain()) and len(ran) < most:
        ran.append((ahead[0], execute(ahead[0])))
        state = state.with_record(*ran[-1])
    return state, ran


def verdict_words(state: Gate, ran, cells=CELLS, ended="the gate ended"):
    sides = {side: [r for t, r in ran if t.side == side] for side in (BASE, CURRENT)}
    return gate.comparison(state.verdicts(cells, ended), cells, sides[BASE], sides[CURRENT], state.interims[-1])


def order(ran) -> str:
    """`0b 0c 1b 1c ...`: cells and sides as they ran."""
    return " ".join(f"{trial.cell}{trial.side[0]}" for trial, _ in ran)


def wavering(rates: dict[str, float], spread: float, seed: int = 1) -> Callable[[Trial], Record]:
    draw = random.Random(seed)
    return lambda trial: record(trial, rates[trial.side] * math.exp(spread * draw.gauss(0, 1)))


def jumping(trial: Trial) -> float:
    """Rates that differ so much from trial to trial, and so little between the sides, that nothing can be said; those
    of a round have nothing to do with each other."""
    period = 2 if trial.side == BASE else 4
    return 50.0 if trial.number % period >= period // 2 else 30.0


# ------------------------------------------------------------------------------------------------------- the sequence


def test_sides_take_turns_and_the_first_goes_second_in_the_next_round():
    _, ran = drive(gate.start(2, interims((3,))), record)
    assert order(ran) == "0b 0c 1b 1c  0c 0b 1c 1b  0b 0c 1b 1c".replace("  ", " ")
    assert [trial.number for trial, _ in ran] == [0] * 4 + [1] * 4 + [2] * 4


def test_after_the_first_look_the_likeliest_to_be_decided_come_first_with_all_their_trials():
    def execute(trial: Trial) -> Record:
        wavers = math.exp(0.1 * (-1) ** (trial.number + (trial.side == BASE)))
        return record(trial, 40 * wavers * (1 if trial.side == BASE else (0.97, 1.03)[trial.cell]))

    _, ran = drive(gate.start(2, interims((2, 4))), execute)
    assert order(ran[8:]) == "1b 1c 1c 1b 0b 0c 0c 0b"
    # A gate that was interrupted goes on with what it has, in whatever order that ran.
    reversed_records = [record for trial, record in reversed(ran) if trial.cell == 0 or trial.number < 2]
    stored = {side: [r for r in reversed_records if r.run_id.endswith(side)] for side in (BASE, CURRENT)}
    replayed = gate.replay(gate.start(2, interims((2, 4))), CELLS, stored)
    assert order((trial, None) for trial in replayed.certain()) == "1b 1c 1c 1b"


def test_what_is_decided_stops_and_only_the_inconclusive_goes_on():
    # The first cell never wavers, the second does to the end.
    state, ran = drive(gate.start(2, interims()), lambda trial: record(trial, jumping(trial) if trial.cell else 40))
    of_cells = [[trial for trial, _ in ran if trial.cell == cell] for cell in (0, 1)]
    assert [len(trials) for trials in of_cells] == [6, 16]
    assert [trial.interim for trial in of_cells[1]] == [0] * 6 + [1] * 2 + [2] * 4 + [3] * 4
    assert [cell.verdict for cell in verdict_words(state, ran).cells] == ["pass", "inconclusive"]
    assert verdict_words(state, ran).inconclusive


def test_a_gate_tells_which_trials_are_certain():
    state = gate.start(2, interims((3, 5)))
    assert len(state.certain()) == 12
    state, _ = drive(state, wavering({BASE: 40, CURRENT: 40}, 0.2), most=12)
    assert len(state.certain()) == 8


@pytest.mark.parametrize(("timed", "verdict"), [(True, "regression"), (False, "inconclusive")])
def test_a_loss_in_one_phase_is_found_where_the_whole_stays_open(timed, verdict):
    def slower(trial: Trial) -> Record:
        sign = (-1) ** (trial.number + (trial.side == BASE))
        wavers, update_s = 1 + 0.035 * sign, 0.02 + 1e-5 * trial.number + 0.006 * (trial.side == CURRENT)
        phases = {"forward": 0.03 * wavers, "backward": 0.05 * wavers, "update": update_s}
        trial_record = record(trial, 40)
        steps_s = (sum(phases.values()),) * len(trial_record.measurement.step_times_s)
        times = factories.make_phases(phases) if timed else ()
        return factories.remeasured(trial_record, step_times_s=steps_s, phases=times)

    state, ran = drive(gate.start(1, interims()), slower)
    (cell,) = verdict_words(state, ran, CELLS[:1]).cells
    assert (cell.verdict, cell.culprit and cell.culprit.name) == (verdict, "update" if timed else None)
    assert not timed or cell.culprit.slower_by.holds(0.06)


def test_a_machine_that_drifts_is_told_apart_from_a_change_by_its_rounds():
    """Rounds differ by tens of percents, which both sides share; the change is the same 10% in each of them."""

    def execute(trial: Trial) -> Record:
        round_, wavers = 40 * (1 + 0.3 * math.sin(2 * trial.number)), 1 + 0.002 * math.cos(5 * trial.number)
        return record(trial, round_ * (1 if trial.side == BASE else 0.9 * wavers))

    state, ran = drive(gate.start(1, interims()), execute)
    assert len(ran) < 16
    (cell,) = verdict_words(state, ran, CELLS[:1]).cells
    assert (cell.verdict, cell.by_round) == ("regression", True)
    assert cell.ratio.value == pytest.approx(0.9, rel=0.01)
    assert cell.ratio.high < 0.97
    separate = compare(*([r for trial, r in ran if trial.side == side] for side in (BASE, CURRENT)))
    assert [cell.verdict for cell in separate.cells] == ["inconclusive"]


# ------------------------------------------------------------------------------- decisions are those of the simulation

rates = st.floats(30, 50)


@st.composite
def many_rates(draw):
    """Figures of two sides about two rates, in a form that shrinks: as far apart and as wavering as any."""
    base, current, spread = draw(rates), draw(rates), draw(st.sampled_from([0.0, 0.003, 0.01, 0.03]))
    noise = st.floats(-2, 2).map(lambda x: math.exp(spread * x))
    side = lambda rate: [rate * draw(noise) for _ in range(8)]  # noqa: E731
    return side(base), side(current if draw(st.booleans()) else base)


@pytest.mark.slow
@given(
    st.lists(many_rates(), min_size=1, max_size=10), st.sampled_from([(3, 4, 6, 8), (2, 8), (5,), (2, 3, 4)]), st.data()
)
@settings(max_examples=150, deadline=None)
def test_it_decides_exactly_as_the_simulation_of_gates_does(figures, trials, data):
    metric = data.draw(st.sampled_from(["throughput", "memory"]))
    of_gate = interims(trials, RULE)
    cells = [factories.make_cell(batch_size=n + 1) for n in range(len(figures))]

    def execute(trial: Trial) -> Record:
        rate = figures[trial.cell][trial.side == CURRENT][trial.number]
        return record(trial, rate, cells=cells, peak_memory_bytes=round(2**30 / rate))

    state, ran = drive(gate.start(len(cells), of_gate, (metric,)), execute)
    compared = verdict_words(state, ran, cells)
    figures_of = []
    for place in range(len(figures)):
        sides = [[execute(Trial(side, place, n, 0)) for n in range(8)] for side in (CURRENT, BASE)]
        side_figures = [[METRICS[metric].read(trial_record) for trial_record in side] for side in sides]
        figures_of.append(tuple([1 / f for f in side] if metric == "memory" else side for side in side_figures))
    settled = settle(figures_of, Judgement(of_gate, IN_TURNS))
    for place, pair in enumerate(figures):
        decision, look = settled[place] or ("inconclusive", -1)
        assert compared.cells[place].verdict == decision, pair
        assert [len([t for t, _ in ran if t.cell == place and t.side == side]) for side in (BASE, CURRENT)] == [
            of_gate[look].trials
        ] * 2


def test_each_metric_is_judged_at_the_look_that_decides_it():
    """Throughput wavers to the end; memory is decided at the first look by its trials and level alone."""

    def execute(trial: Trial) -> Record:
        grown = 2**30 if trial.side == BASE or trial.number > 2 else 2**30 * 1.2  # what comes later would hide it
        return record(trial, jumping(trial), peak_memory_bytes=round(grown + trial.number))

    state, ran = drive(gate.start(2, interims(), ("throughput", "memory")), execute)
    assert len(ran) == 32
    compared = verdict_words(state, ran)
    assert [(c.cell.batch_size, c.metric.name, c.verdict) for c in compared.cells] == [
        (1, "throughput", "inconclusive"),
        (1, "memory", "regression"),
        (2, "throughput", "inconclusive"),
        (2, "memory", "regression"),
    ]
    assert compared.cells[1].current.trials == 3
    assert [mean.metric.name for mean in compared.means] == ["throughput", "memory"]


def test_a_metric_that_no_record_tells_asks_for_no_trials():
    state, ran = drive(gate.start(1, interims(), ("throughput", "energy")), record)
    assert len(ran) == 6
    assert [cell.verdict for cell in verdict_words(state, ran, CELLS[:1]).cells] == ["pass", "not measured"]


# ----------------------------------------------------------------------------------------------- trials without figures


def failing(fails: Callable[[Trial], str | None]) -> Callable[[Trial], Record]:
    return lambda trial: record(trial, status=fails(trial) or "ok")


@pytest.mark.parametrize("status", ["oom", "failed", "skipped"])
def test_an_answer_without_a_figure_ends_its_cell_after_a_trial_of_the_other_side(status):
    for failed, other in ((CURRENT, BASE), (BASE, CURRENT)):
        execute = failing(lambda t, failed=failed: status if t.cell == 0 and t.side == failed else None)
        state, ran = drive(gate.start(2, interims((3,))), execute)
        assert sorted(t.side for t, _ in ran if t.cell == 0) == sorted((failed, other))
        cell = verdict_words(state, ran).cells[0]
        assert (cell.verdict, cell.failing) == ("changed status", failed == CURRENT)


def test_both_sides_without_an_answer_are_told_as_such():
    state, ran = drive(gate.start(2, interims((3,))), failing(lambda t: "oom" if t.cell == 0 else None))
    assert order(ran).startswith("0b 0c 1b 1c 1c 1b")
    assert [cell.verdict for cell in verdict_words(state, ran).cells] == ["not measured", "pass"]


@pytest.mark.parametrize("status", ["crashed", "timeout"])
def test_an_accident_is_tried_once_more(status):
    execute = failing(lambda t: status if t == Trial(CURRENT, 0, 1, 0) else None)
    state, ran = drive(gate.start(1, interims()), execute)
    assert order(ran) == "0b 0c 0c 0c 0b 0b 0c"
    assert [t.number for t, _ in ran if t.side == CURRENT] == [0, 1, 2, 3]
    (cell,) = verdict_words(state, ran, CELLS[:1]).cells
    assert cell.verdict == "pass"
    assert any(f"trial 2 {status}" in note for note in cell.current.notes)


@pytest.mark.parametrize("side", [BASE, CURRENT])
def test_two_accidents_end_a_cell_whatever_its_other_trials_say(side):
    execute = failing(lambda t: "crashed" if t.side == side and t.number in (2, 3) else None)
    state, ran = drive(gate.start(1, interims((4,))), execute)
    (cell,) = verdict_words(state, ran, CELLS[:1]).cells
    if side == CURRENT:
        assert (cell.verdict, cell.failing) == ("changed status", True)
        assert cell.why.startswith("2 of 4 trials crashed")
    else:
        assert (cell.verdict, cell.why) == ("inconclusive", "base gave up after 2 ok trials: crashed")
    assert not state.certain()
    assert gate.summary(state.verdicts(CELLS[:1])) == ""


def test_accidents_alone_are_a_changed_status():
    state, ran = drive(gate.start(1, interims()), failing(lambda t: "crashed" if t.side == CURRENT else None))
    assert order(ran) == "0b 0c 0c"
    (cell,) = verdict_words(state, ran, CELLS[:1]).cells
    assert (cell.verdict, cell.failing) == ("changed status", True)


# ------------------------------------------------------------------------------------------------------ ended before


@pytest.mark.parametrize("rate", [20.0, 40.0, 60.0])
def test_what_was_not_decided_in_time_stays_inconclusive_whatever_its_figures_say(rate):
    execute = wavering({BASE: 40, CURRENT: rate}, 0.001)
    state, ran = drive(gate.start(2, interims()), execute, most=11)
    compared = verdict_words(state.ended(), ran, ended="the budget was spent")
    assert compared.cells[0].verdict != "inconclusive"
    assert (compared.cells[1].verdict, compared.cells[1].failing) == ("inconclusive", False)
    assert compared.cells[1].why == "the budget was spent before look 1 of 4 (3 trials a side)"


def test_a_cell_that_was_not_reached_is_inconclusive_too():
    for most in (0, 1, 3):
        state, ran = drive(gate.start(2, interims()), record, most=most)
        compared = verdict_words(state, ran, ended="the budget was spent")
        assert [cell.verdict for cell in compared.cells] == ["inconclusive"] * 2
        assert not compared.failing
        assert compared.inconclusive
        assert compared.paired == 2


def test_between_looks_the_last_look_taken_speaks():
    execute = wavering({BASE: 40, CURRENT: 39.5}, 0.05)
    state, ran = drive(gate.start(1, interims()), execute, most=7)
    (cell,) = verdict_words(state, ran, CELLS[:1], "the budget was spent").cells
    assert (cell.verdict, cell.base.trials_ok, cell.current.trials_ok) == ("inconclusive", 3, 3)
    assert cell.why == "the budget was spent before look 2 of 4 (4 trials a side)"


@pytest.mark.parametrize("most", [7, 15, 27, 1000])
def test_a_file_of_version_1_gives_the_comparison_of_its_gate(tmp_path, most):
    """One cell is decided by memory alone, one ends when current crashes twice, and one when base does."""
    cells = tuple(factories.make_cell(batch_size=n) for n in (1, 2, 3))
    question = gate_file.GateQuestion(
        base="a",
        current="b",
        scenario="cpu",
        cells=cells,
        metrics=("throughput", "memory", "energy"),
        threshold=0.03,
        trials=(3, 4, 6, 8),
    )

    def execute(trial: Trial) -> Record:
        crashes = trial.number in (3, 4) and (trial.cell, trial.side) in ((1, CURRENT), (2, BASE))
        grown = 2**30 + 2**28 * (trial.side == CURRENT and trial.number < 3)
        return record(trial, jumping(trial), "crashed" if crashes else "ok", cells, peak_memory_bytes=grown)

    state, ran = drive(gate.start(3, question.interims, question.metrics), execute, most)
    gate_content = gate_file.GateFile(question=question, names=("a", "b"), gone=(factories.make_cell(batch_size=9),))
    base, current = ([trial_record for trial, trial_record in ran if trial.side == side] for side in (BASE, CURRENT))
    content = gate_file.judged(gate_content, state.ended(), "spent")
    compared = gate_file.comparison(content, base, current)
    path = tmp_path / "gate-20300101-120000-verdicts.json"
    gate_file.write(path, gate_file.shown(content, compared.cells))
    assert gate_file.comparison(gate_file.read(path), base, current) == compared
    first = json.loads(path.read_text()) | {"schema_version": 1, "ended": "the budget was spent"}
    for verdict in first["verdicts"]:
        del verdict["trials"]
    first["judged"] = [
        {
            "decisions": [decision and [decision[0], question.trials[decision[1]]] for decision in cell.decisions],
            "interims": cell.interims_taken,
        }
        for cell in state.ended().cells
    ]
    path.write_text(json.dumps(first))
    assert gate_file.comparison(gate_file.read(path), base, current) == compared


def test_a_trial_that_a_gate_repeated_counts_once_by_its_last_record(tmp_path):
    path = tmp_path / "gate-20300101-120000-verdicts.json"
    base = gate_file.record_files(path)[BASE]
    with store.Store(base) as stored:
        for trial, duration_s in ((0, 1.0), (1, 1.0), (1, 2.0)):
            stored.append(factories.make_record(trial=trial, duration_s=duration_s))
    stored_now = gate_file.stored_trials(path)
    assert [(record.trial, record.duration_s) for record in stored_now[BASE]] == [(0, 1.0), (1, 2.0)]
    assert stored_now[CURRENT] == ()
