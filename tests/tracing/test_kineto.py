import gzip
import json
import random

import planted_traces
import pytest
import timelines

from tcbench import tracing
from tcbench.core.errors import TraceError
from tcbench.tracing import kineto, perfetto


def event(category, name, begin, length, pid=1, tid=1, **arguments):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": begin,
        "dur": length,
        "args": arguments,
    }


def write(path, events, **header):
    path.write_text(json.dumps({**header, "traceEvents": events}), encoding="utf-8")
    return path


SMALL = (
    event("cuda_runtime", "cudaLaunchKernel", 10, 5, correlation=3),
    event("kernel", "k", 20, 30, pid=0, tid=7, device=0, stream=7, correlation=3),
)


def test_times_since_1970_keep_their_nanoseconds(tmp_path):
    text = json.dumps([event("kernel", "k", 0, 1.25, correlation=1)]).replace('"ts": 0', '"ts": 1712195495505583.123')
    (tmp_path / "t.json").write_text(text, encoding="utf-8")
    (activity,) = kineto.read(tmp_path / "t.json").activities
    assert (activity.begin_ns, activity.end_ns) == (1712195495505583123, 1712195495505584373)


def test_words_as_process_are_read_and_gpu_annotations_are_no_ranges(tmp_path):
    spans = [{"ph": "X", "cat": "Trace", "name": "PyTorch", "pid": "Spans", "tid": "x", "ts": 1, "dur": 2}]
    marks = [event("gpu_user_annotation", "ProfilerStep#1", 1, 2), event("user_annotation", "mine", 1, 2, tid="words")]
    trace = kineto.read(write(tmp_path / "t.json", [*spans, *marks, *SMALL], deviceProperties=[{"name": "MI300X"}]))
    assert [each.name for each in trace.ranges] == ["mine"]
    assert trace.device_name == "MI300X"


def test_a_correlation_that_two_processes_use_is_that_of_the_last_call_before_the_work(tmp_path):
    other = event("cuda_runtime", "cudaLaunchKernel", 15, 5, pid=2, correlation=3)
    late = event("cuda_runtime", "cudaLaunchKernel", 60, 5, pid=3, correlation=3)
    (activity,) = kineto.read(write(tmp_path / "t.json", [*SMALL, other, late])).activities
    assert (activity.device, activity.process) == (0, 2)
    (activity,) = kineto.read(write(tmp_path / "t.json", [SMALL[1], late, {**other, "ts": 30}])).activities
    assert activity.process == 2  # the first one after it, if none came before


def test_operators_that_touch_are_two_and_nested_ones_are_one(tmp_path):
    operators = [event("cpu_op", "aten::x", begin, length) for begin, length in ((1, 4), (2, 1), (5, 4), (8, 3))]
    assert kineto.read(write(tmp_path / "t.json", [*SMALL, *operators])).operators == {
        (1, 1): ((1000, 5000), (5000, 11000))
    }


def test_the_size_of_a_collective_is_that_of_its_elements(tmp_path):
    sizes = {"In msg nelems": 6, "Group size": 2, "dtype": "BFloat16", "Collective name": "allreduce"}
    collective = event("cpu_op", "record_param_comms", 1, 2, **sizes)
    assert kineto.read(write(tmp_path / "t.json", [*SMALL, collective], with_stack=0)).collectives[0].bytes == 12
    assert kineto.read(tmp_path / "t.json").overheads == ()


def test_what_was_recorded_besides_times_is_known(tmp_path):
    extra = [event("python_function", "f", 1, 2), event("cpu_op", "aten::add", 1, 2, **{"Input Dims": [[1]]})]
    trace = kineto.read(write(tmp_path / "t.json", [*SMALL, *extra], profile_memory=1))
    assert trace.overheads == ("stacks", "shapes", "memory")


def test_recomputation_is_known_by_pytorchs_function_or_ends_where_the_backward_pass_goes_on(tmp_path):
    function = event("python_function", "torch/utils/checkpoint.py(1500): recompute_fn", 100, 20, tid=2)
    reentrant = event("cpu_op", "CheckpointFunctionBackward", 200, 50, tid=3)
    backward = [event("cpu_op", "autograd::engine::evaluate_function: Mul", ts, 9, tid=3) for ts in (199, 230, 240)]
    trace = kineto.read(write(tmp_path / "t.json", [*SMALL, function, reentrant, *backward]))
    assert trace.recomputation == {(1, 2): ((100_000, 120_000),), (1, 3): ((200_000, 230_000),)}


@pytest.mark.parametrize(
    "sign",
    [
        event("cpu_op", "aten::cudnn_convolution", 1, 2),
        event("user_annotation", "nccl:all_reduce", 1, 2),
        event("mtia_ccp_events", "work", 1, 2),
        event("cuda_runtime", "cudaLaunchKernel", 1, 2),
    ],
    ids=lambda sign: sign["name"],
)
def test_a_trace_without_a_sign_of_an_accelerator_is_of_training_on_the_cpu(tmp_path, sign):
    operators = [event("cpu_op", "aten::mkldnn_convolution", 1, 2), event("user_annotation", "gloo:all_reduce", 1, 2)]
    assert kineto.read(write(tmp_path / "t.json", operators, deviceProperties=[])).is_on_cpu
    assert not kineto.read(write(tmp_path / "t.json", [*operators, sign])).is_on_cpu
    assert not kineto.read(write(tmp_path / "t.json", operators, deviceProperties=[{"name": "V100"}])).is_on_cpu


def test_an_event_that_ends_before_it_begins_is_left_out_and_counted(tmp_path):
    trace = kineto.read(write(tmp_path / "t.json", [*SMALL, event("cpu_op", "x", 5, -3)]))
    assert (trace.invalid_events, len(trace.activities)) == (1, 1)


def test_a_trace_of_tcbench_is_not_foreign(tmp_path):
    perfetto.write([timelines.busy_timeline()], tmp_path / "own.json.gz")
    assert not kineto.is_foreign(tmp_path / "own.json.gz")
    assert kineto.is_foreign(write(tmp_path / "t.json", SMALL))


def refusal(path, most_bytes=1 << 24):
    with pytest.raises(TraceError) as error:
        kineto.read(path, most_bytes)
    text = str(error.value)
    assert text.startswith(str(path)) and "\n" not in text and len(text) < 400
    return text


@pytest.mark.parametrize(
    ("field", "content"),
    [
        ("ts", "soon"),
        ("ts", None),
        ("ts", True),
        ("dur", "NaN"),
        ("ts", "1e99"),
        ("ts", 1 << 70),
        ("args", [1]),
        ("args", 3),
    ],
)
def test_a_damaged_event_is_named(tmp_path, field, content):
    events = [SMALL[0], {**SMALL[1], field: content}]
    path = write(tmp_path / "t.json", events, schemaVersion=1, deviceProperties=[])
    assert "event 1 of the Chrome trace is damaged" in refusal(path)


def test_the_limit_stops_files_that_unpack_without_end(tmp_path):
    path = tmp_path / "t.json.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(json.dumps({"traceEvents": SMALL}).encode()[:-2] + b",")
        for _ in range(20):
            file.write(b" " * (1 << 20))
    assert "more than 8 MiB unpacked; `tcbench explain --most-mib` raises the limit" in refusal(path, 8 << 20)


def test_a_chrome_trace_of_another_program_is_refused_with_what_is_expected(tmp_path):
    assert "without an event of PyTorch's profiler" in refusal(
        write(tmp_path / "t.json", [event("toplevel", "x", 1, 2)])
    )


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.sqlite"])
def test_300_damaged_files_end_with_one_line_or_are_read(tmp_path, name):
    path, dice = tmp_path / name, random.Random(1)
    planted_traces.write(path, 11)
    content = path.read_bytes()[:40_000] if name == "t.json" else path.read_bytes()
    refused = 0
    for number in range(100):
        damaged = bytearray(content)
        if number % 2:
            del damaged[dice.randrange(len(damaged)) :]
        for _ in range(dice.randint(1, 20)):
            place = dice.randrange(len(damaged) or 1)
            damaged[place : place + dice.randint(0, 3)] = bytes(
                dice.choices(b'{}[]",:0-eN\xff\x00\\', k=dice.randint(0, 3))
            )
        path.write_bytes(damaged)
        try:
            tracing.read_training(path, 1 << 24)
        except TraceError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 50


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"a":' * 100_000, b'"' + b"x" * 100_000, b"[1" + b"9" * 9999 + b"]", b"", b"{}", b"[{}]"],
)
def test_hostile_json_ends_with_one_line(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    refusal(path)


def test_other_commands_say_which_command_reads_it(tmp_path):
    path = write(tmp_path / "t.json", SMALL)
    path.write_bytes(path.read_bytes()[:-1])  # the end is not read
    with pytest.raises(TraceError, match="a trace of another program; `tcbench explain` reads"):
        tracing.read(path)
