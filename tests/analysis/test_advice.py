"""What could be added to a config, and what it could gain at most by the pipeline model."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from factories import make_cell, make_measurement, make_measurement_of_ranks, make_peer_cell, make_record
from timelines import busy_timeline, talk

from tcbench.analysis.advice import candidates, effects_of, next_rung, step_at_least_s
from tcbench.analysis.bottleneck import Bottleneck, Needs, explain_record, summarise
from tcbench.analysis.explanation import explain
from tcbench.backends import backend
from tcbench.core.record import PhaseTimes, Record


def on_cpu(io: float, forward: float, backward: float, update: float) -> Bottleneck:
    host = {"io": io, "forward": forward, "backward": backward, "update": update}
    phases = tuple(PhaseTimes(name=name, host_s=(s,)) for name, s in host.items())
    measurement = make_measurement([sum(host.values())] * 12, phases=phases, prefetch_depth=0)
    return explain_record(make_record(batch_size=8, measurement=measurement))


def test_the_model_takes_away_what_a_rung_attacks_and_nothing_else() -> None:
    bottleneck = on_cpu(0.4, 0.2, 0.3, 0.1)
    assert step_at_least_s(bottleneck, ["dali"]) == pytest.approx(0.6)
    assert step_at_least_s(bottleneck, ["opencv"]) == pytest.approx(0.6)
    assert step_at_least_s(bottleneck, ["batched"]) == pytest.approx(0.9)
    assert step_at_least_s(bottleneck, ["dali", "batched"]) == pytest.approx(0.5)
    assert step_at_least_s(bottleneck, ["static_graph"]) == pytest.approx(0.5)
    assert step_at_least_s(bottleneck, ["static_graph"], arithmetic_s=0.35) == pytest.approx(0.85)
    assert step_at_least_s(bottleneck, ["fp16"]) == pytest.approx(1.0)
    assert step_at_least_s(bottleneck, ["dynamic_scale"]) == pytest.approx(1.0)


def test_an_overlapped_input_is_a_stage_of_its_own() -> None:
    assert step_at_least_s(on_cpu(0.8, 0.1, 0.1, 0.0), ["dali"]) == pytest.approx(0.8)


def test_a_profiled_pass_slower_than_the_timed_one_is_scaled_to_it() -> None:
    bottleneck = replace(on_cpu(0.4, 0.2, 0.3, 0.1), step_s=0.5)
    assert step_at_least_s(bottleneck, ["dali"]) == pytest.approx(0.3)


def test_on_a_gpu_the_longest_other_stage_stays() -> None:
    bottleneck = summarise(busy_timeline())
    # host 80 ms and input 20 ms in one thread, GPU 60 ms
    assert step_at_least_s(bottleneck, ["dali"]) == pytest.approx(0.08)
    assert step_at_least_s(bottleneck, ["dali", "cuda_graph"]) == pytest.approx(0.06)
    assert step_at_least_s(bottleneck, ["dali", "cuda_graph", "fused"]) == pytest.approx(0.02)
    assert step_at_least_s(bottleneck, ["fp16"]) == pytest.approx(0.1)


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
    assert gain.images_per_s_at_most == pytest.approx(8 / 0.6)


def test_what_is_not_a_config_is_not_advised() -> None:
    gains = candidates(on_cpu(0.6, 0.2, 0.1, 0.1), ("fp32",), lambda rungs: "no" if "dali" in rungs else None)
    assert all("dali" not in gain.rungs for gain in gains)


def test_a_measured_rung_is_preferred_and_stands_beside_its_ceiling() -> None:
    bottleneck = on_cpu(0.1, 0.4, 0.4, 0.1)
    gains = candidates(bottleneck, ("fp32",), measured={("fp32", "static_graph"): 11.0, ("fp32", "dali"): 9.5})
    gain = next_rung(gains)
    assert gain is not None
    assert (gain.added, gain.measured_images_per_s) == (("static_graph",), 11.0)
    assert gain.images_per_s_at_most == pytest.approx(40)
    assert gain.holds
    dali = next(gain for gain in gains if gain.added == ("dali",))
    assert (dali.helps, dali.holds) == (False, False)
    assert dali.images_per_s_at_most == pytest.approx(8 / 0.9)


def test_unknown_rungs_have_no_effect() -> None:
    assert effects_of(["mystery"]) == ()


def record(config: str, step_s: float, io_s: float) -> Record:
    phases = (PhaseTimes(name="io", host_s=(io_s,)), PhaseTimes(name="forward", host_s=(step_s - io_s,)))
    measurement = make_measurement([step_s] * 12, phases=phases, prefetch_depth=2 if "dali" in config else 0)
    return make_record(cell=make_cell(config, 8), measurement=measurement)


def test_a_matrix_is_explained_cell_by_cell() -> None:
    records = [record("fp32", 1.0, 0.6), record("fp32+dali", 0.5, 0.0), make_record("fp16", 8, status="oom")]
    base, dali, lost = explain(records)
    assert base.bottleneck is not None
    assert base.bottleneck.verdict == "input-bound"
    assert base.advice is not None
    assert base.advice.added == ("dali",)
    assert base.advice.images_per_s_at_most == pytest.approx(8 / 0.6)
    assert base.advice.measured_images_per_s == pytest.approx(16)
    assert [gain.added for gain in base.checked] == [("dali",)]
    assert dali.bottleneck is not None
    assert dali.bottleneck.needs == Needs(None, 0.5, None, True)
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
    whole = record("fp32", 1.0, 0.6)
    assert whole.measurement is not None
    phases = tuple(
        PhaseTimes(name=phase.name, host_s=() if phase.name in missing else phase.host_s)
        for phase in whole.measurement.phases
    )
    empty = msgspec.structs.replace(whole, measurement=msgspec.structs.replace(whole.measurement, phases=phases))
    assert [one.bottleneck for one in explain([empty])] == [None]
    with pytest.raises(ValueError, match="nothing was measured"):
        explain_record(empty)


def test_what_acts_on_the_exchange_is_advised_where_that_holds_a_step_back() -> None:
    def of_ranks(ranks: int, allreduce: float) -> Bottleneck:
        measurement = make_measurement_of_ranks((0.1,) * 12, ranks, allreduce=allreduce)
        return explain_record(make_record(cell=make_cell(batch_size=8, ranks=ranks), measurement=measurement))

    bound = of_ranks(2, 0.6)
    assert step_at_least_s(bound, ["flat_allreduce"]) == pytest.approx(0.04)
    assert step_at_least_s(bound, ["static_graph"]) == pytest.approx(0.1 - 0.9 * 0.04)  # leaves the exchange
    best = next_rung(candidates(bound, ["fp32"]))
    assert best is not None and best.added == ("batched", "flat_allreduce")
    assert best.images_per_s_at_most == pytest.approx(2 * 8 / (0.04 - 0.08 * 0.04))
    then = next_rung(candidates(bound, ["fp32", "batched"]))
    assert then is not None and then.added == ("flat_allreduce",)
    assert not any("overlap" in gain.added for gain in candidates(of_ranks(1, 0.0), ["fp32"]))
    assert not any(gain.helps for gain in candidates(of_ranks(2, 0.2), ["fp32"]) if gain.added == ("overlap",))
