"""Each change saves at most what its formula says, and no two claim the same time."""

import planted_traces
import pytest
from training_traces import AUTOGRAD, MAIN, launch, make_trace

from tcbench.analysis.host_trace import judge_training
from tcbench.analysis.trace_advice import UPDATE_PASSES, UPDATE_RANGE, PeakRates, advise
from tcbench.analysis.trace_verdict import judge
from tcbench.core.recording import ApiCall
from tcbench.core.training_trace import Collective
from tcbench.tracing import kineto

RATES = PeakRates({"fp32": 10.0, "tf32": 40.0, "fp16": 80.0}, memory_bytes_per_s=1e9)
GEMM, RELU, LAYOUT, COPY = "volta_sgemm_128x64_nn", "vectorized_elementwise_kernel", "nchwToNhwcKernel", "ncclX"


def savings(trace, rates=RATES):
    """Return what each change saves at most, in nanoseconds."""
    return {each.change: each.at_most_ns for each in advise(trace, judge(trace), rates)}


def test_input_workers_save_the_wait_for_input():
    launches = [launch(1, 0, 20, 100), launch(2, 600, 620, 700)]
    saved = savings(make_trace(launches, [("enumerate(DataLoader)#x", 150, 550)]))
    assert saved == {"input_workers": 400, "cuda_graphs": 50 + 50 + 20}


def test_fewer_synchronisations_save_the_wait_for_the_gpu():
    waits = ApiCall("cudaDeviceSynchronize", 1, 0, 50, 590, 1)
    trace = make_trace([launch(1, 0, 20, 100), launch(2, 600, 620, 700)])
    assert savings(make_trace([], activities=trace.activities, calls=(*trace.calls, waits))) == {
        "fewer_synchronisations": 490,
        "cuda_graphs": 30,
    }


def test_cuda_graphs_save_the_idle_time_of_late_launches_outside_of_the_update():
    launches = [launch(1, 0, 20, 100, "conv"), launch(2, 300, 310, 400, "conv"), launch(3, 600, 620, 700)]
    trace = make_trace(launches, [("Optimizer.step#SGD.step", 590, 650)])
    assert savings(trace)["cuda_graphs"] == 210


def test_a_fused_optimizer_saves_the_updates_idle_time_and_its_work_above_the_passes_over_the_parameters():
    launches = [launch(1, 0, 20, 100, "conv"), launch(2, 300, 310, 400), launch(3, 600, 620, 720)]
    sizes = [  # bytes, ranks, thread and begin: only the first reduces gradients in the window
        Collective("allreduce", n_bytes, ranks, thread, begin_ns, begin_ns + 10)
        for n_bytes, ranks, thread, begin_ns in (
            (20, 8, AUTOGRAD, 30),
            (500, 2, AUTOGRAD, 50),
            (500, 8, MAIN, 50),
            (500, 8, AUTOGRAD, 5000),
        )
    ]
    trace = make_trace(
        launches,
        [("Optimizer.step#SGD.step", 290, 650)],
        collectives=tuple(sizes),
        ranks=8,
        backward={AUTOGRAD: ((20, 90),)},
    )
    assert savings(trace) == {"fused_optimizer": 210 + 220 + 90 + 100 - UPDATE_PASSES * 20}
    assert savings(trace, None)["fused_optimizer"] == 210 + 220 + 90 + 100


def test_an_optimizer_that_calls_the_whole_step_is_no_update():
    launches = [launch(1, 0, 20, 100, "conv"), launch(2, 300, 310, 400), launch(3, 600, 620, 700)]
    trace = make_trace(launches, [("Optimizer.step#LBFGS.step", 0, 650)], backward={MAIN: ((290, 320),)})
    assert savings(trace) == {"cuda_graphs": 210 + 220}


def test_communication_in_an_update_is_not_its_work():
    launches = [launch(1, 0, 20, 600, COPY), launch(2, 620, 640, 700, "conv")]
    trace = make_trace(launches, [("Optimizer.step#SGD.step", 0, 610)])
    assert savings(trace) == {"overlap_communication": 60, "cuda_graphs": 40}


def test_a_long_pause_of_the_host_is_not_shortened_by_launching_many_kernels_at_once():
    launches = [
        launch(1, 0, 20, 100),
        launch(2, 2_000_090, 2_000_100, 2_000_200),
        launch(3, 2_000_500, 2_000_510, 2_100_000),
    ]
    saved = savings(make_trace(launches, end_ns=3_000_000))
    assert saved == {"host_pauses": 2_000_000}


def test_idle_time_that_no_launch_ended_is_claimed_by_no_change():
    trace = make_trace([launch(1, 1000, 1020, 1100)], [("ProfilerStep#1", 1000, 9000)])
    assert judge(trace).causes["python"] > 0
    assert savings(trace) == {}


def test_a_trace_that_tells_nothing_gives_no_advice():
    assert savings(make_trace([launch(1, 0, 20, 100, RELU)])) == {}
    assert savings(make_trace([launch(1, 50, 20, 100), launch(2, 950, 900, 990)])) == {}


def test_an_update_of_fused_kernels_is_not_asked_to_be_fused():
    fused = (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<2> >(float)"
    )
    trace = make_trace([launch(1, 0, 20, 100, fused)], [("Optimizer.step#SGD.step", 0, 50)])
    assert savings(trace) == {}


def test_low_precision_saves_by_the_published_rates():
    trace = make_trace([launch(1, 0, 20, 820, GEMM), launch(2, 100, 820, 1820, "cutlass_80_tensorop_s1688gemm_x")])
    assert savings(trace) == {"low_precision": 800 * 7 / 8 + 1000 / 2}
    assert savings(trace, None) == {}


@pytest.mark.parametrize(("name", "change"), [(LAYOUT, "channels_last"), (RELU, "fused_elementwise")])
def test_kernels_that_a_change_removes_are_saved_where_nothing_else_runs(name, change):
    trace = make_trace([launch(1, 0, 20, 420, name), launch(2, 10, 320, 820, "conv", stream=8)])
    assert savings(trace) == {change: 300}
    both = make_trace([launch(1, 0, 20, 320, RELU), launch(2, 10, 220, 420, LAYOUT, stream=8)])
    assert savings(both) == {"fused_elementwise": 200, "channels_last": 100}


def test_overlap_saves_at_most_the_work_that_is_free():
    launches = [launch(1, 0, 20, 120, "conv"), launch(2, 10, 100, 900, COPY, 20)]
    assert savings(make_trace(launches)) == {"overlap_communication": 80}
    launches = [launch(1, 0, 20, 900, "conv"), launch(2, 10, 800, 950, COPY, 20)]
    assert savings(make_trace(launches)) == {"overlap_communication": 50}
    launches = [launch(1, 0, 20, 120, RELU), launch(2, 10, 100, 900, COPY, 20)]
    assert savings(make_trace(launches)) == {"fused_elementwise": 80}  # removed work hides nothing


def test_stored_activations_save_the_recomputation():
    trace = make_trace([launch(1, 0, 20, 400, "conv"), launch(2, 200, 400, 600, "conv")])
    assert savings(
        make_trace([], activities=trace.activities, calls=trace.calls, recomputation={MAIN: ((190, 300),)})
    ) == {"keep_activations": 200}


def test_less_than_2_percent_of_the_window_is_no_advice():
    launches = [launch(1, 0, 20, 10_000, "conv"), launch(2, 30, 10_000, 10_190, RELU)]
    assert savings(make_trace(launches)) == {}


@pytest.mark.parametrize("seed", range(20))
def test_no_two_changes_claim_the_same_time(tmp_path, seed):
    planted_traces.write(tmp_path / "t.json", seed)
    trace = kineto.read(tmp_path / "t.json")
    verdict = judge(trace)
    claimed = advise(trace, verdict, RATES)
    assert sum(each.idle_ns for each in claimed) <= verdict.idle_ns
    assert sum(each.work_ns for each in claimed) <= verdict.busy_ns
    assert all(0 <= each.at_most_ns <= each.idle_ns + each.work_ns for each in claimed)


def test_on_a_cpu_the_wait_for_input_the_update_of_each_parameter_and_python_are_saved():
    ranges = [("ProfilerStep#1", 0, 1000), ("enumerate(DataLoader)#x", 0, 200), ("Optimizer.step#SGD.step", 600, 1000)]
    forward, update = (210, 500), [(600 + 5 * k, 604 + 5 * k) for k in range(60)]
    trace = make_trace([], ranges, operators={MAIN: (forward, *update)})
    advice = {each.change: each.at_most_ns for each in advise(trace, judge_training(trace))}
    assert advice == {"input_workers": 200, "fused_optimizer": 400, "compile": 10 + 100}
    fused = make_trace([], ranges, operators={MAIN: (forward, (600, 990))})
    assert "fused_optimizer" not in {each.change for each in advise(fused, judge_training(fused))}
    two_steps = [("ProfilerStep#1", 0, 550), *ranges[1:], ("ProfilerStep#2", 550, 1000)]
    trace = make_trace([], sorted(two_steps, key=lambda r: r[1]), operators={MAIN: (forward, *update)})
    assert "fused_optimizer" not in {each.change for each in advise(trace, judge_training(trace))}  # 30 per step
    pause = [(600 + 5 * k + 3_000_000 * (k > 30), 604 + 5 * k + 3_000_000 * (k > 30)) for k in range(60)]
    long_ranges = [("ProfilerStep#1", 0, 4_000_000), ("Optimizer.step#SGD.step", 600, 4_000_000)]
    paused = make_trace([], long_ranges, operators={MAIN: (forward, *pause)}, end_ns=4_000_000)
    claims = {each.change: each.at_most_ns for each in advise(paused, judge_training(paused))}
    assert claims == {"fused_optimizer": 4_000_000 - 600}  # the pause is the update's
    slow = make_trace([], [("ProfilerStep#1", 0, 9_000_000)], operators={MAIN: (forward,)}, end_ns=9_000_000)
    assert [each.change for each in advise(slow, judge_training(slow))] == ["host_pauses"]


@pytest.mark.parametrize(
    ("name", "updates"),
    [
        ("Optimizer.step#SGD.step", True),
        ("## optimizer ##", True),
        ("update", True),
        ("opt_step", True),
        ("Optimizer.zero_grad#SGD.zero_grad", False),
        ("update_metrics", False),
    ],
)
def test_ranges_of_updates_are_known_by_their_names(name, updates):
    assert bool(UPDATE_RANGE.search(name)) == updates
