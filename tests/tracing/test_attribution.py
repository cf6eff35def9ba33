import msgspec
import pytest
from recordings import MAIN, STEP, TITLE, host, recording

from tcbench.core.recording import Activity, ApiCall, HostSpan
from tcbench.tracing.attribution import assemble


def gpu(timeline):
    return {span.name: span for span in timeline.spans_in("gpu")}


def test_a_kernel_belongs_to_the_phase_that_launched_it_however_late_it_ran():
    conv = gpu(assemble(TITLE, recording(), "cupti"))["conv"]
    assert (conv.step, conv.phase, conv.row) == (5, "forward", 0)
    assert 690e-9 < conv.begin_s < 710e-9  # in backward's time


def test_a_kernel_belongs_to_the_layer_that_launched_it():
    layers = (HostSpan("layer", "stem", 5, "forward", 50, 150), HostSpan("layer", "head", 5, "backward", 400, 515))
    spans = gpu(assemble(TITLE, recording(spans=host() + layers), "cupti"))
    layer_of = {name: spans[name].layer for name in ("conv", "dgrad", "between phases", "of nobody", "jpeg")}
    assert layer_of == {"conv": "stem", "dgrad": "head", "between phases": None, "of nobody": None, "jpeg": None}


def test_launches_of_another_thread_count_on_a_stream_of_the_steps_and_nowhere_else():
    spans = gpu(assemble(TITLE, recording(), "cupti"))
    assert (spans["dgrad"].step, spans["dgrad"].phase) == (5, "backward")
    assert (spans["jpeg"].step, spans["jpeg"].phase, spans["jpeg"].row) == (None, None, 1)


def test_copies_keep_their_bytes_and_calls_stand_on_the_host():
    timeline = assemble(TITLE, recording(), "cupti")
    assert gpu(timeline)["memcpy HtoD"].bytes == 4096
    calls = timeline.spans_in("host", "api")
    assert [(c.name, c.step, c.phase, c.row) for c in calls] == [
        ("cudaLaunchKernel", 5, "forward", 0),
        ("cudaLaunchKernel", 5, "backward", 1),
        ("cudaLaunchKernel", 5, None, 0),
        ("cudaMemcpyAsync", 6, "forward", 0),
    ]


def test_nodes_of_a_graph_belong_to_the_phase_they_were_captured_in_else_to_the_replay():
    activities = (
        Activity("kernel", "known", STEP, 1, 700, 710, None, 41, 3),
        Activity("kernel", "unknown", STEP, 1, 710, 720, None, 42, 3),
        Activity("graph", "graph", STEP, 77, 730, 740),
    )
    calls = (ApiCall("cudaGraphLaunch", MAIN, 1, 950, 960),)
    spans = gpu(assemble(TITLE, recording(activities=activities, calls=calls, graph_phases={41: "update"}), "cupti"))
    phases = {name: span.phase for name, span in spans.items()}
    assert phases == {"known": "update", "unknown": "replay", "graph": "replay"}


def test_the_inputs_work_outside_the_steps_is_left_out_and_zero_is_the_first_begin():
    times = ((0, -500, -100), (1, -100, 50), (0, 2100, 2200))
    work = [Activity("input", "[DALI]", thread, 0, *begin_and_end) for thread, *begin_and_end in times]
    timeline = assemble(TITLE, recording(activities=tuple(work)), "ranges")
    (span,) = timeline.spans_in("io")
    assert (span.row, span.begin_s) == (1, 0.0)
    assert timeline.steps[0].begin_s == pytest.approx(100e-9)
    assert (timeline.label, timeline.batch_size, timeline.phases) == (TITLE.label, 64, ("forward", "backward"))


def test_the_threads_of_a_modelled_input_stand_beside_the_host_and_not_on_the_gpu():
    recorded = recording()
    decoding = [Activity("input", "decoding", 0, 90 + i, begin, begin + 400) for i, begin in enumerate((-500, 300))]
    timeline = assemble(
        TITLE, msgspec.structs.replace(recorded, activities=(*recorded.activities, *decoding)), "simulated"
    )
    (span,) = timeline.spans_in("io")
    assert (span.name, span.kind, span.duration_s) == ("decoding", "work", pytest.approx(400e-9))
    assert len(timeline.spans_in("gpu")) == len(recorded.activities)


def test_streams_of_two_gpus_and_correlations_of_two_processes_are_told_apart():
    calls = (
        ApiCall("cudaLaunchKernel", MAIN, 1, 100, 110),
        ApiCall("cudaLaunchKernel", MAIN + 1, 1, 520, 530, process=2),
    )
    activities = (
        Activity("kernel", "first", STEP, 1, 700, 710),
        Activity("kernel", "second", STEP, 1, 720, 730, device=1, process=2),
    )
    spans = gpu(assemble(TITLE, recording(calls=calls, activities=activities), "cupti"))
    assert (spans["first"].phase, spans["first"].row) == ("forward", 0)
    assert (spans["second"].phase, spans["second"].row) == (None, 1)


def test_a_recording_without_devices_and_processes_is_read():
    written = msgspec.json.encode(["kernel", "conv", STEP, 1, 700, 800])
    activity = msgspec.json.decode(written, type=Activity)
    assert (activity.device, activity.process) == (0, 0)
