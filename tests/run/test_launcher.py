import dataclasses

import projects
import pytest

from tcbench.core.errors import SelectionError
from tcbench.core.packages import Package
from tcbench.core.process import CommandAnswer
from tcbench.engine.accelerators.device import host_device
from tcbench.run import launcher, plan
from tcbench.run.launcher import Launcher, find, fitting
from tcbench.run.plan import Selection
from tcbench.run.scenario import load


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A PATH on which only mpirun and srun are, with mpi4py installed."""
    for name in ("mpirun", "srun"):
        projects.interpreter(tmp_path / name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launcher.sys, "executable", "/nonexistent/python")
    monkeypatch.setattr(launcher, "MPI", Package("sys", "pip install mpi4py"))
    monkeypatch.setattr(launcher.process, "ask", lambda words, **_: CommandAnswer(0, "mpirun (Open MPI) 5.0", ""))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return tmp_path


def test_mpirun_starts_ranks_unless_slurm_has_allocated(programs, monkeypatch):
    mpirun = find(None)
    assert mpirun.is_local
    assert mpirun == find("mpirun")
    command = mpirun.command(3, ["python", "rank"])
    assert command[0] == str(programs / "mpirun")
    assert command[-4:] == ["-np", "3", "python", "rank"]
    assert command[command.index("--bind-to") + 1] == "none"
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert not find("mpirun").is_local
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    mpirun = find(None)
    assert not mpirun.is_local
    assert mpirun.command(3, ["python"]) == [str(programs / "srun"), "--ntasks=3", "--cpu-bind=none", "python"]


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        (CommandAnswer(0, "RUNNING\n", ""), "srun"),
        (CommandAnswer(1, "", "slurm_load_jobs error: Unable to contact slurm controller"), "srun"),
        (CommandAnswer(1, "", "slurm_load_jobs error: Invalid job id specified"), "mpirun"),
        (CommandAnswer(0, "", ""), "mpirun"),
    ],
)
def test_an_allocation_that_is_over_is_none(programs, monkeypatch, answer, program):
    def ask(words, **_):
        return answer if words[0] == "squeue" else CommandAnswer(0, "mpirun (Open MPI) 5.0", "")

    monkeypatch.setattr(launcher.process, "ask", ask)
    for name, value in {"SLURM_JOB_ID": "99", "SLURM_JOB_NUM_NODES": "2"}.items():
        monkeypatch.setenv(name, value)
    mpirun = find(None)
    assert (mpirun.words[0], mpirun.is_local) == (str(programs / program), program == "mpirun")


def test_the_mpirun_beside_this_python_comes_first(programs, tmp_path, monkeypatch):
    bundled = projects.interpreter(tmp_path / "bin/mpirun")
    monkeypatch.setattr(launcher.sys, "executable", str(bundled.with_name("python")))
    assert find(None).words[0] == str(bundled)


def test_mpich_gets_no_option_of_open_mpi(programs, monkeypatch):
    monkeypatch.setattr(launcher.process, "ask", lambda words, **_: CommandAnswer(0, "HYDRA build details", ""))
    assert find("mpirun").words[1:] == ("-np", "{n}")


def test_a_command_line_of_the_users(programs):
    custom = find("mpirun -np {n} --hostfile 'my hosts'")
    assert not custom.is_local
    assert custom.command(2, ["p"]) == [str(programs / "mpirun"), "-np", "2", "--hostfile", "my hosts", "p"]
    assert str(custom) == "mpirun -np {n} --hostfile 'my hosts'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mpiexec", "--launcher 'mpiexec': expected mpirun, srun or a command line with {n}"),
        ("mpiexec -n {n}", "--launcher mpiexec: command not found"),
        ("mpirun 'x {n}", "not a command line"),
    ],
)
def test_what_is_no_launcher_is_refused(programs, text, message):
    with pytest.raises(SelectionError) as refused:
        find(text)
    assert message in str(refused.value)


def test_what_is_missing_is_said_with_the_command_that_brings_it(programs, monkeypatch):
    (programs / "mpirun").unlink()
    with pytest.raises(SelectionError, match=r"command not found; pip install mpi4py installs it"):
        find(None)
    monkeypatch.setattr(launcher, "MPI", Package("nonexistent_module", "pip install mpi4py"))
    with pytest.raises(SelectionError, match=r"^many ranks need the package nonexistent_module: pip install mpi4py"):
        find("srun")


def test_ranks_that_this_machine_has_no_room_for(monkeypatch):
    monkeypatch.setattr(launcher.machine, "usable_cpus", lambda: 2)
    full_plan = plan.make(load("cpu"), Selection(batch_sizes=(1,), configs=("fp32",), ranks=(1, 2, 3)), host_device())
    assert [planned.cell.ranks for planned in full_plan.cells] == [1, 2, 3]
    local = Launcher(("mpirun", "{n}"))
    reasons = [planned.skip_reason for planned in fitting(full_plan, local, explicit=False).cells]
    assert reasons[:2] == [None, None]
    assert reasons[2].startswith(
        "this machine has 2 usable cores, and each rank takes one; to use more hosts: --launcher"
    )
    with pytest.raises(SelectionError, match=r"^--ranks 3: this machine has 2 usable cores"):
        fitting(full_plan, local, explicit=True)
    far = dataclasses.replace(local, is_local=False)
    assert fitting(full_plan, far, explicit=True) == full_plan


def test_ranks_share_the_cores_and_one_alone_gets_no_more(monkeypatch):
    monkeypatch.setattr(plan.machine, "usable_cpus", lambda: 8)
    chosen = Selection(batch_sizes=(1,), configs=("fp32",), ranks=(1, 4), threads=None)
    full_plan = plan.make(load("cpu"), chosen, host_device())
    assert [planned.cell.threads for planned in full_plan.cells] == [2, 2]
    assert len({planned.cell.key for planned in full_plan.cells}) == 2
