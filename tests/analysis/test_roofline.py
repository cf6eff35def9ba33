"""FLOPs and bytes of layers and phases, and where they stand under the roof."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from factories import make_cell, make_measurement, make_phases, make_record

from tcbench.analysis.roofline import (
    Ceilings,
    WorkPart,
    base_and_fastest,
    layer_parts,
    phase_parts,
    precision_of,
    roofline,
)
from tcbench.analysis.summary import summarise
from tcbench.core.timeline import Span, timeline_of
from tcbench.engine.backends import trace
from tcbench.engine.models import MODELS
from tcbench.hardware import gpus

CEILINGS = Ceilings("a machine", (("fp32", 1e11), ("fp16", 8e11)), 2e10, True, "made up")


@pytest.mark.parametrize(("variant", "gmac"), [("v1", 3.86), ("v1.5", 4.09)])
def test_the_flops_of_convolutions_and_classifier_are_the_models(variant: str, gmac: float) -> None:
    cell = make_cell("fp32", 32, image_size=224, variant=variant)
    parts = [p for p in layer_parts(cell) if p.phase == "forward" and p.name.endswith(("/conv", "/fc"))]
    macs = sum(part.flops for part in parts) // 2 // 32
    assert macs == MODELS["resnet50"].macs(variant, 224, 1000)
    assert round(macs / 1e9, 2) == gmac


def test_backward_computes_each_convolution_twice_but_the_images_gradient() -> None:
    parts = layer_parts(make_cell("fp32", 2))
    forward = {p.name: p.flops for p in parts if p.phase == "forward" and p.name.endswith(("/conv", "/fc"))}
    backward = {p.name: p.flops for p in parts if p.phase == "backward" and p.name in forward}
    assert len(forward) == 54
    assert backward == {name: flops * (1 if name == "stem/conv" else 2) for name, flops in forward.items()}


FUSED = "nhwc+fused"


@pytest.mark.parametrize(
    ("model", "config", "off"),
    [
        *(("resnet50", "fp32", 0.1), ("resnet50", f"fp16+{FUSED}", 0.1), ("resnet18", f"fp32+{FUSED}", 0.15)),
        *(("alexnet", "fp32", 0.15), ("alexnet", f"fp16+{FUSED}", 0.15), ("googlenet-aux", "fp16", 0.15)),
    ],
)
def test_flops_and_bytes_are_those_of_the_program_itself(model: str, config: str, off: float) -> None:
    """The program, run on an accelerator that only counts. What differs is small: the loss, casts, and that on a GPU
    calls and masks of cuDNN's own count a little more or less."""
    cell = make_cell(config, 8, device="cuda:0", model=model, image_size=64)
    traced = {phase.name: phase.launches for phase in trace(cell, gpus.load("H200").properties()).step}
    for part in phase_parts(cell):
        if part.name in ("forward", "backward"):
            assert part.flops == pytest.approx(sum(work.flops for work in traced[part.name]), rel=0.02)
            assert part.bytes == pytest.approx(sum(work.bytes for work in traced[part.name]), rel=off)
    names = [part.name for part in layer_parts(cell) if part.phase == "forward"]
    assert len(names) == len(set(names))


def test_fusing_saves_traffic_and_sixteen_bits_half_of_it_and_a_replay_is_all_phases() -> None:
    def forward_bytes(config: str) -> int:
        return next(part.bytes for part in phase_parts(make_cell(config, 64, image_size=224)) if part.name == "forward")

    assert forward_bytes("fp32+fused") < 0.8 * forward_bytes("fp32")
    assert forward_bytes("fp16") == pytest.approx(forward_bytes("fp32") / 2, rel=0.01)
    parts = {part.name: part for part in phase_parts(make_cell())}
    assert parts["replay"].flops == sum(parts[name].flops for name in ("forward", "backward", "update"))


def test_layers_are_named_as_in_timelines() -> None:
    names = [part.name for part in layer_parts(make_cell("fp32+fused")) if part.phase == "forward"]
    assert names[:4] == ["stem/conv", "stem/bn+relu", "max pool", "block1.shortcut/conv"]
    assert names[4:6] == ["block1.shortcut/bn", "block1.a/conv"]
    assert names[-4:] == ["block16.c/conv", "block16.c/bn+add+relu", "average pool", "head/fc"]
    unfused = [part.name for part in layer_parts(make_cell("fp32")) if part.name.startswith("block1.c")]
    assert unfused[:4] == ["block1.c/conv", "block1.c/bn", "block1.c/add", "block1.c/relu"]
    assert len(names) == len(set(names))


def test_the_roof_is_the_lower_of_bandwidth_and_peak() -> None:
    assert CEILINGS.ridge("fp32") == 5
    assert CEILINGS.attainable_flops_s(2, "fp32") == 4e10
    assert CEILINGS.attainable_flops_s(50, "fp32") == 1e11
    assert CEILINGS.attainable_flops_s(50, "fp16") == 8e11
    assert (CEILINGS.flops_s("tf32"), CEILINGS.flops_s("bf16")) == (1e11, 8e11)  # as fp32, as fp16
    own = replace(CEILINGS, rates=(*CEILINGS.rates, ("bf16", 9e11)))
    assert own.flops_s("bf16") == 9e11
    part = WorkPart("p", "forward", flops=4 * 10**9, bytes=2 * 10**9, time_s=0.2)
    assert (part.intensity, part.flops_s) == (2, 2e10)
    assert part.share_of_roof(CEILINGS, "fp32") == pytest.approx(0.5)
    assert part.least_s(CEILINGS, "fp32") == pytest.approx(0.1)


def test_a_ceiling_that_a_phase_beat_is_withdrawn_and_one_that_a_cached_layer_beat_is_not() -> None:
    slow = WorkPart("forward", "forward", flops=10**9, bytes=10**6, time_s=0.02)
    fast = WorkPart("backward", "backward", flops=4 * 10**9, bytes=10**6, time_s=0.01)  # 4e11 FLOP/s
    assert CEILINGS.beaten_by([(slow, "fp32"), (fast, "fp16")]) == frozenset()
    standing = CEILINGS.without(CEILINGS.beaten_by([(slow, "fp32"), (fast, "fp32")]))
    assert standing.withdrawn == {"fp32"}
    assert fast.share_of_roof(CEILINGS, "fp32") is None
    assert fast.share_of_roof(standing, "fp32") == pytest.approx(0.005)  # of what memory allows
    assert fast.share_of_roof(standing, "fp16") == pytest.approx(0.5)
    assert slow.least_s(standing, "fp32") == pytest.approx(5e-5)  # what memory allows
    moved = WorkPart("update", "update", flops=10, bytes=10**9, time_s=0.01)  # 1e11 B/s
    assert CEILINGS.beaten_by([(moved, "fp32")]) == {"memory"}
    cached = WorkPart("block1.a/relu", "forward", flops=10, bytes=10**9, time_s=0.01)
    assert CEILINGS.beaten_by([(cached, "fp32")]) == frozenset()
    assert (cached.share_of_roof(CEILINGS, "fp32"), cached.least_s(CEILINGS, "fp32")) == (None, None)


@pytest.mark.parametrize(
    ("config", "precision"), [("fp32+nhwc", "fp32"), ("tf32", "tf32"), ("fp16+dali", "fp16"), ("bf16", "bf16")]
)
def test_a_configs_rungs_say_how_it_computes(config: str, precision: str) -> None:
    assert precision_of(config.split("+")) == precision


def test_phases_take_the_times_of_the_profiled_pass_and_layers_those_of_a_timeline() -> None:
    cell = make_cell("fp16", 4)
    phases = make_phases(dict.fromkeys(("io", "forward", "backward", "update"), (0.1, 0.2, 0.4)))
    record = make_record(cell=cell, measurement=make_measurement(phases=phases))
    [summary] = summarise([record])

    def layer(begin_s: float, end_s: float, phase: str, step: int) -> Span:
        return Span(begin_s, end_s, "host", "layer", "stem/conv", step, phase)

    spans = [layer(0, 0.1, "forward", 0), layer(0.5, 0.9, "backward", 0), layer(1, 1.3, "forward", 1)]
    timeline = timeline_of(cell.label, "cpu", "CPU", 4, "ranges", ("forward", "backward"), spans)
    result = roofline(summary, [record], CEILINGS, [timeline])
    assert result.precision == "fp16"
    assert [(part.phase, by) for part, by in result.timed][:3] == [
        ("forward", "fp16"),
        ("backward", "fp16"),
        ("update", "fp32"),
    ]
    assert [part.name for part in result.phases] == ["forward", "backward", "update"]
    assert {part.time_s for part in result.phases} == {0.2}
    timed = {(part.phase, part.name): part.time_s for part in result.layers if part.time_s is not None}
    assert timed == dict.fromkeys([("forward", "stem/conv"), ("backward", "stem/conv")], pytest.approx(0.2))
    other = msgspec.structs.replace(cell, config="fp32", rungs=("fp32",))
    [summary] = summarise([make_record(cell=other)])
    assert all(part.time_s is None for part in roofline(summary, [], CEILINGS, [timeline]).layers)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({"fp32": 9, "fp32+dali": 7, "bf16": 5, "bf16+dali": 6}, ["fp32>fp32", "fp32>bf16+dali"]),
        ({"bf16+dali": 6, "fp16": 5, "fp16+dali": 8}, ["fp16>bf16+dali", "fp16>fp16+dali"]),  # of fewest rungs
        ({"fp32": 1, "fp32+dali": 7, "bf16": 5}, ["fp32>fp32+dali", "fp32>bf16"]),
    ],
)
def test_each_batch_sizes_base_stands_beside_the_fastest_of_each_precision(
    rates: dict[str, float], expected: list[str]
) -> None:
    records = [make_record(config, size, images_per_s=rates[config]) for config in rates for size in (4, 8)]
    pairs = base_and_fastest([roofline(summary, [], CEILINGS) for summary in summarise(records)])
    cells = [(base.summary.cell, fastest.summary.cell) for base, fastest in pairs]
    assert [f"{base.config}>{fastest.config}" for base, fastest in cells] == expected * 2
    assert [(base.batch_size, fastest.batch_size) for base, fastest in cells] == [(4, 4)] * 2 + [(8, 8)] * 2
