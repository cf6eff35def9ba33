"""The loop of a gate with stand-ins of trials; tests/run/test_runner.py has real processes that step in turns."""

import contextlib
import dataclasses
from typing import ClassVar

import factories
import msgspec
import pytest

from tcbench.analysis.verdict import Rule, interims
from tcbench.commands.gate import turns
from tcbench.commands.gate.builds import Build
from tcbench.core import messages, store
from tcbench.core.store import Store
from tcbench.engine.accelerators.device import host_device
from tcbench.run import gate, plan, scenario
from tcbench.run.gate import BASE, CURRENT
from tcbench.run.launcher import Launcher
from tcbench.run.runner import Runner
from tcbench.run.worker_launch import Launch


class RecordingDisplay:
    """Keeps what a display is told."""

    def __init__(self):
        self.labels = []
        self.label = ""

    def begin(self, label, remaining, ahead):
        self.label = label

    def listen(self, *_):
        pass

    def finished(self, record):
        self.labels.append(f"{self.label}: {record.status}")


class StandIn(Runner):
    """Ends its trials as told."""

    ran: ClassVar[list[str]] = []
    timed: ClassVar[list[str]] = []
    """The sides that timed their candidates, and what had run before."""
    ends_beside: ClassVar[dict[str, str]] = {}

    def run(self, trials):
        ((planned, trial),) = trials
        if planned.cell.measure.max_warmup_steps == 1:
            StandIn.timed.append(f"{self.run_id}, {self.launch.variables[messages.SIDE]} after {StandIn.ran}")
            return
        StandIn.ran.append(f"{self.run_id} {trial}")
        yield factories.make_record(cell=planned.cell, trial=trial, run_id=self.run_id, images_per_s=50.0 + trial % 2)

    def in_turns(self, other, planned, trials):
        StandIn.ran.append(f"{self.run_id} {trials[0]} beside {other.run_id} {trials[1]}")
        for place, runner in enumerate((self, other)):
            facts = {"cell": planned.cell, "trial": trials[place], "run_id": runner.run_id}
            yield place, factories.make_record(status=StandIn.ends_beside.get(runner.run_id, "ok"), **facts)


@pytest.fixture
def host_plan(monkeypatch):
    monkeypatch.setattr(turns, "Runner", StandIn)
    monkeypatch.setattr(StandIn, "ran", [])
    monkeypatch.setattr(StandIn, "timed", [])
    monkeypatch.setattr(StandIn, "ends_beside", {})
    return plan.make(scenario.load("cpu"), plan.Selection(batch_sizes=(4,), configs=("fp32",)), host_device())


def measured(host_plan, folder, *, takes_turns=True, earlier=None):
    ready = tuple(Build(side, side, side, folder, Launch(takes_turns=takes_turns)) for side in (BASE, CURRENT))
    display = RecordingDisplay()
    with contextlib.ExitStack() as stack:
        stores = {side: stack.enter_context(Store(folder / f"{side}.jsonl")) for side in (BASE, CURRENT)}
        start = gate.start(len(host_plan.cells), interims([2], Rule()))
        ended = turns.measure(start, host_plan, ready, Launcher(), stores, display, earlier=earlier)
    return ended, display


def test_the_two_trials_of_a_round_are_there_at_once_and_each_side_is_first_in_turn(host_plan, tmp_path):
    ended, display = measured(host_plan, tmp_path)
    assert StandIn.ran == ["base 0 beside current 0", "current 1 beside base 1"]
    assert display.labels == [f"{side}, look 1/1: ok" for side in ("base", "current", "current", "base")]
    assert display.label == "base, look 1/1"
    assert [r.trial for r in ended.base] == [r.trial for r in ended.current] == [0, 1]


def test_both_sides_time_their_candidates_once_before_the_first_trial(host_plan, tmp_path, monkeypatch):
    measured(host_plan, tmp_path)
    assert StandIn.timed == ["base, base after []", "current, current after []"]
    StandIn.timed.clear()
    monkeypatch.setattr(turns, "DEFAULT_BACKEND", "another")
    measured(host_plan, tmp_path / "own step")
    assert StandIn.timed == []


@pytest.mark.parametrize("alone", ["a revision that cannot", "a device with a memory of its own", "many ranks"])
def test_elsewhere_trials_run_one_after_another(host_plan, tmp_path, monkeypatch, alone):
    if alone == "a device with a memory of its own":
        monkeypatch.setattr(turns, "runs_on_host", lambda cell: False)
    elif alone == "many ranks":
        selection = plan.Selection(batch_sizes=(4,), configs=("fp32",), ranks=(2,))
        host_plan = plan.make(scenario.load("cpu"), selection, host_device())
    measured(host_plan, tmp_path, takes_turns=alone != "a revision that cannot")
    assert StandIn.ran == ["base 0", "current 0", "current 1", "base 1"]


def test_a_trial_that_is_repeated_because_its_gpu_was_slowed_down_is_stored_twice_and_judged_by_the_last(
    host_plan, tmp_path, monkeypatch
):
    class Slowed(StandIn):
        def run(self, trials):
            for record in super().run(trials):
                if self.cooling_s and record.trial == 0:
                    yield msgspec.structs.replace(record, duration_s=777.0)
                yield record

    monkeypatch.setattr(turns, "Runner", Slowed)
    ended, _ = measured(host_plan, tmp_path, takes_turns=False)
    stored = [(record.trial, record.duration_s == 777.0) for record in store.read([tmp_path / "base.jsonl"]).records]
    assert stored == [(0, True), (0, False), (1, False)]
    assert [(record.trial, record.duration_s == 777.0) for record in ended.base] == [(0, False), (1, False)]


@pytest.mark.parametrize("ends", ["oom", "timeout", "failed", "crashed"])
def test_where_one_of_two_does_not_end_well_neither_counts_and_the_cell_goes_on_alone(host_plan, tmp_path, ends):
    StandIn.ends_beside = {"current": ends}
    ended, display = measured(host_plan, tmp_path)
    assert StandIn.ran == ["base 0 beside current 0", "base 0", "current 0", "current 1", "base 1"]
    assert [r.status for r in (*ended.base, *ended.current)] == ["ok"] * 4
    assert display.labels[0] == "base alone, look 1/1: ok"


def test_a_trial_whose_other_side_is_stored_runs_alone(host_plan, tmp_path):
    earlier = factories.make_record(cell=host_plan.cells[0].cell, trial=0, run_id="base")
    measured(host_plan, tmp_path, earlier={BASE: [earlier]})
    assert StandIn.ran == ["current 0", "current 1 beside base 1"]


def test_a_gates_trials_last_as_long_as_the_scenario_has_them_there(host_plan):
    (planned,) = turns.with_gate_timing(host_plan, longer=True).cells
    in_run, longer_s = host_plan.cells[0].cell.measure, host_plan.scenario.measure.gate_max_time_s
    assert planned.cell.measure.max_time_s == longer_s > in_run.max_time_s
    assert planned.cell.measure.block_steps == turns.TURN_STEPS < in_run.block_steps
    measure = msgspec.structs.replace(host_plan.scenario.measure, gate_max_time_s=None)
    as_in_a_run = dataclasses.replace(host_plan, scenario=dataclasses.replace(host_plan.scenario, measure=measure))
    assert (
        turns.with_gate_timing(as_in_a_run, longer=True).cells == turns.with_gate_timing(host_plan, longer=False).cells
    )
