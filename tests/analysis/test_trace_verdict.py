from dataclasses import replace

import msgspec
import pytest
from training_traces import AUTOGRAD, MAIN, launch, make_trace

from tcbench.analysis.trace_causes import idle_gaps, total_causes
from tcbench.analysis.trace_verdict import BACKWARD, OUTSIDE, is_communication, judge, phase_name
from tcbench.analysis.trace_window import find_window
from tcbench.core.recording import Activity, ApiCall
from tcbench.core.training_trace import Collective


def repeated(n, name="step {}", first_ns=1000, length_ns=1000):
    return [(name.format(k), first_ns + k * length_ns, first_ns + (k + 1) * length_ns - 10) for k in range(n)]


def replace_call(call, **changes):
    return msgspec.structs.replace(call, **changes)


def launches_in(ranges, busy_ns=400):
    return [launch(k + 1, begin + 100, begin + 120, begin + 120 + busy_ns) for k, (_, begin, _) in enumerate(ranges)]


def test_marks_of_the_profiler_are_steps_before_all_other_ranges():
    ranges = [*repeated(2, "ProfilerStep#{}"), *repeated(4, "mine {}", length_ns=500)]
    window = find_window(make_trace(launches_in(repeated(4, length_ns=500)), sorted(ranges, key=lambda r: r[1])))
    assert (window.source, len(window.steps)) == ("profiler", 2)


def test_ranges_that_repeat_and_hold_the_launches_are_steps_whatever_their_number():
    window = find_window(make_trace(launches_in(repeated(4)), [("warm up", 0, 900), *repeated(4)]))
    assert (window.source, window.step_name, len(window.steps)) == ("range", "step N", 4)


@pytest.mark.parametrize("ranges", [repeated(2), repeated(5, length_ns=2000, first_ns=-900)])
def test_ranges_that_seldom_repeat_or_hold_few_launches_are_no_steps(ranges):
    launches = [launch(k, 950 + k * 300, 970 + k * 300, 990 + k * 300) for k in range(1, 21)]
    half = [(name, begin, begin + 900) for name, begin, _ in ranges]
    window = find_window(make_trace(launches, half))
    assert (window.source, window.steps) == ("none", ())
    assert (window.begin_ns, window.end_ns) == (1270, 6990)


def test_updates_of_the_optimizer_part_steps_if_nothing_else_does():
    updates = [("Optimizer.step#SGD.step", 1800 + k * 1000, 1900 + k * 1000) for k in range(4)]
    window = find_window(make_trace(launches_in(repeated(5)), updates))
    assert (window.source, window.steps) == ("optimizer", ((1900, 2900), (2900, 3900), (3900, 4900)))


def test_several_optimizers_are_one_update_a_step():
    ranges = [
        (f"Optimizer.step#{name}.step", 1000 * k + begin, 1000 * k + begin + 400)
        for k in range(6)
        for name, begin in (("Muon", 0), ("AdamW", 500))
    ]
    launches = [launch(k, 500 * k + 10, 500 * k + 30, 500 * k + 400) for k in range(1, 12)]
    window = find_window(make_trace(launches, ranges))
    assert (window.source, [end - begin for begin, end in window.steps]) == ("optimizer", [1000] * 5)


def test_the_window_is_the_gpus_time_and_leaves_out_work_that_was_launched_before():
    earlier = (None, Activity("kernel", "earlier", 7, 99, 500, 1500))
    late = launch(1, 1100, 1500, 4000)
    window = find_window(make_trace([earlier, late], [("ProfilerStep#1", 1000, 2000)]))
    assert (window.begin_ns, window.end_ns, [work.name for work in window.activities]) == (1500, 4000, ["k"])


def test_the_window_is_that_of_the_gpu_with_the_most_work():
    trace = make_trace([launch(1, 0, 20, 100), launch(2, 10, 30, 900, device=1)])
    assert find_window(trace).device == 1
    assert judge(trace).devices == 2


def causes(trace):
    totals = total_causes(idle_gaps(trace, find_window(trace)))
    return {cause: time_ns for cause, time_ns in totals.items() if time_ns}


def test_a_gap_before_work_that_was_launched_in_time_is_dispatch_or_a_wait_for_another_stream():
    first, other = launch(1, 0, 20, 100), launch(3, 40, 130, 200, stream=8)
    assert causes(make_trace([first, launch(2, 30, 110, 300)])) == {"dispatch": 10}
    assert causes(make_trace([first, other])) == {"stream_wait": 30}


def test_the_hosts_time_belongs_to_the_innermost_of_what_it_did():
    trace = make_trace([launch(1, 0, 20, 100), launch(2, 1000, 1015, 1100)], [("enumerate(DataLoader)#x", 300, 500)])
    waits = ApiCall("cudaStreamSynchronize", 1, 0, 50, 150, 1)
    trace = replace(trace, calls=(*trace.calls, waits), operators={MAIN: ((100, 350), (600, 800))})
    expected = {"synchronisation": 50, "operator": 150 + 200, "input": 200, "python": 100 + 200, "launch_call": 15}
    assert causes(trace) == expected


def test_while_the_launching_thread_is_idle_the_other_one_decides():
    trace = make_trace([launch(1, 0, 20, 100), launch(2, 500, 510, 600, thread=AUTOGRAD)])
    assert causes(replace(trace, operators={MAIN: ((0, 300),)})) == {"operator": 200, "python": 200, "launch_call": 10}


def test_among_other_threads_the_one_of_the_steps_decides_first():
    launches = [launch(1, 0, 20, 100), launch(2, 50, 70, 100, thread=(1, 3)), launch(3, 500, 510, 600, thread=AUTOGRAD)]
    waits = ApiCall("cudaStreamSynchronize", 3, 0, 100, 300, 1)
    trace = make_trace(launches, [("ProfilerStep#1", 0, 600)], operators={MAIN: ((100, 300),)})
    shown = causes(replace(trace, calls=(*trace.calls, waits)))
    assert shown == {"operator": 200, "python": 200, "launch_call": 10, "dispatch": 20}


def test_of_ranges_with_the_same_launches_the_longer_ones_are_the_steps():
    both = (("inner", 500), ("step", 900))
    ranges = [(f"{name} {k}", 1000 * k, 1000 * k + length) for k in range(4) for name, length in both]
    window = find_window(make_trace(launches_in([("", 1000 * k, 0) for k in range(4)]), ranges))
    assert window.step_name == "step N"


def test_idle_time_before_work_without_a_launch_is_unknown_and_may_leave_the_verdict_open():
    lost = (None, Activity("kernel", "k", 7, 99, 900, 1000))
    verdict = judge(make_trace([launch(1, 0, 20, 400), lost]))
    assert verdict.causes["unknown"] == 500
    assert verdict.limit == "cannot be told"


def test_a_single_kernel_without_steps_tells_no_limit():
    assert judge(make_trace([launch(1, 0, 20, 100)])).limit == "cannot be told"
    assert judge(make_trace([launch(1, 0, 20, 100), launch(2, 30, 100, 200)])).limit == "gpu-bound"


def test_two_shares_that_nearly_equal_each_other_are_balanced():
    trace = make_trace([launch(1, 0, 0, 100), launch(2, 195, 205, 215)])
    assert (judge(trace).work_ns, judge(trace).limit) == (110, "balanced")


def test_work_that_begins_before_its_launch_leaves_the_verdict_open():
    trace = make_trace([launch(1, 500, 20, 100), launch(2, 1300, 1310, 1400)])
    assert (judge(trace).clocks_differ, judge(trace).limit) == (True, "cannot be told")


def test_a_correlation_of_several_calls_of_a_process_tells_no_launch():
    launches = [launch(1, 0, 20, 100), launch(2, 500, 510, 600)]
    twin = replace_call(launches[1][0], begin_ns=700, end_ns=710)
    trace = make_trace(launches)
    assert judge(replace(trace, calls=(*trace.calls, twin))).causes["unknown"] == 410


def test_the_name_of_the_gpu_is_that_of_the_judged_one():
    launches = [launch(1, 0, 20, 100), launch(2, 10, 20, 900, device=1)]
    assert judge(make_trace(launches, device_names={0: "T4", 1: "H100"})).device_name == "H100"


def test_a_launch_that_blocks_holds_its_work_back_until_it_returns():
    launches = [launch(k, 100 * k, 100 * k + 12, 100 * k + 99) for k in range(1, 9)]
    call, work = launch(9, 890, 4000, 4100)
    trace = make_trace([*launches, (replace_call(call, end_ns=3900), work)])
    assert causes(trace)["launch_call"] - causes(make_trace(launches)).get("launch_call", 0) == 3900 - 899
    assert causes(trace)["dispatch"] == 100


def test_work_that_begins_much_later_than_launched_work_does_waited_for_something_else():
    launches = [launch(k, 100 * k, 100 * k + 20, 100 * k + 40) for k in range(1, 9)]
    late = launch(9, 1000, 5000, 5100)
    assert causes(make_trace([*launches, late]))["dispatch"] == 5000 - (1010 + 5 * 10)


def test_copies_that_return_when_they_are_done_and_copies_without_a_stream_are_synchronisations():
    first, last = launch(1, 0, 20, 100), launch(3, 1000, 1015, 1100)
    call, work = launch(2, 200, 220, 300)
    waiting = replace_call(call, name="cudaMemcpyAsync", end_ns=305)
    trace = make_trace([first, (waiting, msgspec.structs.replace(work, kind="copy")), last])
    blocking = ApiCall("cudaMemcpy", 1, 0, 400, 900, 1)
    assert causes(trace)["synchronisation"] == 5
    assert causes(replace(trace, calls=(*trace.calls, blocking)))["synchronisation"] == 505


def test_the_end_of_the_window_belongs_to_what_the_main_thread_did():
    trace = make_trace([launch(1, 1000, 1020, 1100)], [("ProfilerStep#1", 1000, 2000)])
    waits = ApiCall("cudaDeviceSynchronize", 1, 0, 1050, 1990, 1)
    assert causes(replace(trace, calls=(*trace.calls, waits)))["synchronisation"] == 890


def test_delays_that_outweigh_the_work_leave_the_verdict_open():
    verdict = judge(make_trace([launch(1, 0, 20, 100), launch(2, 30, 9000, 9100)]))
    assert (verdict.causes["dispatch"], verdict.limit) == (8900, "cannot be told")


def test_communication_beside_work_is_hidden_and_alone_it_is_exposed():
    launches = [launch(1, 0, 20, 100), launch(2, 10, 50, 1000, "ncclDevKernel_AllReduce", 20)]
    verdict = judge(make_trace(launches))
    assert (verdict.communication_ns, verdict.exposed_ns, verdict.busy_ns) == (950, 900, 980)
    assert verdict.limit == "network-bound"


def test_communication_beside_recomputation_is_exposed():
    launches = [launch(1, 0, 20, 100), launch(2, 10, 50, 400, "ncclX", 20), launch(3, 200, 220, 600)]
    verdict = judge(make_trace(launches, recomputation={MAIN: ((190, 300),)}))
    assert (verdict.work_ns, verdict.exposed_ns, verdict.recomputation_ns) == (80, 300, 200)


@pytest.mark.parametrize(
    "name", ["ncclKernel_AllReduce_RING_LL", "rcclGenericKernel<1>", "void vllm::cross_device_reduce_1stage"]
)
def test_kernels_of_libraries_for_communication_are_known(name):
    assert is_communication(Activity("kernel", name, 1, 1, 0, 1))


@pytest.mark.parametrize("name", ["ampere_sgemm_128x64", "reduce_kernel<512>", "batched_transpose_16x32"])
def test_other_kernels_are_work(name):
    assert not is_communication(Activity("kernel", name, 1, 1, 0, 1))


def test_the_bus_bandwidth_is_that_of_the_largest_all_reduces():
    launches = [launch(1, 100, 200, 700, "ncclX"), launch(2, 1100, 1200, 2200, "ncclX")]
    small = Collective("allreduce", 1000, 8, MAIN, 90, 120)
    large = Collective("allreduce", 8000, 8, MAIN, 1090, 1120)
    verdict = judge(make_trace(launches, collectives=(small, large)))
    assert verdict.bus_bytes_per_s == pytest.approx(2 * 7 / 8 * 8000 / 1000e-9)
    assert judge(make_trace(launches)).bus_bytes_per_s is None
    later = Collective("allreduce", 9000, 8, MAIN, 1110, 1120)  # does not contain the launch
    assert judge(make_trace(launches, collectives=(small, later))).bus_bytes_per_s == pytest.approx(
        1.75 * 1000 / 500e-9
    )


def test_launches_belong_to_the_outermost_range_of_their_step_else_to_the_backward_thread():
    launches = [
        launch(1, 1100, 1120, 1200),
        launch(2, 1300, 1320, 1400, thread=AUTOGRAD),
        launch(3, 1500, 1520, 1600),
        launch(4, 1700, 1720, 1800),
    ]
    ranges = [("ProfilerStep#1", 1000, 2000), ("## forward ##", 1050, 1250), ("inner", 1090, 1200)]
    trace = make_trace(launches, [*ranges, ("Optimizer.step#SGD.step", 1450, 1650)])
    phases = judge(replace(trace, backward={AUTOGRAD: ((1300, 1310),)})).phases
    assert [(phase.name, phase.launches, phase.work_ns) for phase in phases] == [
        ("forward", 1, 80),
        (BACKWARD, 1, 80),
        ("Optimizer.step", 1, 80),
        (OUTSIDE, 1, 80),
    ]


def test_a_phase_with_a_number_per_step_is_one_phase():
    step = [("ProfilerStep#{}", 0, 990), ("batch {}", 0, 500), ("layer2", 600, 900)]
    ranges = [(name.format(k), 1000 * k + begin, 1000 * k + end) for k in (0, 1) for name, begin, end in step]
    times = [1000 * k + begin for k in (0, 1) for begin in (100, 700)]
    launches = [launch(number, begin, begin + 20, begin + 90) for number, begin in enumerate(times, 1)]
    assert [phase.name for phase in judge(make_trace(launches, ranges)).phases] == ["batch N", "layer2"]


def test_names_of_phases_have_no_decoration():
    names = [
        "## forward:over_arch ##",
        "enumerate(DataLoader)#_Iter.__next__",
        "DistributedDataParallel.forward",
        "###",
    ]
    assert [phase_name(name) for name in names] == ["forward:over_arch", "input", names[2], "###"]


def test_a_trace_without_work_of_a_gpu_has_no_verdict():
    assert judge(make_trace([])) is None
