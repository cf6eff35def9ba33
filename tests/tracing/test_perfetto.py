import gzip
import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import TITLE, recording

from tcbench import tracing
from tcbench.core.errors import TraceError
from tcbench.core.recording import Activity
from tcbench.core.timeline import Span, Timeline
from tcbench.tracing import perfetto
from tcbench.tracing.attribution import assemble

RECORDING = recording()
INPUT = Activity("input", "[DALI] TP0", 0, 0, 100, 300)
TIMELINE = assemble(TITLE, msgspec.structs.replace(RECORDING, activities=(*RECORDING.activities, INPUT)), "cupti")

times = st.floats(0, 1e4, allow_nan=False)
spans = st.builds(
    lambda begin, length, lane_kind, name, step, phase, row, n, layer: Span(
        begin, begin + length, *lane_kind, name, step, phase, row, n, layer
    ),
    times,
    st.floats(1e-9, 1e4),
    st.sampled_from([("host", "step"), ("host", "layer"), ("io", "work"), ("gpu", "kernel"), ("gpu", "graph")]),
    st.text(max_size=20),
    st.none() | st.integers(0, 2**40),
    st.none() | st.text(max_size=8),
    st.integers(0, 900),
    st.none() | st.integers(0, 2**50),
    st.none() | st.text(max_size=8),
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
    trace = json.loads(gzip.decompress(path.read_bytes()))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(complete) == 2 * len(TIMELINE.spans)
    for event in complete:
        assert isinstance(event["name"], str) and isinstance(event["args"], dict)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ts"] >= 0 and event["dur"] >= 0
    names = {(e["pid"], e["tid"], e["args"]["name"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {(1, 1, "CPU"), (1, 1001, "input [DALI] TP0"), (2, 2001, "GPU stream 0")} <= names
    assert {e["ph"] for e in trace["traceEvents"]} == {"X", "M"}


def test_spans_of_one_thread_lie_inside_or_beside_each_other(tmp_path):
    """Both viewers require this of complete events."""
    path = tmp_path / "t.json"
    perfetto.write([TIMELINE], path)
    tracks: dict[int, list[tuple[float, float]]] = {}
    for event in json.loads(path.read_bytes())["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for track in tracks.values():
        for a, b in itertools.product(track, repeat=2):
            disjoint = b[1] <= a[0] or b[0] >= a[1]
            assert disjoint or a[0] <= b[0] <= b[1] <= a[1] or b[0] <= a[0] <= a[1] <= b[1]


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
    trace["traceEvents"].append({"name": "x", "ph": "X", "pid": 1, "args": {"lane": "host", "step": 7, **span}})
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
