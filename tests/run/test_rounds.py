import dataclasses
import random
from collections import Counter

import factories
import msgspec
import pytest

from tcbench.core.packages import Package
from tcbench.core.record import Input, KfacSettings, PhaseTimes, Record, TrainSettings
from tcbench.engine.accelerators.device import Device
from tcbench.run import plan, scenario
from tcbench.run.plan import Plan, PlannedCell, Selection
from tcbench.run.rounds import Rounds, differences, in_order, runs_again_alone, start, turn_group

CPU = Device("cpu", "A Processor", 2**34)
V100 = Device("cuda:0", "V100", 2**34, (7, 0))


def make_plan(configs=("fp32", "fp32+dali", "fp16"), sizes=(4,), **selection: float) -> Plan:
    return plan.make(scenario.load("cpu"), Selection(configs=configs, batch_sizes=sizes, **selection), CPU)


def run(state: Rounds, costs_s: dict[str, float], spread: float = 0.0, status: str = "ok") -> list[Record]:
    """The records of a run to its end whose trials take so long, by config; fp16's end as `status` says."""
    draw, records = random.Random(1), []
    while ahead := next(state.ahead(), None):
        planned, trial = ahead
        duration_s = costs_s[planned.cell.config] * (1 + spread * draw.uniform(-1, 1))
        ends = "skipped" if planned.skip_reason else status if planned.cell.config == "fp16" else "ok"
        records.append(factories.make_record(cell=planned.cell, trial=trial, duration_s=duration_s, status=ends))
        state = state.with_record(records[-1])
    return records


def order(records: list[Record]) -> list[tuple[str, int]]:
    return [(record.cell.config, record.trial) for record in records]


COSTS_S = {"fp32": 10.0, "fp32+dali": 10.0, "fp16": 10.0}


def test_trials_of_different_cells_are_interleaved():
    records = run(start(make_plan(("fp32", "fp16"), trials=2)), COSTS_S)
    assert order(records) == [("fp32", 0), ("fp16", 0), ("fp32", 1), ("fp16", 1)]


def test_a_skipped_cell_has_one_record_whatever_the_number_of_trials(monkeypatch):
    monkeypatch.setattr(Package, "is_installed", lambda package: package.module != "nvidia.dali")
    records = run(start(make_plan(("fp32", "fp32+dali"), trials=3)), COSTS_S)
    assert order(records) == [("fp32", 0), ("fp32+dali", 0), ("fp32", 1), ("fp32", 2)]


@pytest.mark.parametrize(
    ("budget", "status", "ran"),
    [
        ({"budget_s": 105.0}, "ok", (4, 3, 3)),  # until it is spent and never beyond
        ({"budget_s": 1.0}, "ok", (1, 1, 1)),  # the first round is completed whatever it takes
        ({"budget_s": 1000.0, "trials": 2}, "ok", (2, 2, 2)),  # whichever comes first
        ({"budget_s": 40.0, "trials": 2}, "ok", (2, 1, 1)),
        # No time is spent again on what did not run.
        *(({"budget_s": 100.0}, status, (5, 4, 1)) for status in ("oom", "failed", "timeout")),
    ],
)
def test_rounds_go_on_until_the_budget_is_spent_and_never_beyond(budget, status, ran):
    records = run(start(make_plan(**budget)), COSTS_S, status=status)
    assert Counter(record.cell.config for record in records) == dict(zip(COSTS_S, ran, strict=True))


@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize("budget_s", [30.0, 77.0, 240.0])
def test_the_cells_numbers_of_trials_differ_by_one_at_most(spread, budget_s):
    costs_s = {"fp32": 3.0, "fp32+dali": 9.0, "fp16": 17.0}
    records = run(start(make_plan(budget_s=budget_s)), costs_s, spread)
    trials = Counter(record.cell.config for record in records).values()
    assert max(trials) - min(trials) <= 1
    spent_s = sum(record.duration_s for record in records)
    assert spent_s < max(budget_s + 17.0 * spread, 29.0 * (1 + spread))
    if budget_s == 240:
        assert spent_s > budget_s - 17 * 1.3


def test_a_run_that_is_resumed_has_the_time_that_is_left():
    planned = make_plan(budget_s=100.0)
    uninterrupted = run(start(planned), COSTS_S)
    rest = run(start(planned, uninterrupted[:4]), COSTS_S)
    assert order(uninterrupted[:4] + rest) == order(uninterrupted)
    assert run(start(planned, uninterrupted), COSTS_S) == []


def test_a_run_that_is_resumed_runs_again_what_failed():
    before = [
        factories.make_record(cell=planned_cell.cell, status="crashed" if planned_cell.cell.config == "fp16" else "ok")
        for planned_cell in make_plan(trials=1).cells
    ]
    assert order(run(start(make_plan(trials=1), before), COSTS_S)) == [("fp16", 0)]


def test_the_time_ahead_is_that_of_the_trials_to_come():
    state = start(make_plan(budget_s=100.0))
    for record in run(state, COSTS_S)[:3]:
        state = state.with_record(record)
    assert state.ahead_s() == pytest.approx(70.0)


def test_a_round_begins_with_the_ends_of_the_ladders_at_the_standard_batch_sizes():
    cells = plan.make(scenario.load("naruse2018"), Selection(), V100, remote=True).cells
    best = "+dali+batched+nhwc+fused+static_graph"
    ends = ["fp32", "fp16", f"fp16{best}", f"fp32{best}"]
    first = [(planned.cell.batch_size, planned.cell.config) for planned in in_order(cells)]
    assert first[:8] == [(256, config) for config in ends] + [(64, config) for config in ends]
    assert sorted(first) == sorted((planned.cell.batch_size, planned.cell.config) for planned in cells)


@pytest.mark.parametrize(("budget_s", "first"), [(1e6, "fp32"), (60.0, "fp16+dali+batched+nhwc+fused+static_graph")])
def test_where_the_budget_is_too_short_for_a_round_the_best_config_comes_first(budget_s, first):
    ladders = plan.make(scenario.load("naruse2018"), Selection(batch_sizes=(64,), budget_s=budget_s), V100, remote=True)
    assert next(start(ladders).ahead())[0].cell.config == first


def test_without_a_standard_batch_size_the_largest_comes_first():
    cells = make_plan(("fp32", "fp32+dali", "fp16", "fp16+dali"), (4, 8)).cells
    first = [(planned.cell.config, planned.cell.batch_size) for planned in in_order(cells)]
    assert first[:5] == [("fp32", 8), ("fp16", 8), ("fp16+dali", 8), ("fp32+dali", 8), ("fp32", 4)]


def test_the_cells_of_a_round_take_turns_if_they_share_the_batch_size_and_fail_only_alone():
    planned = make_plan(sizes=(4, 8), trials=2)
    planned = dataclasses.replace(planned, cells=tuple(p for p in planned.cells if not p.skip_reason))
    ahead = list(start(planned).ahead())
    group = turn_group(ahead)
    of_size_8 = [(p, n) for p, n in ahead if (p.cell.batch_size, n) == (8, 0)]
    assert len(of_size_8) > 1 and group == of_size_8
    failed = group[1][0].cell
    assert turn_group(ahead, {failed.key}) == [trial for trial in group if trial[0].cell != failed]
    assert turn_group([group[1], *ahead], {failed.key}) == [group[1]]


def test_the_order_of_a_group_is_reversed_in_every_second_round():
    ahead = list(start(make_plan(("fp32", "fp32+dali"), trials=2)).ahead())
    assert [p.cell.config for p, _ in turn_group(ahead)] == ["fp32", "fp32+dali"]
    assert [p.cell.config for p, _ in turn_group(ahead[2:])] == ["fp32+dali", "fp32"]


def test_a_trial_that_others_disturbed_or_that_waited_for_prefetched_input_runs_again_alone():
    planned = make_plan(("fp32", "fp32+dali"), trials=1)
    cell = planned.cells[1].cell
    in_turns = {"cell": cell, "turns_began_at": "2026-01-01T00:00:00.000+00:00"}
    steps = factories.make_record(cell=cell).measurement
    for share, again in ((0.05, False), (0.2, True)):
        phases = tuple(PhaseTimes(name=n, host_s=(s,)) for n, s in (("io", share), ("forward", 1 - share)))
        measured = msgspec.structs.replace(steps, phases=phases, prefetch_depth=2)
        assert runs_again_alone(factories.make_record(**in_turns, measurement=measured)) == again
        assert not runs_again_alone(factories.make_record(cell=cell, measurement=measured))
        undecoded = msgspec.structs.replace(measured, prefetch_depth=0)
        assert not runs_again_alone(factories.make_record(**in_turns, measurement=undecoded))
    oom = factories.make_record(**in_turns, status="oom", duration_s=7.0)
    assert order(run(start(planned, [oom]), COSTS_S)) == [("fp32", 0), ("fp32+dali", 0)], "not final when resumed"
    assert start(planned).with_record(oom).spent_s == 7.0
    assert list(start(planned).with_record(oom).ahead()) == list(start(planned).ahead())


@pytest.mark.parametrize("changes", [{"device": "cuda:0"}, {"ranks": 2}, {"input": Input(kind="own")}])
def test_on_a_gpu_with_many_ranks_and_in_the_users_code_trials_run_alone(changes):
    ahead = [(PlannedCell(factories.make_cell(config, **changes)), 0) for config in ("fp32", "fp32+dali")]
    assert turn_group(ahead) == ahead[:1]


# ------------------------------------------------------------------------------------------------------- resuming


def records_of(plan: Plan, n: int | None = None, key: bool = True) -> list[Record]:
    return [factories.make_record(cell=planned.cell, plan=plan.key if key else None) for planned in plan.cells[:n]]


def test_a_run_of_the_same_cells_is_gone_on_with_whatever_its_trials():
    assert differences(make_plan(trials=5), records_of(make_plan(trials=1), 1)) == ""


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"sizes": (64,)}, "batch size 64, here 4"),
        ({"seed": 3}, "seed 3, here 0"),
        ({"max_time_s": 9.0}, "measure max time s 9.0, here 0.5"),
        ({"configs": ("fp32",)}, "config fp32, here fp32, fp32+dali, fp16"),
        ({"sizes": (4, 8)}, "batch size 4, 8, here 4"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_a_run_of_another_selection_is_not_and_what_differs_is_named(other, difference, finished):
    before = make_plan(**other)
    if finished or len(before.cells) == 1:
        assert differences(make_plan(), records_of(before)) == difference
    else:
        assert differences(make_plan(), records_of(before, 2)) != ""


def test_records_that_do_not_name_their_plan_may_be_the_beginning_of_this_one():
    assert differences(make_plan(), records_of(make_plan(), 2, key=False)) == ""
    assert differences(make_plan(), records_of(make_plan(seed=3), 2, key=False)) == "seed 3, here 0"


def test_a_setting_that_only_some_cells_have_is_no_error():
    cells = [factories.make_cell("fp16"), factories.make_ablation()]
    settings, only = (
        dataclasses.replace(make_plan(), cells=tuple(map(PlannedCell, group))) for group in (cells, cells[:1])
    )
    config = "config fp16, here fp16, fp16:no-autotune"
    assert differences(settings, records_of(only)) == f"{config}; cudnn autotune True, here True, False"
    kfac = factories.make_record(cell=factories.make_cell("fp16", train=TrainSettings(kfac=KfacSettings(damping=0.5))))
    assert "train kfac damping 0.5, here none" in differences(only, [kfac])


def test_a_plan_of_the_same_settings_in_fewer_cells_is_another():
    full_plan = make_plan(("fp32", "fp16"), (4, 8))
    part = dataclasses.replace(full_plan, cells=(full_plan.cells[0], full_plan.cells[3]))
    assert differences(full_plan, records_of(part)) == "2 cells, here 4"
