import gzip
import json

import factories
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import TITLE, recording
from timelines import crossing, events_in

from tcbench import tracing
from tcbench.core.errors import TraceError
from tcbench.core.record import GpuFacts
from tcbench.core.recording import Activity, ApiCall
from tcbench.core.timeline import Span, Timeline
from tcbench.tracing import kineto, perfetto
from tcbench.tracing.attribution import assemble

RECORDING = recording()
GPU = GpuFacts(name="V100", compute_capability=(7, 0), multiprocessors=80, memory_bytes=2**34)
INPUT = Activity("input", "[DALI] TP0", 0, 0, 100, 300)
TIMELINE = assemble(TITLE, msgspec.structs.replace(RECORDING, activities=(*RECORDING.activities, INPUT)), "cupti")

times = st.floats(0, 1e4, allow_nan=False)
spans = st.builds(
    lambda begin, length, lane_kind, *fields: Span(begin, begin + length, *lane_kind, *fields),
    times,
    st.floats(1e-9, 1e4),
    st.sampled_from(
        [("host", "step"), ("host", "layer"), ("host", "api"), ("io", "work"), ("gpu", "kernel"), ("gpu", "graph")]
    ),
    st.text(max_size=20),
    st.none() | st.integers(0, 2**40),
    st.none() | st.text(max_size=8),
    st.integers(0, 900),
    st.none() | st.integers(0, 2**50),
    st.none() | st.text(max_size=8),
    st.none() | st.integers(1, 3),
)


@pytest.mark.long
@given(st.lists(st.lists(spans, max_size=12), min_size=1, max_size=3))
def test_timelines_come_back_exactly(tmp_path_factory, many):
    path = tmp_path_factory.mktemp("trace") / "t.json.gz"
    timelines = tuple(Timeline(f"cell {n}", "cpu", "a CPU", 8, "ranges", ["io"], s) for n, s in enumerate(many))
    perfetto.write(timelines, path)
    assert perfetto.read(path) == timelines


def test_the_file_is_in_the_trace_event_format(tmp_path):
    path = tmp_path / "t.json.gz"
    perfetto.write([TIMELINE, TIMELINE], path)
    events = events_in(path)
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == 2 * len(TIMELINE.spans)
    for event in complete:
        assert isinstance(event["name"], str) and isinstance(event["args"], dict)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ts"] >= 0 and event["dur"] >= 0
    names = {(e["pid"], e["tid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert {(10000, 10000, "CPU"), (10000, 11001, "input [DALI] TP0"), (1, 7, "GPU stream 0")} <= names
    assert {e["ph"] for e in events} == {"X", "M", "s", "f"}


def test_readers_of_pytorchs_traces_find_steps_work_and_launches(tmp_path):
    """tcbench's own reader stands for them here. The assertions below it are what each of them needs besides."""
    path, record = tmp_path / "t.json", factories.make_record(environment=factories.make_environment(gpu=GPU))
    perfetto.write([TIMELINE, TIMELINE], path, record)
    trace = kineto.read(path)
    assert trace.device_name == "Tesla V100"
    assert [r.name for r in trace.ranges if r.thread == (20000, 20000)][:2] == ["ProfilerStep#5", "forward"]
    calls = {call.correlation: call for call in trace.calls}
    launched = [(a.device, a.name, calls[a.correlation].begin_ns) for a in trace.activities if a.correlation in calls]
    assert launched[:4] == [(0, "conv", 100), (1, "conv", 100), (0, "dgrad", 500), (1, "dgrad", 500)]
    assert {(call.process, call.correlation >> 24) for call in trace.calls} == {(10000, 1), (20000, 2)}

    content = json.loads(path.read_bytes())
    assert list(content)[:2] == ["schemaVersion", "deviceProperties"]  # HTA may stop at the events
    gpu = {"name": "Tesla V100", "totalGlobalMem": 2**34, "computeMajor": 7, "computeMinor": 0, "numSms": 80}
    assert content["deviceProperties"] == [{"id": 0, **gpu}, {"id": 1, **gpu}]
    events = content["traceEvents"]
    assert not any("dur" in event for event in events if event["ph"] != "X")  # to HTA these would be spans
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    assert len(work) == len(trace.activities) == 12
    for event in work:  # TensorBoard's plugin needs the first, HTA and TraceLens the second
        assert event["pid"] == event["args"]["device"]
        assert event["tid"] == event["args"]["stream"] > 0
    linked = [event for event in work if event["args"].get("correlation") in calls]
    assert min(calls) > 2**16  # HTA stores the indexes of events in an integer as wide as correlations
    ends = {event["id"]: (event["pid"], event["tid"], event["ts"]) for event in events if event["ph"] == "f"}
    assert ends == {e["args"]["correlation"]: (e["pid"], e["tid"], e["ts"]) for e in linked}
    begins = {event["id"]: round(event["ts"] * 1e3) for event in events if event["ph"] == "s"}
    assert begins == {correlation: calls[correlation].begin_ns for correlation in ends}


@pytest.mark.parametrize("host_speed", [1.0, 6.0])
def test_spans_of_one_thread_lie_inside_or_beside_each_other(tmp_path, host_speed):
    """Both viewers require this of complete events. The third thread launches while the second does."""
    calls = (*RECORDING.calls, ApiCall("cudaLaunchKernel", 300, 6, 505, 525))
    activities = (*RECORDING.activities, Activity("kernel", "third", 7, 6, 1310, 1320))
    recorded = msgspec.structs.replace(RECORDING, calls=calls, activities=activities)
    perfetto.write([assemble(TITLE, recorded, "cupti", host_speed)] * 2, tmp_path / "t.json")
    assert crossing(tmp_path / "t.json") == []


def test_traces_of_the_first_version_are_read(tmp_path):
    """There, a process is a timeline and a step is called "step"."""
    facts = {"device": "cuda:0", "device_name": "V100", "batch_size": 8, "source": "cupti", "phases": []}
    step = {"begin_s": 0.0, "end_s": 1.0, "lane": "host", "kind": "step", "step": 3}
    kernel = {"begin_s": 0.5, "end_s": 0.6, "lane": "gpu", "kind": "kernel", "step": 3, "phase": "forward"}
    common = {"pid": 2, "tid": 0, "ts": 0.0, "dur": 0.0, "cat": ""}
    events = [
        {**common, "name": "process_name", "ph": "M", "args": {"name": "fp16 on V100"}},
        {**common, "name": "step", "ph": "X", "tid": 1, "dur": 1e6, "cat": "step", "args": step},
        {**common, "name": "conv", "ph": "X", "tid": 2001, "ts": 5e5, "dur": 1e5, "cat": "kernel", "args": kernel},
    ]
    header = {"schema": 1, "version": "1", "timelines": [{"label": "fp32", **facts}, {"label": "fp16", **facts}]}
    trace = {"traceEvents": events, "otherData": {"tcbench": header}}
    (tmp_path / "t.json").write_text(json.dumps(trace), encoding="utf-8")
    first, second = tracing.read(tmp_path / "t.json")
    assert first.spans == ()
    spans = (Span(0.0, 1.0, "host", "step", "step", 3), Span(0.5, 0.6, "gpu", "kernel", "conv", 3, "forward"))
    assert second.spans == spans


@pytest.mark.parametrize(("schema", "process"), [(1, 0), (1, 2), (2, -1), (2, 1), (2, 20_000)])
def test_a_span_of_a_process_without_a_timeline_is_refused(tmp_path, schema, process):
    path = tmp_path / "t.json"
    perfetto.write([TIMELINE], path)
    trace = json.loads(path.read_bytes())
    trace["otherData"]["tcbench"]["schema"] = schema
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    trace["traceEvents"] = [{**span, "pid": process} for span in spans]
    path.write_text(json.dumps(trace), encoding="utf-8")
    with pytest.raises(TraceError, match="not an unmodified trace"):
        tracing.read(path)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ({"kind": "step", "begin_s": 2.0, "end_s": 2.0}, "step 7 has no length"),
        ({"kind": "phase", "begin_s": 2.0, "end_s": 1.0}, "phase 'x' ends 1 s before it begins"),
    ],
)
def test_a_trace_with_times_that_cannot_be_is_one_line(tmp_path, span, message):
    path = tmp_path / "t.json"
    perfetto.write([TIMELINE], path)
    trace = json.loads(path.read_bytes())
    trace["traceEvents"].append({"name": "x", "ph": "X", "pid": 0, "args": {"lane": "host", "step": 7, **span}})
    path.write_text(json.dumps(trace), encoding="utf-8")
    with pytest.raises(TraceError) as error:
        tracing.read(path)
    assert str(error.value) == f"{path}: {message}"


@pytest.mark.parametrize("name", ["bomb.json.gz", "large.json"])
def test_what_unpacks_to_more_than_any_trace_is_left_unread(tmp_path, monkeypatch, name):
    monkeypatch.setattr(perfetto, "_MOST_BYTES", 2**20)
    path = tmp_path / name
    perfetto.write([TIMELINE], path)
    data = path.read_bytes() if path.suffix == ".json" else gzip.decompress(path.read_bytes())
    for length, read in ((2**20, True), (2**20 + 1, False)):
        padded = data + b" " * (length - len(data))
        path.write_bytes(gzip.compress(padded) if path.suffix == ".gz" else padded)
        if read:
            assert perfetto.read(path) == (TIMELINE,)
        else:
            with pytest.raises(TraceError, match=r"more than 1 MiB.*, so it is not a trace"):
                perfetto.read(path)


def damaged(data: bytes) -> dict[str, tuple[bytes, str]]:
    newer = json.loads(gzip.decompress(data))
    newer["otherData"]["tcbench"]["schema"] = 99
    foreign = {"traceEvents": [{"name": "x", "ph": "X", "pid": 4, "tid": 1, "ts": 0, "dur": 1}]}
    return {
        "cut off": (data[: len(data) // 2], "truncated or damaged"),
        "not JSON": (b"\x00\x01 nonsense", "not a complete trace"),
        "half JSON": (gzip.decompress(data)[:-20], "not a complete trace"),
        "a list": (b"[]", "not a trace that"),
        "foreign": (json.dumps(foreign).encode(), "not one that `tcbench profile` wrote"),
        "newer": (json.dumps(newer).encode(), "newer than this tcbench reads"),
    }


@pytest.mark.parametrize("how", ["cut off", "not JSON", "half JSON", "a list", "foreign", "newer"])
def test_what_is_no_trace_of_ours_gets_one_clear_line(tmp_path, how):
    path = tmp_path / "t.json.gz"
    perfetto.write([TIMELINE], path)
    data, message = damaged(path.read_bytes())[how]
    path.write_bytes(data)
    with pytest.raises(TraceError, match=message) as error:
        perfetto.read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
