"""`tcbench.tracing.training_timeline`: the timeline of a trace of another profiler."""

from dataclasses import replace

from training_traces import AUTOGRAD, MAIN, launch, make_trace

from tcbench.analysis.host_trace import judge_training
from tcbench.core.timeline import COMMUNICATION, WINDOW
from tcbench.core.training_trace import UserRange
from tcbench.tracing.training_timeline import trace_timeline

LAUNCHES = [
    launch(1, 120, 2000, 2100, "void at::conv<float>(int)"),
    launch(2, 320, 2100, 2300, thread=AUTOGRAD),
    launch(3, 360, 2150, 2900, "ncclDevKernel_AllReduce", stream=9, thread=AUTOGRAD),
    launch(4, 520, 2900, 3000),
    launch(5, 620, 3000, 3100),
]
RANGES = [("ProfilerStep#7", 100, 600), ("## forward ##", 110, 200), ("Optimizer.step#SGD.step", 500, 590)]


def timeline_of(trace):
    return trace_timeline(trace, judge_training(trace), "t.json")


def test_work_has_the_step_and_the_phase_that_launched_it_though_the_host_ran_far_ahead():
    ranges = [*RANGES, ("ProfilerStep#8", 600, 700)]
    backward = {AUTOGRAD: ((310, 340), (350, 400))}
    timeline = timeline_of(make_trace(LAUNCHES, ranges, backward=backward, operators=backward, shows_accelerator=True))
    works = [(span.step, span.phase) for span in timeline.spans_in("gpu")]
    assert works == [(7, "forward"), (7, "backward"), (None, COMMUNICATION), (7, "update"), (8, None)]
    phases = [(span.name, round(span.duration_s * 1e9)) for span in timeline.spans_in("host", "phase")]
    assert phases == [("forward", 90), ("backward", 90), ("update", 90)]


def test_a_trace_without_steps_has_one_that_stands_for_the_window_and_no_batch_size():
    timeline = timeline_of(make_trace(LAUNCHES))
    assert [(step.name, round(step.duration_s * 1e9)) for step in timeline.steps] == [(WINDOW, 1100)]
    assert timeline.batch_size == 0


def test_a_cpu_has_no_row_of_a_gpu_and_shows_its_collectives():
    trace = make_trace((), RANGES[:2], operators={MAIN: ((120, 180),)})
    collective = UserRange("gloo:all_reduce", AUTOGRAD, 300, 350)
    timeline = timeline_of(replace(trace, ranges=(*trace.ranges, collective)))
    assert (timeline.device_name, timeline.spans_in("gpu")) == ("CPU", ())
    assert [span.name for span in timeline.spans_in("host", "phase")] == ["forward", COMMUNICATION]
