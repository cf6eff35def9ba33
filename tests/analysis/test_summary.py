"""Records become one summary per cell."""

import msgspec
import pytest
from factories import (
    make_cell,
    make_environment,
    make_measurement,
    make_peer_cell,
    make_phases,
    make_record,
    remeasured,
)

from tcbench.analysis.summary import base_config, best, speedups, summarise
from tcbench.core.record import Command, Input, Record, Simulated, Status


def test_two_revisions_are_never_one_cell_but_a_run_that_was_gone_on_with_is() -> None:
    codes = [{"commit": "a" * 12}, {"commit": "b" * 12}, {"commit": "b" * 12, "project_commit": "c" * 12}]
    codes += [{"commit": "a" * 12, "sources": {"my_step.py": digest}} for digest in "12"]
    records = [make_record(run_id=str(n), environment=make_environment(**code)) for n, code in enumerate(codes)]
    again = make_record(run_id="5", environment=make_environment(**codes[0]))
    assert [summary.trials for summary in summarise([*records, again])] == [2, 1, 1, 1, 1]
    assert len({summary.setting for summary in summarise(records)}) == 5
    files = [make_environment(sources={name: "1"}) for name in ("a.py", "b.py")]  # each config loads what it needs
    first_run = [
        make_record(c, environment=environment) for c, environment in zip(("fp32", "fp16"), files, strict=True)
    ]
    back = [
        make_record(c, environment=environment, run_id="2")
        for c, environment in zip(("fp16", "fp32"), files[::-1], strict=True)
    ]
    assert len({summary.setting for summary in summarise([*first_run, *back])}) == 1
    [mixed] = summarise([make_record(trial=n, environment=r.environment) for n, r in enumerate(records[:2])])
    assert (mixed.trials, [code.commit for code in mixed.codes]) == (2, ["a" * 12, "b" * 12])


def test_memory_is_the_worst_trial_phases_are_medians_over_all_and_one_unsettled_trial_unsettles() -> None:
    def record(trial: int, io_s: float, peak: int) -> Record:
        phases = make_phases({"io": io_s})
        return remeasured(make_record(trial=trial), phases=phases, peak_memory_bytes=peak, warmup_settled=trial != 1)

    records = [record(0, 1.0, 10), record(1, 2.0, 30), record(2, 3.0, 20)]
    [summary] = summarise(records)
    assert summary.peak_memory_bytes == 30
    assert summary.phase_host_s == (("io", 2.0),)
    assert (summary.settled, summarise(records[:1])[0].settled) == (False, True)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (("ok", "crashed"), "ok"),
        (("oom", "ok"), "ok"),
        (("oom", "crashed", "skipped"), "crashed"),
        (("timeout", "failed"), "timeout"),
        (("skipped",), "skipped"),
    ],
)
def test_ok_wins_else_the_worst(statuses: tuple[Status, ...], expected: Status) -> None:
    [summary] = summarise([make_record(status=status, trial=trial) for trial, status in enumerate(statuses)])
    assert summary.status == expected
    assert summary.reason == make_record(status=expected).reason
    if expected != "ok":
        assert (summary.images_per_s, summary.step_time_s, summary.peak_memory_bytes) == (None, None, None)
        assert summary.phase_host_s == ()
    assert (summary.trials, summary.trials_ok) == (len(statuses), statuses.count("ok"))


def test_speed_ups_are_over_the_base_at_the_same_batch_size() -> None:
    records = [
        make_record("fp32", 4, images_per_s=40),
        make_record("fp16", 4, images_per_s=80),
        make_record("fp32", 8, status="oom"),
        make_record("fp16", 8, images_per_s=90),
        make_record("fp16", 16, images_per_s=90),
        make_record("fp32", 16, cell=make_cell("fp32", 16, image_size=224)),
    ]
    ratios = speedups(summarise(records))
    assert (ratios[0].value, ratios[0].low, ratios[0].high) == (1, 1, 1)
    assert ratios[1].holds(2.0) and ratios[1].low > 1.8
    assert ratios[2:5] == (None, None, None)  # fp32 ran out of memory; at 16 it ran other images
    assert speedups(summarise(records[1:]))[0] is None


def test_cells_that_took_turns_share_the_state_of_the_machine_and_those_of_another_group_do_not() -> None:
    """The machine is 30% slower in two of six groups, which are not those of one round."""
    state = {(4, 0): 1.0, (8, 0): 0.7, (4, 1): 0.7, (8, 1): 1.0, (4, 2): 1.0, (8, 2): 1.0}
    groups = [
        make_record(config, size, trial=n, images_per_s=rate * slow, noise=0.01, turns_began_at=f"{size} {n}")
        for (size, n), slow in state.items()
        for config, rate in (("fp32", 40.0), ("bf16", 50.0), ("fp16", 60.0))
    ]
    by_rounds = [msgspec.structs.replace(record, turns_began_at=msgspec.UNSET) for record in groups]
    widths = [max(s.high - s.low for s in speedups(summarise(records)) if s) for records in (groups, by_rounds)]
    assert widths[0] < widths[1] / 5


def test_best_is_the_fastest_that_is_ok_whatever_its_dtype() -> None:
    records = [make_record("fp32", images_per_s=50), make_record("fp16", images_per_s=40)]
    assert best(summarise([*records, make_record("fp16+dali", status="oom")])).cell.config == "fp32"
    assert best([]) is None


def test_steps_of_ones_own_are_set_over_the_first_config():
    own_input = Input(kind="own")

    def trial(config: str, rate: float) -> Record:
        cell = make_cell(config, input=own_input, backend="my_step:open_session")
        return make_record(cell=cell, images_per_s=rate, noise=0.0)

    summaries = summarise([trial("my/eager", 10.0), trial("my/eager+fused", 20.0)])
    assert base_config(summaries) == "my/eager"
    assert [round(ratio.value, 3) for ratio in speedups(summaries) if ratio] == [1.0, 2.0]
    alone = summarise([make_record("fp16")])
    assert base_config(alone) == "fp32"
    assert speedups(alone) == (None,)


def test_what_compare_refuses_is_never_one_cell_but_backends_have_packages_of_their_own() -> None:
    environments = [
        make_environment(),
        make_environment(packages={"chainer": "7.8.1", "numpy": "1.0"}),
        make_environment(packages={"torch": "2.9", "numpy": "2.2.0"}),
        make_environment(simulated=Simulated(card="A", host="B", host_speed=1.0, attained="C")),
    ]
    cells = [make_cell(), make_cell(), make_peer_cell(), make_cell()]
    records = [
        make_record(run_id=str(n), environment=environment, cell=cell)
        for n, (environment, cell) in enumerate(zip(environments, cells, strict=True))
    ]
    summaries = summarise(records)
    assert [summary.runs for summary in summaries] == [("0",), ("1",), ("3",), ("2",)]
    assert len({summary.setting for summary in summaries}) == 3
    beneath = [code.beneath for summary in summaries for code in summary.codes]
    assert ["numpy: 1.0" in stack for stack in beneath] == [False, True, False, False]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ("gate-20260101-000000-base",)),  # nothing that a record knows tells two interpreters apart
        ({"python": "3.12.1"}, ("python: 3.11.2",)),
        ({"packages": {"chainer": "7.8.1", "numpy": "2.2.0", "cupy": "14.0"}}, ("cupy: none",)),
    ],
)
def test_the_sides_of_a_gate_are_never_one_cell_nor_a_stack_with_a_package_more(change, words) -> None:
    records = [
        make_record(run_id=f"gate-20260101-000000-{side}", trial=trial, environment=make_environment(**changes))
        for side, changes in (("base", {}), ("current", change))
        for trial in range(3)
    ]
    base, current = summarise(records)
    assert (base.trials, current.trials) == (3, 3)
    assert base.codes[0].beneath == words != current.codes[0].beneath
    again = [msgspec.structs.replace(record, run_id=f"cpu-20260101-00000{record.trial}") for record in records[:3]]
    assert [summary.trials for summary in summarise(again)] == [3]


def test_programs_of_one_scenario_share_a_setting_and_count_their_own_items():
    def trials(config, line, items):
        cell = make_cell(config, 8, backend="command", input=Input(kind="own"), command=Command(line=line), base="a")
        measurement = make_measurement([0.1] * 12, items=items, epoch_starts=(7,))
        return [make_record(cell=cell, trial=n, measurement=measurement) for n in range(2)]

    base, faster = summarise([*trials("a", "train", 100.0), *trials("a+b", "train --b", 300.0)])
    assert base.setting == faster.setting
    assert (base.images_per_s.value, base.step_time_s.value) == pytest.approx((1000, 0.1))
    assert speedups([base, faster])[1].value == pytest.approx(3)
    assert faster.epoch_first_s == pytest.approx(0.1)
