"""tools/gpu_check.py: which steps run, what they leave out and what takes their place. The commands of `tcbench` run in
this process on a virtual GPU with trials that end at once; other commands, and the clock, are stand-ins."""

import json
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import gpu_check
import gpu_plan
import pytest
from command import ended
from factories import make_record, remeasured

from tcbench.core import store
from tcbench.core.record import PlanChoice, encode
from tcbench.run.runner import Runner

BATCH_SIZES = (32, 64, 128, 256)


class Machine:
    """A machine on which every step takes `slowness` times the expected time."""

    def __init__(self, folder: Path, slowness: float = 1.0, *, decodes: bool = True) -> None:
        self.folder, self.slowness, self.decodes = folder, slowness, decodes
        self.now_s = 0.0
        self.forecast = gpu_plan.Forecast(gpu_plan.read_records())
        self.commands: list[list[str]] = []
        self.failing = ""

    def call(self, *options: str) -> int:
        with mock.patch.dict("os.environ"):  # which the script changes for its commands
            arguments = [str(self.folder / "out"), "--device", "virtual:H200", *options]
            return gpu_check.main(arguments, self.execute, lambda: self.now_s)

    def execute(self, command, log: Path, limit_s: float) -> str:
        self.commands.append(list(command))
        log.write_text("what it says\n")
        if "-c" in command:
            return "exit code 1" if "import nvidia.dali" in command and not self.decodes else "ok"
        took_s = self.slowness * self.expected_s(log.stem, command)
        self.now_s += min(took_s, limit_s)
        if took_s > limit_s:
            return f"ran out of its {limit_s:.0f} s"
        if command[3] == "run":
            unneeded = "tcbench.run.images.generate", "tcbench.commands.run.command._show_results"
            with mock.patch.object(Runner, "_trial", trial), mock.patch(unneeded[0]), mock.patch(unneeded[1]):
                ended(self.folder, *command[3:], TCBENCH_CACHE=str(self.folder / "cache"))
        return "exit code 3" if log.stem == self.failing else "ok"

    def expected_s(self, name: str, command: list[str]) -> float:
        steps = {step.name: step for step in (*gpu_plan.STEPS, *gpu_check.EVERYTHING)}
        if name not in steps:
            return 1.0
        sizes = map(int, command[command.index("--bs") + 1].split(",")) if "--bs" in command else ()
        return self.forecast.step(replace(steps[name], batch_sizes=tuple(sizes))).total_s

    def records(self):
        return store.read(sorted((self.folder / "out").glob("gpu_check/results/*/*.jsonl"))).records

    def steps(self) -> dict[str, str]:
        """How each step ended, by its name and batch sizes."""
        lines = map(json.loads, (self.folder / "out" / "gpu_check" / "steps.jsonl").read_text().splitlines())
        return {" ".join([line["name"], *map(str, line["sizes"])]): line["words"] for line in lines}

    def cells(self, scenario: str = "naruse2018", data: str = "generated") -> Counter[tuple[str, int]]:
        cells = (record.cell for record in self.records())
        return Counter((c.config, c.batch_size) for c in cells if (c.scenario, c.input.kind) == (scenario, data))


def trial(_runner: Runner, planned, number: int):
    return make_record(cell=planned.cell, trial=number, images_per_s=1000.0)


@pytest.fixture
def machine(tmp_path):
    """Two calls' machine; nothing is a DALI that decodes on a GPU here."""
    return Machine(tmp_path)


def planned_cells(folder: Path) -> Counter[tuple[str, int]]:
    """The cells of the talk's scenario, as --dry-run names them."""
    dry_run = ended(folder, "run", "naruse2018", "--device", "virtual:H200", "--dry-run", "--json")
    return Counter((cell["config"], cell["batch_size"]) for cell in json.loads(dry_run.out)["cells"])


@pytest.mark.long
def test_with_time_for_all_both_calls_leave_a_record_of_every_planned_cell(machine, tmp_path):
    assert machine.call("--call", "1", "--budget", "1000") == 0
    assert machine.cells() == {("fp32", 64): 1, ("fp16", 64): 1}
    best = {(config, size) for config in gpu_plan.BEST_SYNTHETIC for size in BATCH_SIZES}
    assert machine.cells(data="synthetic") == dict.fromkeys(best, 1)
    assert machine.call("--call", "2", "--budget", "1000") == 0
    assert machine.cells() == planned_cells(tmp_path)
    assert len(machine.cells()) == 40
    assert set(machine.cells("peers")) == {(config, size) for config in gpu_plan.TORCH for size in (64, 256)}
    profiled = [command[4] for command in machine.commands if "profile" in command]
    assert profiled == ["fp16+dali", "fp16+dali+batched+nhwc+fused+static_graph"]
    assert {*machine.steps().values()} == {"ok"}
    with tarfile.open(tmp_path / "out" / "gpu_check.tar.gz") as archive:
        names = archive.getnames()
    assert {"gpu_check/steps.jsonl", "gpu_check/logs/dali-fp16.log"} <= {*names}
    assert sum("/results/" in name and name.endswith(".jsonl") for name in names) == 6
    before = len(machine.commands)
    assert machine.call("--call", "2") == 0  # what ran does not run again
    assert all("-c" in command for command in machine.commands[before:])


@pytest.mark.long
def test_where_dali_does_not_decode_other_input_takes_its_place(tmp_path, capsys):
    machine = Machine(tmp_path, decodes=False)
    assert machine.call("--call", "2", "--budget", "2000") == 1
    assert machine.steps()["set-up-dali"] == "exit code 1"
    assert "DALI does not decode here" in capsys.readouterr().out
    below_best = [config for precision in ("fp16", "fp32") for config in gpu_plan.ladder(precision)[:-1]]
    synthetic = {(gpu_plan.with_feed(config, ""), size) for config in below_best for size in BATCH_SIZES}
    assert set(machine.cells(data="synthetic")) == synthetic
    opencv = {f"{precision}+opencv+batched+nhwc+fused+static_graph" for precision in ("fp16", "fp32")}
    assert {config for config, _ in machine.cells()} == {"fp16", "fp32", *opencv}
    assert not any("dali" in config for config, _ in machine.cells("peers"))


@pytest.mark.long
def test_a_slow_first_call_makes_the_second_leave_out_what_stands_last(tmp_path, capsys):
    machine = Machine(tmp_path, slowness=1.3)
    machine.call("--call", "1", "--budget", "400")
    capsys.readouterr()
    machine.now_s, began_s = 1000.0, 1000.0
    assert machine.call("--call", "2") == 1
    assert machine.now_s - began_s <= gpu_plan.LIMIT_S[2]
    output = capsys.readouterr().out
    assert "== steps take 1.30 times the expected time so far; no time for: " in output
    assert "pillow at 32, 128, 256" in output and "not run yet: " in output
    assert "dali-fp16 64 256 128 32" in machine.steps()
    assert {*machine.steps().values()} == {"ok"}  # nothing began that could not end
    assert not any(name.startswith("pillow 32") for name in machine.steps())
    machine.slowness = 1.0
    assert machine.call("--call", "2", "--budget", "5000") == 0  # goes on with the rest
    assert machine.cells()[("fp32", 256)] == machine.cells()[("fp32+dali", 256)] == 1


def test_the_plan_for_an_h200_fits_and_names_what_has_no_time():
    forecast = gpu_plan.Forecast(gpu_plan.read_records())
    chosen = gpu_plan.whole_plan(forecast)
    by_call = {call: sum(forecast.step(p).total_s for _, p in chosen if p and p.call == call) for call in (1, 2)}
    assert by_call[1] < 200 and by_call[2] < 560
    assert sum(by_call.values()) <= 740
    runs = {part.name for _, part in chosen if part and part.kind in ("run", "profile")}
    assert runs == {step.name for step in gpu_plan.STEPS if step.kind in ("run", "profile")}
    page = (gpu_check.ROOT / "docs" / "gpu-offline.md").read_text("utf-8")
    assert gpu_plan.table(forecast) in page, "docs/gpu-offline.md: paste what tools/gpu_plan.py prints"


def test_without_a_call_everything_runs_and_a_step_that_fails_stops_no_other(machine, capsys):
    machine.failing = "beyond"
    with mock.patch.object(machine, "expected_s", lambda *_: 1.0):
        assert machine.call() == 1
    names = [name.partition(" ")[0] for name in machine.steps()]
    assert names[-3:] == ["all-smoke", "all-tests", "torch-tests"]
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed")] == [
        "failed: beyond: exit code 3"
    ]
    tests, torch = [command for command in machine.commands if "pytest" in command]
    assert "tests/engine/accelerators/cuda/test_gpu_ops.py" in tests
    assert torch[-1] == "tests/engine/backends/torch"


def test_a_command_that_fails_or_takes_too_long_is_told(tmp_path):
    log = tmp_path / "log"
    assert gpu_check.run_command([sys.executable, "-c", "print('so'); raise SystemExit(3)"], log, 60) == "exit code 3"
    assert gpu_check.run_command(["sleep", "60"], log, 0.1) == "ran out of its 0 s"
    assert log.read_text() == "so\n"


@pytest.mark.long
def test_a_device_that_cannot_be_used_is_told_and_nothing_runs(tmp_path, capsys):
    with mock.patch.dict("os.environ"):
        assert gpu_check.main([str(tmp_path / "out"), "--device", "cuda:99"]) == 2
    assert capsys.readouterr().err.startswith(
        "gpu_check: nothing was run on cuda:99: tcbench: error: --device cuda:99: "
    )
    assert not list(tmp_path.glob("out/gpu_check/results"))


def test_an_archive_that_would_be_too_large_has_only_the_ends_of_logs(tmp_path, monkeypatch):
    logs = tmp_path / "gpu_check" / "logs"
    logs.mkdir(parents=True)
    (logs / "doctor.log").write_bytes(bytes(range(256)) * 4096)
    monkeypatch.setattr(gpu_check, "MOST_BYTES", 1000)
    gpu_check.pack(tmp_path)
    with tarfile.open(tmp_path / "gpu_check.tar.gz") as archive:
        assert archive.getmember("gpu_check/logs/doctor.log").size == 100_000


def test_carried_plans_are_counted_by_the_trial_that_timed_them(tmp_path, capsys):
    """Later trials take the chosen plans from the cache."""
    check = gpu_check.Check(tmp_path, "cuda:0", 0.0, gpu_check.run_command, lambda: 0.0)
    plans = tuple(
        PlanChoice("norm", "eng1", 0, from_cache, timed=30, choices="digest", ahead=28) for from_cache in (False, True)
    )
    path = check.results / "results" / "machine" / "run.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(remeasured(make_record("fp16"), plans=plans)) + b"\n")
    gpu_check.conclude(check, 1.0)
    assert "carried plans that were timed: 28\n" in capsys.readouterr().out
