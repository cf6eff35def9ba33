"""Bottlenecks: known timelines give exactly the known numbers, any timeline gives numbers that add up."""

import itertools
from dataclasses import astuple, replace

import factories
import pytest
from factories import make_cell, make_measurement, make_measurement_of_ranks, make_rank_part, make_record, remeasured
from hypothesis import given
from hypothesis import strategies as st
from timelines import api, busy_timeline, kernel, make_timeline, phase, step, talk, work

from tcbench.analysis.bottleneck import VERDICTS, StageNeeds, explain_records, explain_timeline
from tcbench.analysis.summary import summarise as cells
from tcbench.core.errors import SelectionError
from tcbench.core.record import PhaseTimes, Record
from tcbench.core.timeline import Span, Timeline
from tcbench.show.bottlenecks import doubt_words, limit_sentence, limit_words


def close(value: float) -> object:
    return pytest.approx(value, abs=1e-9)


# -- a timeline with known gaps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
def test_known_gaps_give_exactly_the_known_busy_share_and_causes(steps: int) -> None:
    bottleneck = explain_timeline(busy_timeline(steps))
    assert bottleneck.steps == steps
    assert bottleneck.step_s == close(0.1)
    assert bottleneck.device.busy_share == close(0.6)
    # 0-20 ms the host reads; 20-30, 50-55 and 95-100 ms it launches late.
    assert bottleneck.device.idle.input_s == close(0.02)
    assert bottleneck.device.idle.launching_s == close(0.02)
    assert bottleneck.device.idle.synchronising_s == 0
    assert bottleneck.device.idle.other_s == close(0)
    assert {p.name: (p.host_s, p.device_s) for p in bottleneck.phases} == {
        "io": (close(0.02), close(0)),
        "forward": (close(0.04), close(0.02)),
        "backward": (close(0.04), close(0.04)),
    }
    assert bottleneck.verdict == "host-bound"
    assert limit_sentence(bottleneck) == "host-bound: host needs 100 ms per step, GPU 60 ms; GPU idle 40%"
    assert bottleneck.io_overlap == 0


def test_the_gaps_are_listed_with_who_was_waited_for() -> None:
    device = explain_timeline(busy_timeline()).device
    assert device.gaps[0].cause == "input"
    assert [(round(g.duration_s, 6), g.cause, g.phase) for g in sorted(device.gaps, key=lambda g: g.begin_s)] == [
        (0.03, "input", "io"),
        (0.005, "launching", "forward"),
        (0.005, "launching", "backward"),
    ]


def test_the_kernels_that_cost_most_come_first_with_their_share() -> None:
    device = explain_timeline(busy_timeline(3)).device
    assert [(k.name, k.per_step, k.time_s, k.share) for k in device.costliest] == [
        ("other", 1, close(0.04), close(2 / 3)),
        ("k", 1, close(0.02), close(1 / 3)),
    ]
    assert (device.kernels_per_step, device.copies_per_step, device.copied_bytes) == (2, 0, None)


def test_kernels_at_the_same_time_count_once_and_copies_with_their_bytes() -> None:
    spans = [kernel(0.1, 0.5), kernel(0.2, 0.4, row=1), kernel(0.3, 0.6, row=2)]
    spans += [Span(0.7, 0.8, "gpu", "copy", "HtoD", 0, "io", 0, 600), Span(0.8, 0.9, "gpu", "memset", "memset", 0)]
    device = explain_timeline(make_timeline(step(0, 0.5), step(0.5, 1, 1), phase("forward", 0, 1), *spans)).device
    assert (device.busy_s, device.kernels_per_step) == (close(0.7), 1.5)
    assert (device.copies_per_step, device.copied_bytes) == (1, 300)


def test_a_gpu_that_lags_behind_the_host_is_followed_to_its_end() -> None:
    bottleneck = explain_timeline(
        make_timeline(step(0, 0.2), phase("forward", 0, 0.2), kernel(0.1, 0.15), kernel(0.15, 1.0))
    )
    assert bottleneck.step_s == close(1.0)
    assert bottleneck.device.busy_share == close(0.9)
    assert bottleneck.verdict == "gpu-bound"
    assert limit_sentence(bottleneck) == "gpu-bound: host needs 200 ms per step, GPU 900 ms; GPU idle 10%"


def test_work_of_other_steps_does_not_count() -> None:
    before, after = kernel(-0.5, -0.2), Span(2.0, 3.0, "gpu", "kernel", "k", 7, "forward")
    bottleneck = explain_timeline(make_timeline(step(0, 1), phase("forward", 0, 1), before, kernel(0.2, 0.4), after))
    assert bottleneck.device.span_s == close(1)
    assert bottleneck.device.busy_s == close(0.2)


def test_waiting_for_the_gpu_is_not_what_the_host_needs() -> None:
    bottleneck = explain_timeline(
        make_timeline(
            step(0, 1),
            phase("forward", 0, 1),
            api("cudaLaunchKernel", 0.0, 0.00001),
            api("cudaMemcpyAsync", 0.1, 0.2),
            api("cudaLaunchKernel", 0.3, 0.4),  # the queue is full
            api("cudaStreamSynchronize_v3020", 0.5, 1.0),
            kernel(0.1, 0.9),
        )
    )
    assert bottleneck.needs.host_s == close(0.4)
    assert bottleneck.waits_for_gpu_s == close(0.6)
    assert bottleneck.device.idle.synchronising_s == close(0.1)
    assert bottleneck.device.idle.launching_s == close(0.1)
    assert bottleneck.verdict == "gpu-bound"


def test_launches_into_a_full_queue_wait_for_a_kernel_each_and_a_long_one_on_an_idle_gpu_for_none() -> None:
    waiting = [api("cudaLaunchKernel", begin, begin + 200e-6) for begin in (0.1 + 0.001 * i for i in range(100))]
    at_once = [api("cudaLaunchKernel", begin, begin + 20e-6) for begin in (0.3 + 0.001 * i for i in range(100))]
    bottleneck = explain_timeline(
        make_timeline(step(0, 1), phase("forward", 0, 1), *waiting, *at_once, kernel(0.05, 1))
    )
    assert bottleneck.waits_for_gpu_s == close(0.02)
    bottleneck = explain_timeline(
        make_timeline(step(0, 1), phase("forward", 0, 1), api("cudaLaunchKernel", 0, 0.5), kernel(0.5, 0.6))
    )
    assert bottleneck.needs.host_s == close(1)


def test_input_in_its_own_thread_overlaps_and_leaves_the_host_waiting() -> None:
    threads = work(0.0, 0.5), work(0.4, 0.9, row=1)
    bottleneck = explain_timeline(
        make_timeline(step(0, 1), phase("io", 0, 0.6), phase("forward", 0.6, 1), *threads, kernel(0.7, 0.9))
    )
    assert bottleneck.needs == StageNeeds(close(0.9), close(0.4), close(0.2), True)  # type: ignore[arg-type]
    assert bottleneck.io_overlap == close(0.3 / 0.9)
    assert bottleneck.waits_for_input_s == close(0.6)
    needs = "input needs 900 ms per step, host 400 ms, GPU 200 ms"
    assert limit_sentence(bottleneck) == f"input-bound: {needs}; GPU idle 80%"


@pytest.mark.parametrize(
    ("io_s", "verdict", "says"),
    [
        (0.2, "host-bound", "compute-bound: the CPU computes 800 ms per step, input takes 200 ms before it"),
        (0.7, "input-bound", "input-bound: input takes 700 ms per step, computation 300 ms, one after the other"),
        (0.5, "balanced", "balanced: the CPU computes 500 ms per step, input takes 500 ms before it"),
    ],
)
def test_on_a_cpu_input_and_computing_are_compared(io_s: float, verdict: str, says: str) -> None:
    bottleneck = explain_timeline(make_timeline(step(0, 1), phase("io", 0, io_s), phase("forward", io_s, 1)))
    assert (bottleneck.verdict, limit_sentence(bottleneck)) == (verdict, says)
    assert bottleneck.device is None
    assert bottleneck.io_overlap == 0
    bottleneck = explain_timeline(
        make_timeline(step(0, 1), phase("io", 0, 0.01), phase("forward", 0.01, 1), work(0.2, 0.7))
    )
    assert (
        limit_sentence(bottleneck) == "compute-bound: the CPU computes 990 ms per step, input needs 500 ms in parallel"
    )
    assert bottleneck.io_overlap == close(1)


def test_the_talks_timelines_read_as_the_talk_reads_them() -> None:
    bottlenecks = {slide: explain_timeline(timeline) for slide, timeline in talk().items()}
    bound_by = {slide: bottleneck.verdict.removesuffix("-bound") for slide, bottleneck in bottlenecks.items()}
    assert bound_by == {"15": "gpu", "17": "host", "22": "host", "28": "host", "32": "gpu"}
    rates = [bottleneck.images_per_s for bottleneck in bottlenecks.values()]
    assert rates == sorted(rates)


def test_a_timeline_without_steps_is_one_clear_line() -> None:
    with pytest.raises(SelectionError, match="this timeline contains no steps; expected the ranges that"):
        explain_timeline(make_timeline(kernel(0, 1)))


# -- any timeline --------------------------------------------------------------------------------------------------

times = st.floats(0, 10, allow_nan=False)


def spans(lane: str, kinds: list[str], names: list[str], **size: int) -> st.SearchStrategy[list[Span]]:
    """Spans of a lane anywhere; a phase is its own cause, and a step takes some time."""

    def make_span(begin: float, took: float, kind: str, name: str, number: int | None, cause: str | None) -> Span:
        cause = name if kind == "phase" else cause
        return Span(begin, begin + took, lane, kind, name, number, cause)  # type: ignore[arg-type]

    took = st.floats(1e-6 if "step" in kinds else 0, 3)
    number, cause = st.none() | st.integers(0, 3), st.sampled_from(["forward", "backward", None])
    any_span = st.builds(make_span, times, took, st.sampled_from(kinds), st.sampled_from(names), number, cause)
    return st.lists(any_span, max_size=8, **size)


PHASES = ["io", "forward", "backward"]
LANES = st.tuples(
    spans("host", ["step"], ["step"], min_size=1),
    spans("host", ["phase"], PHASES),
    spans("host", ["api"], ["cudaLaunchKernel", "cudaStreamSynchronize"]),
    spans("io", ["work"], ["batch"]),
    spans("gpu", ["kernel", "copy"], ["a", "b"]),
)


@given(LANES)
def test_busy_and_idle_make_the_span_and_nothing_is_negative(lanes: tuple[list[Span], ...]) -> None:
    timeline = Timeline("any", "cuda:0", "GPU", 8, "nsys", PHASES, itertools.chain(*lanes))
    bottleneck = explain_timeline(timeline)
    assert bottleneck.verdict in VERDICTS
    assert limit_sentence(bottleneck).startswith(limit_words(bottleneck))
    numbers = [bottleneck.step_s, bottleneck.needs.input_s or 0, bottleneck.needs.host_s, bottleneck.needs.gpu_s or 0]
    numbers += [phase.host_s for phase in bottleneck.phases] + [phase.device_s or 0 for phase in bottleneck.phases]
    assert min([*numbers, bottleneck.waits_for_input_s, bottleneck.waits_for_gpu_s or 0]) >= 0
    assert bottleneck.io_overlap is None or 0 <= bottleneck.io_overlap <= 1 + 1e-9
    device = bottleneck.device
    if device is None:
        return
    idle_s, causes_s = device.span_s - device.busy_s, astuple(device.idle)
    assert min(idle_s + 1e-9, *causes_s) >= 0
    assert sum(causes_s) * bottleneck.steps == pytest.approx(idle_s, abs=1e-9)
    assert sum(gap.duration_s for gap in device.gaps) == pytest.approx(idle_s, abs=1e-9)
    assert device.span_s == pytest.approx(bottleneck.step_s * bottleneck.steps)
    # Work that is there twice changes nothing but counts.
    twice = explain_timeline(replace(timeline, spans=(*timeline.spans, *timeline.spans_in("gpu"))))
    assert (twice.needs, twice.phases, twice.io_overlap) == (bottleneck.needs, bottleneck.phases, bottleneck.io_overlap)
    assert twice.device.busy_s == device.busy_s


@pytest.mark.parametrize(("timed_s", "doubt"), [(0.095, ""), (0.08, "recorded steps take 100 ms, timed steps 80 ms")])
def test_steps_that_recording_made_much_longer_are_said(timed_s: float, doubt: str) -> None:
    recorded = replace(busy_timeline(3), record=make_record(measurement=make_measurement([timed_s] * 12)))
    bottleneck = explain_timeline(recorded)
    assert doubt_words(bottleneck) == doubt
    assert limit_sentence(bottleneck).endswith(f"; doubtful: {doubt}" if doubt else "GPU idle 40%")


# -- records alone -------------------------------------------------------------------------------------------------


def record(step_s: float, device: str = "cpu", prefetch: int = 0, device_s=None, **host_s: float) -> Record:
    phases = tuple(PhaseTimes(name=name, host_s=(s, 2 * s), device_s=device_s) for name, s in host_s.items())
    measurement = make_measurement([step_s] * 12, phases=phases, prefetch_depth=prefetch)
    return make_record(cell=make_cell("fp32", 8, device=device), measurement=measurement)


def test_phases_that_the_timed_steps_tell_add_up_to_the_step_however_it_varies() -> None:
    steps_s = [0.4, 0.1, 0.1, 0.1, 0.1, 0.4]
    phases = tuple(PhaseTimes(name=name, host_s=tuple(s / 2 for s in steps_s[1:])) for name in ("io", "forward"))
    explained = explain_records([make_record(batch_size=8, measurement=make_measurement(steps_s, phases=phases))])
    assert [phase.host_s for phase in explained.phases] == [close(0.08), close(0.08)]  # the medians are 0.05
    assert (explained.step_s, doubt_words(explained)) == (close(0.16), "")
    assert not make_measurement([0.4], phases=phases).phases_are_timed  # no step counts


def test_the_step_of_trials_that_differ_is_that_of_their_geometric_mean_as_in_every_table() -> None:
    trials = [
        make_record(
            batch_size=8,
            trial=trial,
            measurement=make_measurement(
                [step_s] * 12,
                phases=tuple(
                    PhaseTimes(name=name, host_s=(part * step_s,)) for name, part in (("io", 0.25), ("forward", 0.75))
                ),
            ),
        )
        for trial, step_s in enumerate((0.1, 0.4))
    ]
    explained, (cell,) = explain_records(trials), cells(trials)
    assert explained.images_per_s == close(cell.images_per_s.value) == close(40)
    assert [phase.host_s for phase in explained.phases] == [close(0.05), close(0.15)]


@pytest.mark.parametrize(
    ("step_s", "device", "phase_s", "doubt"),
    [
        (0.403, "cpu", 0.368, "phases 552 ms, a step 403 ms"),
        (0.0124, "cpu", 0.0034, "phases 5.1 ms, a step 12 ms"),
        (0.150, "cpu", 0.1, ""),
        (0.150, "cuda:0", 0.01, ""),
        (0.010, "cuda:0", 0.02, "phases 20 ms, a step 10 ms"),
    ],
)
def test_a_profiled_pass_that_is_not_the_timed_ones_is_doubtful(step_s, device, phase_s, doubt) -> None:
    explained = explain_records([record(step_s, device=device, forward=phase_s)])
    assert doubt_words(explained) == doubt
    assert limit_sentence(explained).partition("; doubtful: ")[2] == doubt


@pytest.mark.parametrize(
    ("trials", "long_s", "limit"), [(1, 0.9, "unsettled"), (1, 0.11, "compute"), (2, 0.9, "compute")]
)
def test_one_trial_with_a_few_long_steps_has_no_verdict(trials: int, long_s: float, limit: str) -> None:
    measurement = factories.make_measurement([0.1, 0.1, 0.1, long_s], phases=factories.make_phases({"forward": 0.1}))
    bottleneck = explain_records([factories.make_record(trial=n, measurement=measurement) for n in range(trials)])
    assert limit_words(bottleneck).startswith(limit)
    assert ("one trial: its mean step takes 367 ms, its median step 100 ms" in limit_sentence(bottleneck)) == (
        limit == "unsettled"
    )


def test_a_prefetched_input_is_known_only_when_it_is_waited_for() -> None:
    hidden = explain_records([record(0.15, prefetch=2, io=0.0002, forward=0.1)])
    assert hidden.needs.input_s is None
    assert limit_sentence(hidden) == "compute-bound: the CPU computes 150 ms per step; input is prepared in parallel"
    starved = explain_records([record(0.15, prefetch=2, io=0.05, forward=0.05)])
    assert starved.needs.input_s == close(0.15)
    needs = "input needs 150 ms per step, computation 75 ms"
    assert limit_sentence(starved) == f"input-bound: {needs}; the CPU waits 75 ms for it"


@pytest.mark.parametrize(
    ("prefetch", "io", "forward", "gpu_s", "says"),
    [
        (0, 0.005, 0.034, None, "host-bound: host needs 39 ms per step"),
        (0, 0.03, 0.01, None, "input-bound: host needs 40 ms per step (30 ms of it for input)"),
        (2, 0.001, 0.02, close(0.04), "gpu-bound: host needs 20 ms per step, GPU 40 ms"),
    ],
)
def test_on_a_gpu_the_host_is_to_blame_when_it_fills_the_step_else_the_gpu(prefetch, io, forward, gpu_s, says) -> None:
    explained = explain_records([record(0.04, "cuda:0", prefetch, (0.1, 0.1), io=io, forward=forward)])
    assert (explained.needs.host_s, explained.needs.gpu_s) == (close(forward), gpu_s)
    assert limit_sentence(explained) == f"{says}; a step takes 40 ms"


@pytest.mark.parametrize(
    ("busy_s", "host_s", "says"),
    [
        (0.02, 0.0375, "host-bound: host needs 38 ms per step, GPU 20 ms"),
        (0.039, 0.025, "gpu-bound: host needs 25 ms per step, GPU 39 ms"),
    ],
)
def test_a_host_whose_gpu_is_idle_did_not_wait_for_it_in_any_step(busy_s: float, host_s: float, says: str) -> None:
    """The least of its times would be that of a moment in which the processor was fast."""
    measured = record(0.04, "cuda:0", device_s=(0.025, 0.05), forward=0.025)
    explained = explain_records([remeasured(measured, busy_s=busy_s)])
    assert (explained.needs.host_s, explained.needs.gpu_s) == (close(host_s), close(busy_s))
    assert limit_sentence(explained) == f"{says}; a step takes 40 ms"


@pytest.mark.parametrize(
    ("allreduce", "verdict", "says"),
    [
        (
            0.2,
            "host-bound",
            "the CPU computes 78 ms per step (forward 24 ms, backward 48 ms, update 6.4 ms), "
            "input takes 1.6 ms before it; the all-reduce takes 20 ms",
        ),
        (0.5, "balanced", "the CPU computes 49 ms per step, input takes 1 ms before it; the all-reduce takes 50 ms"),
        (0.6, "network-bound", "the all-reduce takes 60 ms per step, the computation before it 39 ms"),
    ],
)
def test_the_all_reduce_is_a_stage_of_its_own(allreduce: float, verdict: str, says: str) -> None:
    """The exchange takes this share of a CPU's step of 0.1 s."""
    measurement = make_measurement_of_ranks((0.1,) * 12, 2, allreduce=allreduce)
    bottleneck = explain_records([make_record(cell=make_cell(batch_size=8, ranks=2), measurement=measurement)])
    assert (bottleneck.verdict, limit_sentence(bottleneck)) == (verdict, f"{limit_words(bottleneck)}: {says}")
    assert bottleneck.images_per_s == close(160)


def test_on_a_gpu_nccls_kernels_are_the_network_and_no_work_of_the_gpu() -> None:
    names = {"forward": (0.01, 0.03), "backward": (0.01, 0.06), "allreduce": (0.001, 0.2), "update": (0.01, 0.01)}
    phases = tuple(PhaseTimes(name=n, host_s=(host,) * 3, device_s=(gpu,) * 3) for n, (host, gpu) in names.items())
    measurement = make_measurement([0.3] * 12, phases=phases, ranks=(make_rank_part({}, phases=phases),))
    bottleneck = explain_records([make_record(cell=make_cell(ranks=2, device="cuda:0"), measurement=measurement)])
    assert bottleneck.needs.network_s == close(0.2)
    assert bottleneck.needs.gpu_s == close(0.1)
    assert bottleneck.needs.host_s == close(0.031)
    needs = "host needs 31 ms per step, GPU 100 ms, the all-reduce 200 ms"
    assert limit_sentence(bottleneck) == f"network-bound: {needs}; a step takes 300 ms"


def test_in_a_timeline_the_exchange_is_the_longer_of_what_host_and_gpu_do_for_it() -> None:
    forward, allreduce = phase("forward", 0, 0.1), phase("allreduce", 0.1, 0.5)
    launched, nccl = phase("allreduce", 0.1, 0.11), kernel(0.1, 0.5, "allreduce")
    over_nccl = explain_timeline(make_timeline(step(0, 0.5), forward, launched, kernel(0.0, 0.1), nccl))
    over_mpi = explain_timeline(make_timeline(step(0, 0.5), forward, allreduce, kernel(0.0, 0.1)))
    alone = explain_timeline(make_timeline(step(0, 0.5), forward, allreduce))
    for bottleneck, host_s in ((over_nccl, 0.11), (over_mpi, 0.1), (alone, 0.1)):
        assert bottleneck.verdict == "network-bound"
        assert bottleneck.needs.network_s == close(0.4)
        assert bottleneck.needs.host_s == close(host_s)
    assert (over_nccl.needs.gpu_s, over_mpi.needs.gpu_s) == (close(0.1), close(0.1))
