"""The jobs of a cluster, their scripts, and their ends as squeue reports them; Slurm itself has stand-ins."""

import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import projects
import pytest

from tcbench.commands.submit import cluster
from tcbench.commands.submit.cluster import Request, Target
from tcbench.core.errors import ClusterError

THERE = {
    "a100": frozenset({"a100"}),
    "mixed": frozenset({"v100", "h100"}),
    "plain": frozenset(),
    "old": frozenset({""}),
}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Commands by Slurm's names on PATH, which print what the test writes; none of the system's."""
    monkeypatch.setenv("PATH", f"{tmp_path}/slurm:/usr/bin:/bin")

    def command(name: str, prints: str = "", code: int = 0, says: str = "") -> None:
        output = f"printf '%s' {shlex.quote(prints)}; printf '%s' {shlex.quote(says)} >&2"
        projects.interpreter(tmp_path / "slurm" / name, output, f"exit {code}")

    for name in ("sbatch", "srun", "sinfo", "squeue", "scancel"):
        command(name)
    return command


def test_the_gpus_of_each_partition_are_slurms(slurm):
    sinfo = "a100|gpu:a100:4(S:0-1)\nmixed|gpu:v100:2,gpu:h100:8\nmixed|(null)\nplain|(null)\nold|gpu:4,nvme:1\n"
    slurm("sinfo", sinfo)
    assert cluster.gpus_by_partition() == THERE


def test_a_machine_without_slurm_and_one_whose_controller_is_silent_are_clear_lines(slurm, monkeypatch, tmp_path):
    slurm("sinfo", code=1, says="slurm_load_partitions: Unable to contact slurm controller")
    with pytest.raises(ClusterError, match=r"^sinfo: slurm_load_partitions: Unable to contact"):
        cluster.gpus_by_partition()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"^sbatch not found: expected Slurm's commands on PATH"):
        cluster.gpus_by_partition()


@pytest.mark.parametrize(
    ("partitions", "types", "names"),
    [
        (["a100", "plain"], [], ["a100", "plain"]),
        (["mixed"], ["v100", "h100"], ["mixed-v100", "mixed-h100"]),
        ([], ["a100", "h100"], ["a100", "h100"]),
        (["a100", "a100"], [], ["a100"]),
    ],
)
def test_there_is_a_job_for_each_partition_and_type_of_gpu(partitions, types, names):
    assert [target.name for target in cluster.targets(partitions, types, THERE)] == names


@pytest.mark.parametrize(
    ("partitions", "types", "message"),
    [
        ([], [], "expected --partition or --gpu; this cluster has the partitions a100, mixed, plain, old"),
        (["a10"], [], "--partition a10: no such partition; did you mean 'a100'?"),
        (["mixed"], ["h10"], "--gpu h10: partition mixed has no such GPU; did you mean 'h100'?"),
        (["old"], ["a100"], "--gpu a100: partition old has no such GPU, nor any GPU with a type"),
        ([], ["tpu"], "--gpu tpu: this cluster has no such GPU; expected one of a100, h100, v100"),
    ],
)
def test_what_the_cluster_does_not_have_is_one_line(partitions, types, message):
    with pytest.raises(ClusterError) as error:
        cluster.targets(partitions, types, THERE)
    assert str(error.value) == message


def script(target: Target, request: Request, folder: Path) -> list[str]:
    return cluster.job_script(target, "cpu", ["run", "cpu", "--bs", "4"], folder, request, THERE).splitlines()


@pytest.fixture
def with_submitit(slurm):
    """tcbench.commands.submit.slurm, whose jobs ask the commands of `slurm`."""
    pytest.importorskip("submitit", reason="submitit is not installed: uv sync --extra slurm")
    from tcbench.commands.submit import slurm as module

    module.Slurm.job_class.watcher.clear()
    return module


def test_a_script_says_what_it_runs_and_asks_for_a_gpu_for_each_rank(tmp_path):
    lines = script(Target("mixed", "h100"), Request(90, 4, True, {"account": "me", "exclusive": True}), tmp_path)
    expected = ["--partition=mixed", "--gpus-per-node=h100:4", "--ntasks-per-node=4", "--nodes=1", "--time=90"]
    assert {f"#SBATCH {option}" for option in [*expected, "--account=me", "--exclusive"]} <= set(lines)
    assert "# tcbench run cpu --bs 4" in lines
    assert not [line for line in lines if "--signal" in line]  # it would kill the ranks of a trial
    assert lines[-1] == f"{shlex.quote(sys.executable)} -P -u -m submitit.core._submit {tmp_path}"


@pytest.mark.parametrize(
    ("target", "on_gpus", "asks"),
    [
        (Target("a100", None), True, ["#SBATCH --gpus-per-node=2"]),
        (Target("plain", None), True, []),
        (Target("a100", None), False, []),
        (Target(None, "h100"), True, ["#SBATCH --gpus-per-node=h100:2"]),
    ],
)
def test_gpus_are_asked_for_where_there_are_some_and_the_run_takes_them(tmp_path, target, on_gpus, asks):
    lines = script(target, Request(1, 2, on_gpus, {}), tmp_path)
    assert [line for line in lines if "--gpus" in line] == asks


def test_ranks_and_their_gpus_are_spread_evenly_over_several_nodes(tmp_path):
    lines = script(Target("mixed", "h100"), Request(90, 8, True, {"nodes": "2"}), tmp_path)
    expected = {"--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=h100:4"}
    assert {line.removeprefix("#SBATCH ") for line in lines if "node" in line} >= expected
    assert not [line for line in lines if line.startswith(("#SBATCH --gpus=", "#SBATCH --ntasks="))]


@pytest.mark.parametrize(
    ("ranks", "nodes", "message"),
    [
        (3, "2", "--sbatch nodes=2: 3 ranks cannot be split evenly; expected a number of nodes that divides 3"),
        (4, "1-2", "--sbatch nodes=1-2: expected a single number: ranks and GPUs are requested per node"),
        (4, "0", "--sbatch nodes=0: expected a single number: ranks and GPUs are requested per node"),
        (4, True, "--sbatch nodes=True: expected a single number: ranks and GPUs are requested per node"),
    ],
)
def test_ranks_that_cannot_be_spread_evenly_are_one_line(tmp_path, ranks, nodes, message):
    with pytest.raises(ClusterError) as error:
        script(Target("mixed", None), Request(1, ranks, True, {"nodes": nodes}), tmp_path)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("user_options", "left_out"),
    [({"gpus": "4", "ntasks": "2"}, ("--gpus-per-node", "--ntasks-per-node")), ({"gres": "gpu:4"}, ("--gpus",))],
)
def test_the_users_options_go_before_ours(tmp_path, user_options, left_out):
    lines = script(Target("a100", None), Request(1, 8, True, {**user_options, "time": "2:00:00"}), tmp_path)
    assert {f"#SBATCH --{name}={value}" for name, value in user_options.items()} | {"#SBATCH --time=2:00:00"} <= set(
        lines
    )
    assert "#SBATCH --time=1" not in lines
    assert not [line for line in lines if line.startswith(tuple(f"#SBATCH {name}" for name in left_out))]


@pytest.mark.parametrize(
    ("squeue", "code", "state", "ended"),
    [
        ("6 RUNNING\n7 PENDING\n", 0, "pending", False),
        ("7 CONFIGURING\n", 0, "configuring", False),
        ("7 CANCELLED\n", 0, "cancelled", True),
        ("7 COMPLETED\n", 0, "completed", True),
        ("70 RUNNING\n", 0, "gone", True),
        ("", 0, "gone", True),
        ("7 RUNNING\n", 1, "unknown", False),  # a controller that does not answer ends no job
    ],
)
def test_a_jobs_end_is_what_squeue_says(slurm, with_submitit, tmp_path, squeue, code, state, ended):
    slurm("squeue", squeue, code=code)
    job = cluster.Job(Target("a100", None), ("run",), with_submitit.Slurm.job_class(tmp_path, "7"))
    assert (job.ended, job.state) == (ended, state)


def test_no_variable_of_a_surrounding_job_reaches_slurms_commands(slurm, with_submitit, tmp_path, monkeypatch):
    for name in ("sinfo", "sbatch", "squeue"):
        seen = f'env | grep -E "^(SLURM|SBATCH|SINFO|SQUEUE)_" >>{tmp_path}/seen; echo Submitted batch job 1'
        projects.interpreter(tmp_path / "slurm" / name, seen, "exit 0")
    options = ("SBATCH_PARTITION", "SLURM_CPUS_PER_TASK", "SLURM_JOB_ID", "SINFO_FORMAT", "SQUEUE_FORMAT")
    for name in (*options, "SLURM_CONF"):
        monkeypatch.setenv(name, "1")
    cluster.gpus_by_partition()
    job = cluster.submit(cluster.executor(tmp_path / "jobs", "#!/bin/bash\n"), Target("a100", None), ["run"])
    assert job.state
    assert (tmp_path / "seen").read_text().splitlines() == ["SLURM_CONF=1"] * 3


def test_a_refusal_of_sbatch_is_one_line(slurm, with_submitit, tmp_path, capsys):
    slurm("sbatch", code=1, says="sbatch: error: Batch job submission failed: Invalid account")
    target = Target("a100", None)
    slurm_executor = cluster.executor(tmp_path / "jobs", "#!/bin/bash\n")
    with pytest.raises(ClusterError, match=r"^a100: sbatch: error: Batch job submission failed: Invalid account$"):
        cluster.submit(slurm_executor, target, ["run"])
    assert capsys.readouterr().err == ""
    assert cluster.newest_job(slurm_executor, target) is None


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (
            ["tcbench: error: no MPI", "submitit INFO (x) - Exiting after successful completion"],
            "tcbench: error: no MPI",
        ),
        (["1 of 2 cells failed", "", "submitit INFO (x) - Job completed"], "1 of 2 cells failed"),
        (["submitit INFO (x) - Job completed"], ""),
    ],
)
def test_the_reason_of_a_failed_job_is_what_tcbench_said_last(tmp_path, lines, shown):
    (tmp_path / "log").write_text("\n".join(lines), "utf-8")
    job = cluster.Job(None, (), SimpleNamespace(paths=SimpleNamespace(stdout=tmp_path / "log")))
    assert job.last_line == shown
