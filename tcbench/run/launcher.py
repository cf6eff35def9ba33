"""The start of a trial's ranks: by mpirun, by Slurm's srun, or by a command line of the user's. `tcbench.run.ranks`
follows them.
"""

import os
import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tcbench.core import process
from tcbench.core.errors import SelectionError
from tcbench.core.packages import Package
from tcbench.core.record import Cell
from tcbench.core.variables import outside_jobs
from tcbench.engine.api import kind_of
from tcbench.hardware import machine
from tcbench.run.plan import Plan

MPI = Package("mpi4py", "uv sync --extra mpi")

_COUNT = "{n}"


@dataclass(frozen=True)
class Launcher:
    """The words of a command line before the rank's own; `{n}` in one of them stands for the number of ranks.
    `is_local`: it starts all of them on this host."""

    words: tuple[str, ...] = ()
    is_local: bool = True

    def command(self, n: int, rank: list[str]) -> list[str]:
        return [*(word.replace(_COUNT, str(n)) for word in self.words), *rank]

    def __str__(self) -> str:
        """Without the folder of its program, which says nothing to another machine."""
        program, *others = self.words
        words = (Path(program).name, *others)
        return " ".join(word if _COUNT in word else shlex.quote(word) for word in words)


def find(asked: str | None) -> Launcher:
    """The launcher that `--launcher` asks for: `mpirun`, `srun`, or a command line with {n} in it. Without one it is
    srun within an allocation of Slurm's, else mpirun. Raises SelectionError."""
    if not MPI.is_installed():
        raise SelectionError(f"many ranks need the package {MPI.module}: {MPI.install}")
    job = os.environ.get("SLURM_JOB_ID")
    is_over = job is not None and asked in (None, "mpirun") and _is_over(job)
    if asked is None:
        asked = "srun" if job is not None and not is_over and shutil.which("srun") else "mpirun"
    if asked == "mpirun":
        # Within an allocation of several hosts mpirun takes them all.
        return Launcher(_mpirun(), is_local=is_over or os.environ.get("SLURM_JOB_NUM_NODES", "1") == "1")
    if asked == "srun":
        return Launcher((_program("srun"), "--ntasks={n}", "--cpu-bind=none"), is_local=False)
    words = command_line(asked)
    return Launcher((_program(words[0]), *words[1:]), is_local=False)


def _is_over(job: str) -> bool:
    """Return whether Slurm answers that it has no such job: the variables are left from one that has ended."""
    try:
        words = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
        answer = process.ask(words, environment=outside_jobs(os.environ), limit_s=10)
    except (OSError, TimeoutError):
        return False
    return not answer.stdout.strip() and "contact" not in answer.stderr


def command_line(asked: str) -> list[str]:
    """The words of a launcher of the user's own, which need not be there. Raises SelectionError for none."""
    try:
        words = shlex.split(asked)
    except ValueError as error:
        raise SelectionError(f"--launcher {asked!r}: not a command line: {error}") from None
    if not any(_COUNT in word for word in words):
        raise SelectionError(
            f"--launcher {asked!r}: expected mpirun, srun or a command line with {_COUNT} for the number of ranks, "
            "such as 'mpirun -np {n} --hostfile hosts'"
        )
    return words


NAMED = ("mpirun", "srun")
"""Launchers that need no command line."""


def _program(name: str) -> str:
    """A launcher's path: beside this Python, where a wheel puts it, else on PATH. Raises SelectionError."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if "/" not in name and os.access(beside, os.X_OK) else shutil.which(name)
    if path is None:
        lacking = f"; {MPI.install} brings it" if name == "mpirun" else ""
        raise SelectionError(f"--launcher {name}: there is no such command{lacking}")
    return path


def _mpirun() -> tuple[str, ...]:
    path = _program("mpirun")
    try:
        answer = process.ask([path, "--version"], limit_s=30)
    except (OSError, TimeoutError) as error:
        raise SelectionError(f"--launcher mpirun: {path} does not answer: {error}") from None
    if "Open MPI" not in answer.stdout:  # MPICH and its kin bind nothing by themselves
        return (path, "-np", _COUNT)
    # Ranks bind themselves (`tcbench.engine.affinity`), and are counted before they are started.
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return (path, *root, "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "-np", _COUNT)


def fitting(plan: Plan, launcher: Launcher, *, asked: bool) -> Plan:
    """The plan without the cells whose ranks this host, on which all of them would run, has too few cores or devices
    for: they are skipped. Raises SelectionError where these numbers of ranks were asked for."""
    cells = []
    for planned in plan.cells:
        reason = planned.skip_reason or _why_not(planned.cell, launcher)
        if asked and reason and not planned.skip_reason:
            raise SelectionError(f"--ranks {planned.cell.ranks}: {reason}")
        cells.append(replace(planned, skip_reason=reason))
    return replace(plan, cells=tuple(cells))


def _why_not(cell: Cell, launcher: Launcher) -> str | None:
    if cell.ranks == 1 or not launcher.is_local:
        return None
    cores = machine.usable_cpus()
    reason = kind_of(cell.device).rank_problem(cell.device, cell.ranks)
    if cell.ranks > cores:
        reason = f"this machine has {cores} usable {'core' if cores == 1 else 'cores'}, and each rank takes one"
    return f"{reason}; more hosts: --launcher 'mpirun -np {{n}} --hostfile HOSTS'" if reason else None


def find_for(plan: Plan, name: str | None, *, asked: bool) -> tuple[Plan, Launcher]:
    """The plan as far as there is room for its ranks, and what starts them. `asked`: their number stands on the command
    line. Raises SelectionError where nothing starts them, or where there is no room for what was asked."""
    if asked and kind_of(plan.device.name).simulates is not None:
        reasons = [planned.skip_reason for planned in plan.cells if planned.cell.ranks > 1 and planned.skip_reason]
        if reasons:
            raise SelectionError(f"--ranks on {plan.device.name}: {reasons[0]}")
    if name is None and all(planned.cell.ranks == 1 for planned in plan.cells if planned.skip_reason is None):
        return plan, Launcher()
    starter = find(name)
    return fitting(plan, starter, asked=asked), starter
