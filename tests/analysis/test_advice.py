"""What could be added to a config, and which of that is next."""

from collections.abc import Sequence

import pytest
from factories import (
    make_cell,
    make_measurement,
    make_measurement_of_ranks,
    make_peer_cell,
    make_phases,
    make_record,
    remeasured,
)
from timelines import talk

from tcbench.analysis.advice import Tried, candidates, effects_of, next_rung
from tcbench.analysis.bottleneck import Bottleneck, StageNeeds, explain_record, summarise
from tcbench.analysis.explanation import explain
from tcbench.analysis.stats import Interval
from tcbench.core.record import Record
from tcbench.engine.backends import backend


def on_cpu(io: float, forward: float, backward: float, update: float) -> Bottleneck:
    return of_phases(io=io, forward=forward, backward=backward, update=update)


def of_phases(step_s: float | None = None, **host_s: float | Sequence[float]) -> Bottleneck:
    """Of a step that takes as long as its phases together, unless that is said."""
    step_s = step_s or sum(host_s.values())
    measurement = make_measurement([step_s] * 12, phases=make_phases(host_s), prefetch_depth=0)
    return explain_record(make_record(batch_size=8, measurement=measurement))


@pytest.mark.parametrize(
    ("slide", "config", "next_config"),
    [
        ("15", "fp32", "fp16"),
        ("17", "fp16", "fp16+batched"),
        ("22", "fp16+dali", "fp16+dali+batched"),
        ("28", "fp16+dali+batched+nhwc+fused", "fp16+dali+batched+nhwc+fused+static_graph"),
        ("32", "fp16+dali+batched+nhwc+fused+static_graph", "fp16+dali+batched+nhwc+fused+static_graph+convstats"),
    ],
)
def test_the_talks_next_step_is_the_one_that_is_advised(slide: str, config: str, next_config: str) -> None:
    problem = backend("chainer").RUNGS.problem
    gain = next_rung(candidates(summarise(talk()[slide]), tuple(config.split("+")), problem))
    assert gain is not None
    assert "+".join(gain.rungs) == next_config


def test_dali_is_advised_when_the_input_holds_the_cell_back() -> None:
    gain = next_rung(candidates(on_cpu(0.6, 0.2, 0.1, 0.1), ("fp32",), backend("chainer").RUNGS.problem))
    assert gain is not None
    assert gain.added == ("dali",)
    assert gain.expected is None


def test_what_is_not_a_config_is_not_advised() -> None:
    gains = candidates(on_cpu(0.6, 0.2, 0.1, 0.1), ("fp32",), lambda rungs: "no" if "dali" in rungs else None)
    assert all("dali" not in gain.rungs for gain in gains)


def test_a_measured_rung_is_preferred_and_stands_beside_what_was_expected_of_it() -> None:
    tried = {("fp32", "static_graph"): measured(11.0, 8), ("fp32", "dali"): measured(8.5, 8)}
    gains = candidates(on_cpu(0.1, 0.4, 0.4, 0.1), ("fp32",), tried=tried, expected=lambda _: Interval(20, 19, 21))
    gain = next_rung(gains)
    assert gain is not None
    assert (gain.added, gain.measured_images_per_s) == (("static_graph",), 11.0)
    assert gain.expected == Interval(20, 19, 21)


def test_of_what_was_not_measured_the_rung_that_is_expected_to_bring_most_is_next() -> None:
    rates = {("fp32", "dali"): 8.1, ("fp32", "batched"): 9.0, ("fp32", "nhwc", "fused"): 12.0}

    def expected(rungs: Sequence[str]) -> Interval | None:
        rate = rates.get(tuple(rungs))
        return rate and Interval(rate, 0.9 * rate, 1.1 * rate)

    gains = candidates(on_cpu(0.6, 0.2, 0.1, 0.1), ("fp32",), expected=expected)  # 8 images/s, and input-bound
    helps = {gain.added: gain.helps for gain in gains if gain.expected}
    assert helps == {("dali",): False, ("batched",): True, ("nhwc", "fused"): True}
    gain = next_rung(gains)
    assert gain is not None and gain.added == ("nhwc", "fused")


def measured(images_per_s: float, over: float, half_width: float = 0.02) -> Tried:
    factor = images_per_s / over
    return Tried(images_per_s, Interval(factor, factor * (1 - half_width), factor * (1 + half_width)))


def test_what_was_tried_and_is_slower_is_never_advised_and_is_said() -> None:
    bottleneck = on_cpu(0.6, 0.2, 0.1, 0.1)  # input-bound: by the model, dali would be next
    for rate, slower in ((6.0, True), (8.0, False)):  # surely slower; as fast as without it
        gains = candidates(bottleneck, ("fp32",), tried={("fp32", "dali"): measured(rate, 8)})
        [dali] = [gain for gain in gains if gain.added == ("dali",)]
        assert (dali.helps, dali.slower) == (False, slower)
        assert next_rung(gains) is None or next_rung(gains).added != ("dali",)


def test_on_a_cpu_the_rung_for_the_dominant_phase_comes_first() -> None:
    for times, phase, added in (
        ((0.05, 0.2, 0.3, 0.45), "update", ("batched",)),
        ((0.05, 0.2, 0.6, 0.15), "backward", ("nhwc", "fused")),
    ):
        bottleneck = on_cpu(*times)
        assert bottleneck.dominant is not None and bottleneck.dominant.name == phase
        no_half = lambda rungs: "no" if {"fp16", "bf16"} & set(rungs) else None  # noqa: E731
        gain = next_rung(candidates(bottleneck, ("fp32",), no_half), phase)
        assert gain is not None and gain.added == added


def test_low_precision_is_advised_on_a_cpu_that_has_it_and_says_what_it_has_to_show() -> None:
    gain = next_rung(candidates(on_cpu(0.05, 0.2, 0.7, 0.05), ("fp32", "nhwc", "fused")), "backward")
    assert gain is not None and gain.added == ("fp16",)
    assert "tcbench numerics" in gain.evidence


def test_rungs_that_slow_a_step_on_purpose_are_left_out_and_not_called_slower() -> None:
    slow = candidates(on_cpu(0.05, 0.2, 0.7, 0.05), ("fp32", "im2col"))
    [without] = [gain for gain in slow if gain.removed == ("im2col",)]
    assert (without.rungs, without.helps, without.added) == (("fp32",), True, ())
    assert not [gain for gain in candidates(on_cpu(0.05, 0.2, 0.7, 0.05), ("im2col",)) if gain.removed]
    for rung in ("im2col", "kfac"):
        tried = {("fp32", rung): measured(3.0, 8)}
        [added] = [g for g in candidates(on_cpu(0.1, 0.4, 0.4, 0.1), ("fp32",), tried=tried) if g.added == (rung,)]
        assert (added.slower, added.helps) == (False, False)


def test_kfac_is_left_out_where_its_factors_and_inverses_are_what_takes_long() -> None:
    bottleneck = of_phases(io=0.05, forward=0.1, backward=0.15, factors=0.3, inverse=0.4, update=0.02)
    assert bottleneck.limit == "inverse 39%"
    gain = next_rung(candidates(bottleneck, ("fp32", "kfac")), "inverse")
    assert gain is not None and gain.removed == ("kfac",)
    assert "fewer steps to a loss" in gain.evidence
    # Where nothing of it is in the step, there is nothing to save.
    assert not [gain for gain in candidates(on_cpu(0.1, 0.4, 0.4, 0.1), ("fp32", "kfac")) if gain.removed]


def test_unknown_rungs_have_no_effect() -> None:
    assert effects_of(["mystery"]) == ()


def record(config: str, step_s: float, io_s: float) -> Record:
    phases = make_phases({"io": io_s, "forward": step_s - io_s})
    measurement = make_measurement([step_s] * 12, phases=phases, prefetch_depth=2 if "dali" in config else 0)
    return make_record(cell=make_cell(config, 8), measurement=measurement)


def test_a_matrix_is_explained_cell_by_cell() -> None:
    records = [record("fp32", 1.0, 0.6), record("fp32+dali", 0.7, 0.0), make_record("fp16", 8, status="oom")]
    base, dali, lost = explain(records)
    assert base.bottleneck is not None
    assert base.bottleneck.verdict == "input-bound"
    assert base.advice is not None
    assert base.advice.added == ("dali",)
    assert base.advice.measured_images_per_s == pytest.approx(8 / 0.7)
    assert [gain.added for gain in base.checked] == [("dali",)]
    assert dali.bottleneck is not None
    assert dali.bottleneck.needs == StageNeeds(None, 0.7, None, True)
    assert (lost.bottleneck, lost.gains, lost.advice) == (None, (), None)


def test_batch_sizes_and_settings_do_not_mix() -> None:
    other = make_record(cell=make_cell("fp32+dali", 4))
    assert explain([record("fp32", 1.0, 0.6), other])[0].checked == ()


def test_a_config_of_another_backend_is_not_what_a_rung_did_here() -> None:
    ours = record("fp32", 1.0, 0.6)
    peers = [
        make_record(cell=make_peer_cell(f"torch/{config}", 8), images_per_s=30.6)
        for config in ("fp32+dali", "fp32+dali+fused_optimizer")
    ]
    [base, *_] = explain([ours, *peers])
    assert base.checked == ()
    dali = record("fp32+dali", 0.5, 0.0)
    [base, *_] = explain([ours, *peers, dali])
    assert [(gain.added, gain.measured_images_per_s) for gain in base.checked] == [(("dali",), pytest.approx(16))]


@pytest.mark.parametrize("missing", [{"io", "forward"}, {"io"}])
def test_a_cell_whose_phases_have_no_times_is_not_explained(missing: set[str]) -> None:
    phases = make_phases({name: () if name in missing else (0.5,) for name in ("io", "forward")})
    empty = remeasured(record("fp32", 1.0, 0.6), phases=phases)
    assert [one.bottleneck for one in explain([empty])] == [None]
    with pytest.raises(ValueError, match="nothing was measured"):
        explain_record(empty)


def test_what_acts_on_the_exchange_is_advised_where_that_holds_a_step_back() -> None:
    def of_ranks(ranks: int, allreduce: float) -> Bottleneck:
        measurement = make_measurement_of_ranks((0.1,) * 12, ranks, allreduce=allreduce)
        return explain_record(make_record(cell=make_cell(batch_size=8, ranks=ranks), measurement=measurement))

    bound = of_ranks(2, 0.6)
    best = next_rung(candidates(bound, ["fp32"]))
    assert best is not None and best.added == ("batched", "flat_allreduce")
    then = next_rung(candidates(bound, ["fp32", "batched"]))
    assert then is not None and then.added == ("flat_allreduce",)
    assert not any("overlap" in gain.added for gain in candidates(of_ranks(1, 0.0), ["fp32"]))
    assert not any(gain.helps for gain in candidates(of_ranks(2, 0.2), ["fp32"]) if gain.added == ("overlap",))
