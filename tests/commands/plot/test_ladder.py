"""The gain of each rung."""

import pytest
from factories import make_ablation, make_cell, make_record

from tcbench.analysis.summary import summarise
from tcbench.commands.plot.ladder import DerivedConfig, DerivedLadder, climbs, derive_ladders


def test_two_ladders_from_one_base_are_named_by_their_tops() -> None:
    ladders = derive_ladders(
        summarise([make_record(c) for c in ("fp16", "fp16+dali", "fp16+opencv", "fp16+dali+batched")])
    )
    assert [x.name for x in ladders] == ["fp16+opencv", "fp16+dali+batched"]
    assert derive_ladders(summarise([make_record("fp32"), make_record("fp16")])) == ()  # none stands on another


def test_an_ablation_is_no_step_of_a_ladder() -> None:
    records = [make_record("fp16", images_per_s=100), make_record("fp16+dali", images_per_s=150)]
    records += [make_record(cell=make_ablation(config), images_per_s=50) for config in ("fp16", "fp16+dali")]
    [climb] = climbs(summarise(records))
    assert [step.after and round(step.after.value) for step in climb.steps] == pytest.approx([100, 150], rel=0.05)
    assert derive_ladders(summarise([make_record(cell=make_ablation("fp16")), make_record("fp16+dali")])) == ()


def test_what_a_missing_step_would_have_brought_is_not_credited_to_the_next_alone() -> None:
    steps = ("fp16", "fp16+dali", "fp16+dali+batched", "fp16+dali+batched+static_graph")
    ladder = DerivedLadder("fp16", tuple(DerivedConfig(tuple(step.split("+"))) for step in steps))
    records = [
        make_record("fp16"),
        make_record("fp16+dali", status="oom"),
        make_record("fp16+dali+batched+static_graph", images_per_s=80),
    ]
    [climb] = climbs(summarise(records), [ladder])
    _, dali, batched, static_graph = climb.steps
    assert dali.after is None and dali.summary.status == "oom"
    assert batched.after is None and batched.summary is None
    assert static_graph.added == ("dali", "batched", "static_graph")
    assert static_graph.ratio.value == pytest.approx(2, rel=0.02)


def test_a_ladder_starts_at_the_first_config_that_ran_and_without_one_tells_what_is_missing() -> None:
    records = [make_record("fp32", status="oom"), make_record("fp32+dali"), make_record("fp32+dali+batched")]
    [climb] = climbs(summarise(records))
    assert climb.base.config == "fp32+dali" and climb.base.ratio is None
    [climb] = climbs(summarise([make_record("fp32", status="oom"), make_record("fp32+dali", status="oom")]))
    assert climb.base is None and climb.top is None and not any(step.after for step in climb.steps)


def test_a_ladder_of_other_results_is_none_where_another_has_all_that_ran_of_it() -> None:
    """Two scenarios side by side: in each its own ladder, and not the begin of the other's with what was never run."""
    records = [make_record(config) for config in ("fp16", "fp16+dali", "fp16+dali+static_graph")]
    measured = ("fp16", "fp16+dali", "fp16+dali+cuda_graph")
    records += [make_record(cell=make_cell(config, 4, threads=7)) for config in measured]
    records += [make_record(cell=make_cell(config, 4, threads=5)) for config in ("fp16", "fp16+dali")]
    climbed = climbs(summarise(records))
    first, other = "fp16+dali+static_graph", "fp16+dali+cuda_graph"
    assert [climb.ladder for climb in climbed] == [first, other, first]  # the third has as much of both
    assert len({climb.setting for climb in climbed}) == 3
