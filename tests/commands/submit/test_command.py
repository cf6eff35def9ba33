"""`tcbench submit`: with jobs that a test ends as it likes, by submitit's local executor, and on a real Slurm."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import projects
import pytest
import slurm_node
from command import ended, finish, start, tcbench
from factories import make_record, write
from processes import soon

submitit = pytest.importorskip("submitit", reason="submitit is not installed: uv sync --extra slurm")

from tcbench.commands.submit import cluster
from tcbench.core import process, store

THERE = {"a100": frozenset({"a100"}), "h100": frozenset({"h100"})}

SUBMIT = ("submit", "cpu", "--partition", "a100,h100", "--device", "cpu")


class Jobs:
    """A cluster whose jobs end as `ends` says: by exit codes, or never where the state is "running"; what was submitted
    is in `commands`."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.cancelled: list[str] = []
        self.ends: dict[str, int | str] = {}
        self.refuses: set[str] = set()
        self._early: dict[str, str] = {}

    def executor(self, folder, script):
        return SimpleNamespace(
            folder=folder,
            submit=lambda work, words, where: self._submit(folder, words),
            job_class=lambda where, job_id: self._handle(where, job_id),
        )

    def _submit(self, folder: Path, words):
        label = words[words.index("--label") + 1]
        if label in self.refuses:
            raise submitit.core.utils.FailedJobError("sbatch: error: no")
        folder.mkdir(parents=True, exist_ok=True)
        self.commands.append(list(words))
        job_id = str(len(self.commands))
        if isinstance(end := self.ends.get(label), str) and end != "running":
            self._early[job_id] = end
        return self._handle(folder, job_id)

    def _handle(self, folder: Path, job_id: str):
        label = folder.name.rpartition("_")[2]
        end = self._early.get(job_id, self.ends.get(label, 0))
        if end != "running" and isinstance(end, int):
            (folder / f"{job_id}_exit_code").write_text(str(end))
        return SimpleNamespace(
            job_id=job_id,
            state=end.upper() if isinstance(end, str) else "COMPLETED",
            paths=SimpleNamespace(stdout=folder / f"{job_id}_0_log.out"),
            done=lambda: end != "running",
            cancel=lambda check: self.cancelled.append(job_id),
        )


@pytest.fixture
def jobs(monkeypatch):
    stand_in = Jobs()
    monkeypatch.setattr(cluster, "gpus_by_partition", lambda: THERE)
    monkeypatch.setattr(cluster, "executor", stand_in.executor)
    monkeypatch.setattr(cluster, "_POLL_S", 0.001)
    return stand_in


def test_each_job_runs_the_same_options_under_a_label_of_its_own(jobs, tmp_path):
    selection = "--config fp32,fp16 --config fp32+nhwc --bs 4,8 --budget 2m --trials 2 --seed 0 --fresh-autotune"
    done = ended(tmp_path, *SUBMIT, *selection.split())
    options = shlex.split("--bs 4,8 --config fp32,fp16,fp32+nhwc --device cpu --trials 2 --budget 120 --fresh-autotune")
    assert jobs.commands == [
        ["run", "cpu", *options, "--out", str(tmp_path / "results"), "--label", name] for name in ("a100", "h100")
    ]
    assert "a100: job 1 has finished\nh100: job 2 has finished\n" in done.err


def test_a_dry_run_shows_the_scripts_and_submits_nothing(jobs, tmp_path):
    done = ended(tmp_path, *SUBMIT, "--dry-run")
    assert re.findall("# tcbench run cpu .* --label (.*)", done.out) == ["a100", "h100"]
    assert jobs.commands == []
    assert not (tmp_path / "results").exists()


def test_a_dry_run_needs_no_slurm_and_takes_partitions_and_gpus_as_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)  # it is not installed
    done = tcbench(tmp_path, *SUBMIT[:-1], "auto", "--gpu", "h200", "--dry-run", PATH=str(tmp_path))
    assert (done.code, done.err) == (0, "note: no sbatch here: partitions and GPUs are not checked\n")
    for line in ("--partition=a100", "--partition=h100", "--gpus-per-node=h200:1"):
        assert f"#SBATCH {line}\n" in done.out


@pytest.mark.parametrize("allowed", [(), ("--allow", "code")])
def test_resume_submits_only_what_has_not_come_to_its_end(jobs, tmp_path, allowed):
    jobs.ends = {"h100": "timeout"}
    first = ended(tmp_path, *SUBMIT, code=3)
    assert re.search(r"h100: job 2 has ended early \(timeout\); its log: .*/2_0_log.out\n", first.err)
    assert first.out == f"Next: tcbench {' '.join(SUBMIT)} --resume   (runs what failed again)\n"
    jobs.ends = {}
    second = ended(tmp_path, *SUBMIT, "--resume", *allowed)
    assert "a100: nothing is missing: job 1 has finished\nh100: job 3 has finished\n" in second.err
    assert jobs.commands[2:] == [[*jobs.commands[1], "--resume", *allowed]]
    third = tcbench(tmp_path, *SUBMIT, "--resume", *allowed)
    assert (third.code, len(jobs.commands)) == (0, 3)


def test_resume_with_more_to_run_submits_again(jobs, tmp_path):
    tcbench(tmp_path, *SUBMIT)
    assert tcbench(tmp_path, *SUBMIT, "--trials", "3", "--resume").code == 0
    assert len(jobs.commands) == 4


def test_a_job_that_failed_makes_the_exit_code_of_run_and_says_where_its_log_is(jobs, tmp_path, monkeypatch):
    jobs.ends = {"a100": 3}
    monkeypatch.setattr(cluster.Job, "last_line", "2 cells failed")
    done = ended(tmp_path, *SUBMIT, "--quiet", code=3)
    assert re.fullmatch(r"a100: job 1 has ended with exit code 3: 2 cells failed; its log: .*/1_0_log.out\n", done.err)


def test_an_interrupt_leaves_the_jobs_and_says_how_to_go_on_and_how_to_end_them(jobs, tmp_path, monkeypatch):
    jobs.ends = {"a100": "running", "h100": "running"}

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster.time, "sleep", interrupted)
    done = ended(tmp_path, *SUBMIT, code=130)
    assert done.err.endswith(
        "interrupted; the jobs continue; follow them with: tcbench submit cpu --partition a100,h100 --device cpu "
        "--resume; cancel them with: scancel 1 2\n"
    )
    assert jobs.cancelled == []
    jobs.ends = {}
    after = tcbench(tmp_path, *SUBMIT, "--resume")
    assert (after.code, len(jobs.commands)) == (0, 2)


def test_another_command_does_not_follow_a_job_that_still_runs(jobs, tmp_path, monkeypatch):
    jobs.ends = {"a100": "running", "h100": "running"}
    monkeypatch.setattr("tcbench.commands.submit.command._follow", lambda *_: False)
    tcbench(tmp_path, *SUBMIT)
    done = tcbench(tmp_path, *SUBMIT, "--bs", "4", "--resume")
    message = "a100: job 1 still runs `tcbench run cpu .*; wait until it ends, or cancel it with: scancel 1"
    assert (done.code, bool(re.search(message, done.err))) == (2, True)


def test_where_the_cluster_refuses_one_job_none_is_left(jobs, tmp_path):
    jobs.refuses = {"h100"}
    done = tcbench(tmp_path, *SUBMIT)
    assert (done.code, done.err) == (2, "tcbench: error: h100: sbatch: error: no\n")
    assert jobs.cancelled == ["1"]


def test_records_of_an_older_run_are_not_the_jobs(jobs, tmp_path):
    old = store.new_path(tmp_path / "results", "box", "cpu", "_a100")
    write(old, make_record())
    os.utime(old, (1e9, 1e9))
    assert "records" not in tcbench(tmp_path, *SUBMIT).err
    os.utime(old, (4e9, 4e9))
    assert f"a100: job 3 has finished, 1 record in {old.relative_to(tmp_path)}\n" in tcbench(tmp_path, *SUBMIT).err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["submit"], "Missing argument 'SCENARIO'"),
        (["submit", "cpu"], "expected --partition or --gpu; this cluster has the partitions a100, h100"),
        (["submit", "nope", "--partition", "a100"], "scenario 'nope'"),
        (["submit", "cpu", "--partition", "a100,"], "--partition 'a100,': expected names with commas between them"),
        ([*SUBMIT, "--config", "fp17"], "config 'fp17': unknown; did you mean 'fp16'?"),
        ([*SUBMIT, "--device", "tpu"], "device tpu: expected auto, cpu"),
        ([*SUBMIT, "--sbatch", "Account"], "--sbatch 'Account': expected an option of sbatch, such as account=me"),
        ([*SUBMIT, "--sbatch", "array=0-3"], "--sbatch array: tcbench sets this option itself"),
        ([*SUBMIT, "--sbatch", "signal=B:USR1@30"], "--sbatch signal: a signal before the time limit would kill"),
        ([*SUBMIT, "--launcher", "foo"], "--launcher 'foo': expected mpirun, srun or a command line with {n}"),
        (["submit", "cpu", "--gpu", "a100", "--device", "cpu"], "--gpu a100 with --device cpu: expected --partition"),
        ([*SUBMIT, "--label", "x"], "No such option: --label"),
    ],
)
def test_bad_input_is_one_line_and_submits_nothing(jobs, tmp_path, words, message):
    done = ended(tmp_path, *words, code=2)
    assert done.err.startswith("tcbench: error: ")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert jobs.commands == []


def test_without_submitit_the_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("tcbench.engine.rung.Package.is_installed", lambda package: package.module != "submitit")
    done = tcbench(tmp_path, *SUBMIT)
    assert (done.code, done.err) == (2, "tcbench: error: submit needs the package submitit: uv sync --extra slurm\n")


def test_without_slurm_the_line_says_so(tmp_path):
    done = tcbench(tmp_path, *SUBMIT, PATH=str(tmp_path))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "sbatch not found: expected Slurm's commands on PATH, as on a cluster's login node" in done.err


@pytest.mark.parametrize("restarts", [None, "1"])
def test_a_jobs_work_leaves_its_exit_code_and_goes_on_where_slurm_starts_it_again(tmp_path, monkeypatch, restarts):
    called = []
    monkeypatch.setattr(process, "run", lambda words, **_: called.append(words) or 3)
    monkeypatch.setattr(submitit, "JobEnvironment", lambda: SimpleNamespace(job_id="7"))
    monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=None))
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts) if restarts else None
    assert cluster.run_job(["run", "cpu"], str(tmp_path)) == 3
    assert called[0][1:] == ["-P", "-m", "tcbench", "run", "cpu", *(["--resume"] if restarts else [])]
    assert (tmp_path / "7_exit_code").read_text() == "3"


def test_a_job_whose_tcbench_was_killed_has_not_come_to_its_end(tmp_path, monkeypatch):
    """Kills like Slurm at the time limit, which does not get to submitit's process at once."""
    monkeypatch.setattr(process, "run", lambda words, **_: -9)
    monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=None))
    with pytest.raises(RuntimeError, match=r"^tcbench was killed by signal 9$"):
        cluster.run_job(["run", "cpu"], str(tmp_path))
    assert not list(tmp_path.iterdir())


def sleeper(folder: Path) -> tuple[str, ...]:
    """A scenario of two cells that hardly compute, in a folder, and the words that submit it."""
    (folder / "my_step.py").write_text(projects.STEP)
    (folder / "sleeper.toml").write_text(projects.SCENARIO)
    return ("submit", "./sleeper.toml", "--partition", "a100,h100", "--device", "cpu", "--trials", "2")


def records(folder: Path, label: str) -> list[tuple[str, int, str]]:
    """Config, trial and status of each record of the runs with a label."""
    paths = sorted((folder / "results").glob(f"*/sleeper-*_{label}.jsonl"))
    assert len(paths) == 1
    return [(record.cell.config, record.trial, record.status) for record in store.read(paths).records]


ALL = [(f"my_step/{rung}", trial, "ok") for trial in (0, 1) for rung in ("deep", "flat")]


class Serial(submitit.LocalExecutor):
    """submitit's local executor, which has no queue: a job after the other."""

    def submit(self, function, *arguments):
        job = super().submit(function, *arguments)
        job.wait()
        return job


@pytest.mark.slow
def test_jobs_by_submitits_local_executor_leave_their_records_and_resume(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "gpus_by_partition", lambda: THERE)

    def local(folder, script):
        executor = Serial(folder)
        executor.update_parameters(timeout_min=5, stderr_to_stdout=True)
        return executor

    monkeypatch.setattr(cluster, "executor", local)
    words = sleeper(tmp_path)
    ended(tmp_path, *words)
    assert [records(tmp_path, label) for label in ("a100", "h100")] == [ALL, ALL]
    (h100,) = (tmp_path / "results").glob("*/*_h100.jsonl")
    lines = h100.read_bytes().splitlines(keepends=True)[:3]
    h100.write_bytes(b"".join(lines))  # as if it had ended early
    for path in (tmp_path / "results" / cluster.FOLDER / "sleeper_h100").glob("*_exit_code"):
        path.unlink()
    again = ended(tmp_path, *words, "--resume")
    assert "a100: nothing is missing" in again.err
    assert records(tmp_path, "h100") == ALL
    assert h100.read_bytes().splitlines(keepends=True)[:3] == lines


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A cluster of this one machine."""
    if (reason := slurm_node.why_not()) is not None:
        pytest.skip(reason)
    with slurm_node.running(tmp_path_factory.mktemp("slurm") / "node") as conf:
        yield {"SLURM_CONF": str(conf)}


@pytest.mark.slow
def test_on_a_real_slurm_one_job_is_cancelled_and_resumed_while_the_other_goes_on(slurm, tmp_path):
    words = sleeper(tmp_path)
    submitting = start(tmp_path, *words, environment=slurm)
    assert soon(lambda: len([*tmp_path.glob("results/*/*.jsonl")]) == 2 and records(tmp_path, "h100"), 600)
    submitting.send_signal(signal.SIGINT)
    interrupted = finish(submitting, code=130)
    a100, h100 = re.search(r"scancel (\d+) (\d+)\n$", interrupted.err).groups()
    subprocess.run(["scancel", h100], env={**os.environ, **slurm}, check=True)
    measured = records(tmp_path, "h100")
    assert 0 < len(measured) < 4
    resumed = finish(start(tmp_path, *words, "--resume", environment=slurm), code=0)
    assert f"a100: job {a100} has finished, 4 records in results/" in resumed.err
    new = re.search(r"h100: job (\d+) has finished, 4 records in results/", resumed.err)[1]
    assert new not in (a100, h100)
    assert records(tmp_path, "a100") == ALL
    assert records(tmp_path, "h100") == ALL
    nothing = finish(start(tmp_path, *words, "--resume", environment=slurm), code=0)
    assert nothing.err.count("nothing is missing") == 2


@pytest.mark.slow
def test_on_a_real_slurm_a_job_that_is_cancelled_in_the_queue_ends_early(slurm, tmp_path):
    words = (*sleeper(tmp_path), "--sbatch", "begin=now+1hour", "--gpu", "h100", "--device", "auto")
    submitting = start(tmp_path, *words, environment=slurm)
    assert soon(lambda: len([*tmp_path.rglob("job.json")]) >= 2, 600)
    ids = [json.loads(path.read_bytes())["job_id"] for path in tmp_path.rglob("job.json")]
    subprocess.run(["scancel", *ids], env={**os.environ, **slurm}, check=True)
    done = finish(submitting, code=3)
    assert re.search(r"a100-h100: job \d+ has ended early \(cancelled\)", done.err)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--sbatch", "mem=9999G"), "a100: sbatch: error: "),
        (("--partition", "v100"), "--partition v100: no such partition; did you mean 'h100'"),
    ],
)
def test_what_a_real_slurm_refuses_is_one_line(slurm, tmp_path, option, message):
    done = finish(start(tmp_path, *sleeper(tmp_path), *option, environment=slurm), code=2)
    assert re.search(message, done.err)
    assert done.err.count("\n") == 1
