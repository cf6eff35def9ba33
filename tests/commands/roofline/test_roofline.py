"""FLOPs and bytes of layers and phases, and where they stand under the roof."""

from dataclasses import replace

import pytest
from factories import make_cell, make_measurement, make_phases, make_record

from tcbench.analysis.bottleneck import explain_records
from tcbench.analysis.summary import summarise
from tcbench.commands.roofline.roofline import (
    CellRoofline,
    WorkPart,
    base_and_fastest,
    cell_roofline,
    costliest,
    highest_rates,
    layer_parts,
    phase_parts,
    precision_of,
)
from tcbench.core.record import DeclaredWork, Input, Record
from tcbench.core.timeline import Span, Timeline
from tcbench.engine.accelerators.ceilings import Ceilings, Reached
from tcbench.engine.backends import trace_cell
from tcbench.engine.models import MODELS
from tcbench.hardware import gpus

CEILINGS = Ceilings("a machine", {"fp32": 1e11, "fp16": 8e11}, 2e10, "made up")


@pytest.mark.parametrize("variant", ["v1", "v1.5"])
def test_the_flops_of_convolutions_and_classifier_are_the_models(variant: str) -> None:
    cell = make_cell("fp32", 32, image_size=224, variant=variant)
    parts = [p for p in layer_parts(cell) if p.phase == "forward" and p.name.endswith(("/conv", "/fc"))]
    assert sum(part.flops for part in parts) == 2 * 32 * MODELS["resnet50"].macs(variant, 224, 1000)


FUSED = "nhwc+fused"


@pytest.mark.long
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
    step = trace_cell(cell, gpus.load("H200").properties()).step
    traced = {phase.name: [event.work for event in phase.events if event.work] for phase in step}
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


def timed(config: str, *parts: WorkPart, doubtful: bool = False, is_own: bool = False) -> CellRoofline:
    cell = make_cell(config, input=Input(kind="own") if is_own else Input(kind="synthetic"))
    record = make_record(cell=cell, measurement=make_measurement([1.0] * 12, phases=make_phases({"forward": (0.1,)})))
    bottleneck = explain_records([record]) if doubtful else None
    return CellRoofline(summarise([record])[0], CEILINGS, parts, (), bottleneck)


def test_what_ran_faster_than_a_ceiling_is_the_ceiling_but_a_cache_is_no_memory() -> None:
    fast = WorkPart("backward", "backward", flops=4 * 10**9, bytes=10**6, time_s=0.01)  # 4e11 FLOP/s
    assert CEILINGS.raised(highest_rates([timed("fp16", fast)])) == CEILINGS
    raised = CEILINGS.raised(highest_rates([timed("fp32", fast)]))
    assert raised.reached == {"fp32": Reached(4e11, "backward of fp32, batch size 4")}
    assert fast.share_of_roof(CEILINGS, "fp32") is None
    assert (fast.share_of_roof(raised, "fp32"), fast.share_of_roof(raised, "fp16")) == pytest.approx((1, 0.5))
    moved = WorkPart("update", "update", flops=10, bytes=10**9, time_s=0.01)  # 1e11 B/s
    assert highest_rates([timed("fp32", replace(moved, time_s=1.0)), timed("fp16", moved)])["memory"].rate == 1e11
    assert CEILINGS.raised(highest_rates([timed("fp16", moved)])).memory_bytes_s == 1e11
    cached = replace(moved, name="block1.a/relu", phase="forward")
    for other in (cached, replace(moved, bytes=25 * 10**7)):
        assert "memory" not in highest_rates([timed("fp32", other)])
        assert (other.share_of_roof(CEILINGS, "fp32"), other.least_s(CEILINGS, "fp32")) == (None, None)
    assert highest_rates([timed("fp32", moved, doubtful=True), timed("fp32", moved, is_own=True)]) == {}


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
    timeline = Timeline(cell.label, "cpu", "CPU", 4, "ranges", ("forward", "backward"), spans)
    result = cell_roofline(summary, [record], CEILINGS, [timeline])
    assert result.precision == "fp16"
    by_phase = [(part.phase, precision) for part, precision in result.timed][:3]
    assert by_phase == [("forward", "fp16"), ("backward", "fp16"), ("update", "fp32")]
    assert [part.name for part in result.phases] == ["forward", "backward", "update"]
    assert {part.time_s for part in result.phases} == {0.2}
    timed = {(part.phase, part.name): part.time_s for part in result.layers if part.time_s is not None}
    assert timed == dict.fromkeys([("forward", "stem/conv"), ("backward", "stem/conv")], pytest.approx(0.2))
    [summary] = summarise([make_record("fp32", 4)])
    assert all(part.time_s is None for part in cell_roofline(summary, [], CEILINGS, [timeline]).layers)


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
    pairs = base_and_fastest([cell_roofline(summary, [], CEILINGS) for summary in summarise(records)])
    cells = [(base.summary.cell, fastest.summary.cell) for base, fastest in pairs]
    assert [f"{base.config}>{fastest.config}" for base, fastest in cells] == expected * 2
    assert [(base.batch_size, fastest.batch_size) for base, fastest in cells] == [(4, 4)] * 2 + [(8, 8)] * 2


def profile(device: str, *spans: Span, record: Record | None = None) -> Timeline:
    """Two steps of a second each, the second like the first."""
    later = [replace(span, begin_s=span.begin_s + 1, end_s=span.end_s + 1, step=1) for span in spans]
    phases = ("io", "forward", "backward", "update")
    return Timeline("fp32, batch size 4", device, "It", 4, "cupti", phases, [*spans, *later], record=record)


STEP = Span(0, 1, "host", "step", "step", 0)
PHASES = [
    Span(begin_s, end_s, "host", "phase", name, 0, name)
    for name, begin_s, end_s in (("io", 0, 0.1), ("forward", 0.1, 0.4), ("backward", 0.4, 0.9), ("update", 0.9, 1))
]


def test_the_costliest_parts_of_a_step_are_ranked_with_the_ceiling_that_is_lower_for_each() -> None:
    """The convolution's 121 MFLOP over 3.2 MB lie above the ridge at 5 FLOP per byte; nothing is known of "loss"."""
    layers = [
        Span(0.1, 0.15, "host", "layer", "stem/bn", 0, "forward"),
        Span(0.15, 0.25, "host", "layer", "stem/conv", 0, "forward"),
        Span(0.25, 0.3, "host", "layer", "loss", 0, "forward"),
        Span(0.4, 0.6, "host", "layer", "stem/conv", 0, "backward"),
        Span(0.7, 0.8, "host", "layer", "stem/conv", 0, "backward"),
    ]
    timeline = profile("cpu", STEP, *PHASES, *layers, record=make_record())
    costs = costliest(timeline, CEILINGS)
    first = [(cost.part.phase, cost.part.name) for cost in costs][:3]
    assert first == [("backward", "stem/conv"), ("forward", "stem/conv"), ("io", "io")]
    by_name = {(cost.part.phase, cost.part.name): cost for cost in costs}
    assert [cost.share for cost in costs] == pytest.approx([0.3, 0.1, 0.1, 0.1, 0.05, 0.05])
    assert by_name["forward", "stem/conv"].bound == by_name["backward", "stem/conv"].bound == "arithmetic"
    assert by_name["forward", "stem/bn"].bound == by_name["update", "update"].bound == "memory"
    assert by_name["io", "io"].bound is by_name["forward", "loss"].bound is None
    conv = by_name["forward", "stem/conv"]
    assert conv.of_ceiling == pytest.approx(conv.part.flops / 1e11 / 0.1)
    for unknown in (costliest(timeline, None), costliest(replace(timeline, record=None), CEILINGS)):
        assert [cost.share for cost in unknown] == [cost.share for cost in costs]
        assert {cost.bound for cost in unknown} == {None}


def test_on_a_gpu_the_costliest_are_layers_by_its_own_time_and_kernels_of_none() -> None:
    kernels = [
        Span(0.2, 0.3, "gpu", "kernel", "gemm", 0, "forward", layer="stem/conv"),
        Span(0.3, 0.5, "gpu", "kernel", "gemm", 0, "forward", layer="stem/conv"),
        Span(0.5, 0.6, "gpu", "kernel", "adam", 0, "update"),
        Span(0.1, 0.9, "host", "layer", "stem/conv", 0, "forward"),
    ]
    timeline = profile("cuda:0", STEP, *PHASES, *kernels, record=make_record(cell=make_cell(device="cuda:0")))
    costs = [(cost.part.name, cost.share, cost.bound) for cost in costliest(timeline, CEILINGS) if cost.share]
    assert costs == [("stem/conv", pytest.approx(0.3), "arithmetic"), ("adam", pytest.approx(0.1), None)]


def test_what_a_steps_author_declares_stands_under_the_roof() -> None:
    cell = make_cell(backend="my_step:make", input=Input(kind="own"))
    declared = (DeclaredWork(phase="forward", flops=4e9, bytes=2e9), DeclaredWork(phase="", flops=1e10))
    record = make_record(cell=cell, measurement=make_measurement([0.5] * 12, declared=declared))
    [summary] = summarise([record])
    result = cell_roofline(summary, [record], CEILINGS)
    figures = [(part.name, part.flops, part.bytes) for part in result.phases]
    assert figures == [("forward", 4 * 10**9, 2 * 10**9), ("whole step", 10**10, 2 * 10**9)]
    assert [part.time_s for part in result.phases] == pytest.approx([0.15, 0.5])
    assert (result.layers, summary.gflops_s) == ((), pytest.approx(20))
    [forward] = [cost for cost in costliest(profile("cpu", STEP, *PHASES, record=record), CEILINGS) if cost.bound]
    assert (forward.part.name, forward.bound, forward.of_ceiling) == ("forward", "memory", pytest.approx(0.1 / 0.3))
