"""`tcbench explain` on traces of PyTorch's profiler."""

import itertools
import json
import os
import re
from pathlib import Path

import planted_traces
import pytest
from command import tcbench

SCHEMA = Path(__file__).parents[3] / "docs/explain-trace.schema.json"
TRACES = os.environ.get("TCBENCH_TRACES")


def explained(path: Path) -> dict:
    done = tcbench(path.parent, "explain", path.name, "--json")
    assert (done.code, done.err) == (0, "")
    (trace,) = json.loads(done.out)["traces"]
    return trace


def test_the_lines_name_the_limit_the_step_and_shares_that_add_up(tmp_path):
    truth = planted_traces.write(tmp_path / "t.json.gz", 3)
    done = tcbench(tmp_path, "explain", "t.json.gz")
    assert (done.code, done.err) == (0, "")
    title, verdict, steps, *rest = done.out.splitlines()
    assert title.startswith("t.json.gz: ")
    assert verdict.startswith(("gpu-bound: ", "host-bound: ", "input-bound: ", "network-bound: ", "balanced: "))
    assert f"{truth.steps} step" in steps
    table = itertools.takewhile(bool, rest[1:])  # after an empty line
    shares = [float(share) for line in table for share in re.findall(r"([\d.]+)%", line)]
    assert sum(shares) == pytest.approx(100, abs=0.5)


@pytest.mark.parametrize("seed", [3, 5])
def test_the_json_follows_its_schema(tmp_path, seed):
    validation = pytest.importorskip("jsonschema")
    planted_traces.write(tmp_path / "t.json", seed)
    document = json.loads(tcbench(tmp_path, "explain", "t.json", "--json").out)
    validation.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))
    (trace,) = document["traces"]
    assert sum(trace["causes"].values()) == pytest.approx(trace["idle"])
    assert all(0.02 * trace["window_s"] <= each["at_most_s"] <= trace["window_s"] for each in trace["advice"])
    assert trace["busy"] + trace["idle"] == pytest.approx(1)
    assert trace["step_s"] * trace["steps"] == pytest.approx(trace["window_s"])
    times_s = {kernel["name"]: kernel["time_s"] for kernel in trace["kernels"]}
    assert {kernel["kind"] for kernel in trace["kernels"]} <= {"other", "communication", "copy"}
    assert trace["unknown_kernels"] == pytest.approx(times_s["a_kernel"] / sum(times_s.values()))


def test_a_trace_without_work_of_a_gpu_is_refused_with_what_is_missing(tmp_path):
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    events = [operator, operator | {"cat": "cuda_runtime", "name": "cudaLaunchKernel"}]
    (tmp_path / "t.json").write_text(json.dumps(events), encoding="utf-8")
    done = tcbench(tmp_path, "explain", "t.json")
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert "without work of a GPU; record it with activities=" in done.err


def test_a_trace_of_training_on_a_cpu_has_shares_of_operators_and_follows_the_schema(tmp_path):
    validation = pytest.importorskip("jsonschema")
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 100}
    events = [step, step | {"cat": "cpu_op", "name": "aten::add", "ts": 10, "dur": 75}]
    (tmp_path / "t.json").write_text(json.dumps(events), encoding="utf-8")
    title, verdict, steps, *_ = tcbench(tmp_path, "explain", "t.json").out.splitlines()
    assert title == "t.json: CPU"
    assert verdict.startswith(
        "compute-bound: the CPU spends 75.0% of the time in operators, 25.0% of the time in Python"
    )
    assert steps.endswith("1 operator per step")
    document = json.loads(tcbench(tmp_path, "explain", "t.json", "--json").out)
    validation.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert document["traces"][0]["causes"]["python"] == pytest.approx(0.25)


def test_traces_of_several_ranks_name_the_slowest_and_part_waiting_from_transfer(tmp_path):
    validation = pytest.importorskip("jsonschema")
    for rank, late in enumerate([0, 30]):  # all-reduces take 10 µs from the arrival of rank 1 on; the step has 3 of 4
        step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 300}
        starts = [100 * k + late for k in range(4)]
        works = [{"cat": "cpu_op", "name": "aten::add", "ts": ts, "dur": 1} for ts in starts]
        works += [{"cat": "user_annotation", "name": "gloo:all_reduce", "ts": ts, "dur": 40 - late} for ts in starts]
        document = {"traceEvents": [step, *(step | work for work in works)]}
        document["distributedInfo"] = {"rank": rank, "world_size": 4}
        (tmp_path / f"{rank}.json").write_text(json.dumps(document), encoding="utf-8")
    done = tcbench(tmp_path, "explain", "0.json", "1.json")
    assert "rank 1 is the slowest: the other ranks wait 0.09 ms per step (30.0%) longer than it does" in done.out
    assert "Ranks of the group without a trace may arrive last" in done.out
    (tmp_path / "2.json").write_bytes((tmp_path / "1.json").read_bytes())
    assert "names no rank, the rank of another trace" in tcbench(tmp_path, "explain", "0.json", "1.json", "2.json").out
    document = json.loads(tcbench(tmp_path, "explain", "0.json", "1.json", "--json").out)
    validation.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))
    first, second = document["ranks"]["traces"]
    assert (first["waiting_s"], first["transfer_s"], second["waiting_s"]) == pytest.approx((90e-6, 30e-6, 0))
    assert (document["ranks"]["slowest"], second["times_last"]) == (1, 3)


def test_a_trace_above_the_limit_is_refused_with_the_option_that_raises_it(tmp_path):
    planted_traces.write(tmp_path / "t.json", 3)
    with open(tmp_path / "t.json", "ab") as file:
        file.write(b" " * (1 << 20))
    done = tcbench(tmp_path, "explain", "t.json", "--most-mib", "1")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "--most-mib" in done.err


PUBLIC = {  # step in ms, idle, exposed communication, verdict; with the sources of the figures in docs/bottleneck.md
    "v100-5-steps": (96.2, 0.0263, 0, "gpu-bound"),
    "a100-nccl-2-ranks": (222, 0.767, None, "host-bound"),
    "a100-dlrm": (77.5, 0.162, None, "gpu-bound"),
    "a100-alexnet-no-steps": (None, 0.9949, 0, "host-bound"),
    "mi300x-resnet-ddp": (18.8, 0.005, 0.678, "network-bound"),
    "h100-qwen": (None, 0.0856, 0, "gpu-bound"),
    "h100-vit": (None, 0.838, 0, "host-bound"),
}


if TRACES:  # a folder of these traces, which are not in this repository

    @pytest.mark.parametrize("name", PUBLIC)
    def test_public_traces_have_the_reference_figures(name):
        step_ms, idle, exposed, verdict = PUBLIC[name]
        trace = explained(Path(TRACES) / f"{name}.json.gz")
        assert trace["verdict"] == verdict
        assert trace["idle"] == pytest.approx(idle, abs=0.01)
        assert exposed is None or trace["exposed_communication"] == pytest.approx(exposed, abs=0.01)
        assert step_ms is None or trace["step_s"] * 1e3 == pytest.approx(step_ms, abs=1)
        assert trace["causes"]["unknown"] < 0.05 * trace["idle"]


def test_a_folder_without_records_stands_for_its_traces(tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    for seed in (3, 5):
        planted_traces.write(folder / f"host_{seed}.pt.trace.json", seed)
    done = tcbench(tmp_path, "explain", "log", "--json")
    assert [trace["file"] for trace in json.loads(done.out)["traces"]] == [
        "host_3.pt.trace.json",
        "host_5.pt.trace.json",
    ]


def test_json_about_a_trace_and_other_results_is_refused(tmp_path):
    planted_traces.write(tmp_path / "t.json", 3)
    done = tcbench(tmp_path, "explain", "t.json", "run.jsonl", "--json")
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert "run.jsonl: not a trace like t.json" in done.err
