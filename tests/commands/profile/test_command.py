"""`tcbench profile` as a user meets it."""

import importlib.util
import json
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command import ended, finish, next_step, start, tcbench
from factories import make_cell
from processes import soon
from timelines import crossing, record_in

from tcbench import tracing
from tcbench.commands.profile import command as profile
from tcbench.commands.profile import host, profiler
from tcbench.core.errors import SelectionError
from tcbench.tracing import nsys

CELL = ("profile", "fp32+dali", "cpu", "--bs", "2", "--device", "cpu", "--image-size", "32")


pytestmark = pytest.mark.usefixtures("generated")


@pytest.fixture(autouse=True)
def short_timed_pass(monkeypatch):
    monkeypatch.setattr(profile, "_TIMED_S", 0.3)


def left(folder: Path, suffix: str, kind: str = "profile") -> list[Path]:
    return list(folder.glob(f"results/*/{kind}-fp32+dali-bs2-cpu-*{suffix}"))


@pytest.mark.long
def test_a_profile_leaves_a_trace_a_picture_and_a_summary(tmp_path):
    done = ended(tmp_path, *CELL, "--model", "resnet18", "--tool", "ranges", "--steps", "4")
    (trace,), (picture,), (text,) = (left(tmp_path, suffix) for suffix in (".json.gz", ".png", ".txt"))
    assert picture.read_bytes().startswith(b"\x89PNG")
    summary = text.read_text().strip()
    assert summary.startswith("fp32+dali, batch size 2 on ")
    assert "costliest parts, together " in summary and summary in done.out
    (line,) = [line for line in done.out.splitlines() if line.startswith("wrote ")]
    written = subprocess.run(["bash", "-c", f"ls {line.removeprefix('wrote ')}"], cwd=tmp_path, capture_output=True)
    assert {tmp_path / name for name in written.stdout.decode().splitlines()} == {trace, picture, text}
    assert tcbench(tmp_path, *next_step(done)).code == 0

    (timeline,) = tracing.read(trace)
    record = record_in(trace)
    measured = record.measurement
    assert (timeline.source, timeline.label, timeline.batch_size) == ("ranges", record.cell.label, 2)
    first = measured.warmup_steps + measured.timed_steps
    assert [s.step for s in timeline.steps] == list(range(first, first + 4))
    phases = timeline.spans_in("host", "phase")
    assert [s.name for s in phases] == [phase.name for phase in measured.phases] * 4
    for phase in measured.phases:
        spans = [s.duration_s for s in phases if s.name == phase.name]
        assert spans == pytest.approx(phase.host_s, abs=1e-8)
    assert {"stem/conv", "block8.b/bn", "loss"} <= {s.name for s in timeline.spans_in("host", "layer")}
    assert crossing(trace) == []
    work = timeline.spans_in("io", "work")
    assert all("DALI" in s.name or "Prefetch" in s.name for s in work)
    overlapping = [
        s for s in work if any(p.begin_s < s.end_s and s.begin_s < p.end_s for p in phases if p.name != "io")
    ]
    assert overlapping, "DALI's threads work while the step computes"


@pytest.mark.slow
def test_the_base_configs_input_has_no_threads_of_its_own(tmp_path):
    ended(tmp_path, "profile", "fp32", *CELL[2:], "--tool", "ranges", "-n", "2", "-q")
    (trace,) = tmp_path.glob("results/*/*.json.gz")
    (timeline,) = tracing.read(trace)
    assert not timeline.spans_in("io")
    assert any(s.name == "io" and s.duration_s > 1e-3 for s in timeline.spans_in("host", "phase"))


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py (uv run --extra mpi)")
@pytest.mark.slow
def test_many_ranks_leave_a_timeline_of_each(tmp_path):
    words = shlex.split("--bs 1 --ranks 2 --device cpu --image-size 32 --data synthetic -n 2 -q")
    done = ended(tmp_path, "profile", "fp32", "cpu", *words)
    (trace,) = tmp_path.glob("results/*/profile-fp32-bs1-ranks2-cpu-*.json.gz")
    timelines = tracing.read(trace)
    assert [trace.label for trace in timelines] == [f"fp32, batch size 1, 2 ranks: rank {rank}" for rank in (0, 1)]
    parts = record_in(trace).measurement.ranks
    for timeline, part in zip(timelines, parts, strict=True):
        spans = [s for s in timeline.spans_in("host", "phase") if s.name == "allreduce"]
        assert [s.duration_s for s in spans] == pytest.approx(
            next(phase.host_s for phase in part.phases if phase.name == "allreduce"), abs=1e-8
        )
    assert all(f"2 ranks: rank {rank} on " in done.out for rank in (0, 1))


@pytest.mark.nsys
@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys (Nsight Systems) is not on PATH")
@pytest.mark.slow
def test_with_nsight_systems_the_profiled_steps_come_from_its_report(tmp_path):
    ended(tmp_path, *CELL, "--steps", "3", "--data", "synthetic", "--tool", "nsys")
    (trace,), (report,) = left(tmp_path, ".json.gz"), left(tmp_path, ".nsys-rep")
    (timeline,), measured = tracing.read(trace), record_in(trace).measurement
    assert timeline.source == "nsys"
    assert len(timeline.steps) == 3
    for phase in measured.phases:
        seen = sum(s.duration_s for s in timeline.spans_in("host", "phase") if s.name == phase.name)
        assert seen == pytest.approx(sum(phase.host_s), rel=0.05, abs=1e-3)
    (full_timeline,) = tracing.read(report)
    assert len(full_timeline.steps) == measured.warmup_steps + measured.timed_steps + 3


def test_without_cupti_a_gpu_is_recorded_by_ranges_alone_and_that_is_said(monkeypatch):
    """Only where nothing was asked for: --tool cupti is refused."""
    monkeypatch.setattr(nsys, "find", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    cell = make_cell("fp16", 64, device="cuda:0")
    recorder = profiler.recorder_for("auto", cell)
    assert (recorder.nsys, recorder.inside) == (None, None)
    assert recorder.note.startswith("only ranges, no kernels: cupti-python is not installed: uv sync --extra cuda1")
    assert profiler.recorder_for("ranges", cell).note is None
    with pytest.raises(SelectionError, match="--tool cupti: cupti-python is not installed: uv sync --extra cuda1"):
        profiler.recorder_for("cupti", cell)


def test_unasked_nsight_systems_records_gpus_alone(monkeypatch):
    """Nsight Systems records no more than tcbench's own ranges on a CPU, and makes steps longer."""
    installed = nsys.Nsys("/usr/bin/nsys", (2024, 6))
    monkeypatch.setattr(nsys, "find", lambda: installed)
    recorders = {
        (device, tool): profiler.recorder_for(tool, make_cell("fp32", 4, device=device)).nsys
        for device in ("cpu", "cuda:0")
        for tool in ("auto", "nsys", "ranges")
    }
    with_nsys = [("cpu", "nsys"), ("cuda:0", "auto"), ("cuda:0", "nsys")]
    assert recorders == {request: installed if request in with_nsys else None for request in recorders}


@pytest.fixture
def own_steps(tmp_path):
    """A step of one's own that sleeps, and one that fails: neither loads Chainer."""
    (tmp_path / "my_step.py").write_text(STEP, "utf-8")
    (tmp_path / "own.toml").write_text(SCENARIO, "utf-8")
    return tmp_path


STEP = """
import time
from tcbench import step as own

def open_session(cell):
    if "fails" in cell.rungs:
        raise ValueError("no")
    return own.step(lambda: time.sleep(0.01), loss=lambda: 1.0)
"""

SCENARIO = """
schema = 1
title = "Sleeps"
model.name = "sleeper"
measure.batch_sizes = [2]
config = [
  { backend = "my_step:open_session", rungs = ["sleeps"] },
  { backend = "my_step:open_session", rungs = ["fails"] },
]
"""


def test_a_cell_that_fails_says_why_with_exit_code_3(own_steps):
    done = ended(own_steps, "profile", "fails", "./own.toml", "--device", "cpu", "--tool", "ranges", code=3)
    assert "my_step/fails, batch size 2: failed: ValueError: no" in done.err
    assert "Traceback" not in done.err


@pytest.mark.long
@pytest.mark.parametrize("tool", ["ranges", pytest.param("nsys", marks=[pytest.mark.nsys, pytest.mark.slow])])
def test_ctrl_c_leaves_nothing_running_and_nothing_behind(own_steps, tool):
    if tool == "nsys" and shutil.which("nsys") is None:
        pytest.skip("nsys (Nsight Systems) is not on PATH")
    process = start(own_steps, "profile", "sleeps", "./own.toml", "--device", "cpu", "--tool", tool, "--steps", "10000")
    assert soon(lambda: workers(process.pid), 30)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    done = finish(process, code=130)
    assert "interrupted; nothing was kept" in done.err
    assert soon(lambda: not workers(process.pid), 30)
    assert not list(own_steps.glob("results/*/*"))


def workers(runner: int) -> list[int]:
    """Processes that measure, or profile, for this runner: its keeper, and those that have its session's name."""
    spans = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
        except OSError:
            continue
        is_child = f"keeper.py\0{runner}\0".encode() in words or f"tcbench-{runner}".encode() in words
        if is_child and int(path.name) != runner:
            spans.append(int(path.name))
    return spans


@pytest.mark.skipif(host.find() is None, reason="py-spy is not installed")
@pytest.mark.slow
def test_py_spy_samples_the_functions_of_every_phase(tmp_path, monkeypatch):
    if trouble := host.problem(host.find()):
        pytest.skip(trouble)
    monkeypatch.setattr(profiler, "_LEAST_S", 3.0)
    done = ended(tmp_path, *CELL, "--host")
    (scope,) = left(tmp_path, ".speedscope.json", "host")
    assert f"wrote {scope.relative_to(tmp_path)}" in done.out
    document = json.loads(scope.read_text("utf-8"))
    names = {frame["name"].rpartition(".")[2] for frame in document["shared"]["frames"]}  # py-spy qualifies some
    assert {"profile", "forward", "backward", "update"} <= names
    assert sum(len(profile["samples"]) for profile in document["profiles"]) > 50


@pytest.mark.parametrize("trouble", ["py-spy is not installed: uv sync --extra host", "py-spy may not attach: denied"])
def test_where_py_spy_cannot_be_used_no_trial_is_run(tmp_path, monkeypatch, trouble):
    absent = "not installed" in trouble
    monkeypatch.setattr(host, "find", lambda: None if absent else Path("/x/py-spy"))
    monkeypatch.setattr(host, "problem", lambda _: trouble)
    done = tcbench(tmp_path, *CELL, "--host")
    assert (done.code, trouble in done.err) == (2, True)
