"""Starts the ranks of a trial by mpirun, by Slurm's srun, or by a command line of the user. `tcbench.run.ranks` follows
them."""

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
"""The package that ranks need."""

_COUNT = "{n}"


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks. `words` is the part of its command line before the rank's own command, in which
    `{n}` stands for the number of ranks. `is_local`: all ranks start on this host."""

    words: tuple[str, ...] = ()
    is_local: bool = True

    def command(self, n: int, rank: list[str]) -> list[str]:
        """Return the command line that starts `n` ranks. `rank` is the command line of one rank."""
        return [*(word.replace(_COUNT, str(n)) for word in self.words), *rank]

    def __str__(self) -> str:
        """Return the command line without the folder of the program, which has no meaning on another machine."""
        words = (Path(self.words[0]).name, *self.words[1:])
        return " ".join(word if _COUNT in word else shlex.quote(word) for word in words)


def find(requested: str | None) -> Launcher:
    """Return the launcher that `--launcher` requests: `mpirun`, `srun`, or a command line with {n} in it. If
    `requested` is None, it is srun within a Slurm allocation, else mpirun. Raises SelectionError if the launcher or
    mpi4py is not installed."""
    if not MPI.is_installed():
        raise SelectionError(f"many ranks need the package {MPI.module}: {MPI.install}")
    job = os.environ.get("SLURM_JOB_ID")
    is_over = job is not None and requested in (None, "mpirun") and _is_over(job)
    if requested is None:
        requested = "srun" if job is not None and not is_over and shutil.which("srun") else "mpirun"
    if requested == "mpirun":
        # Within an allocation of several hosts mpirun uses all of them.
        return Launcher(_mpirun(), is_local=is_over or os.environ.get("SLURM_JOB_NUM_NODES", "1") == "1")
    if requested == "srun":
        return Launcher((_program("srun"), "--ntasks={n}", "--cpu-bind=none"), is_local=False)
    words = command_line(requested)
    return Launcher((_program(words[0]), *words[1:]), is_local=False)


def _is_over(job: str) -> bool:
    """Return whether Slurm reports that a job no longer exists, although its environment variables are still set. False
    if Slurm does not answer."""
    try:
        words = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
        answer = process.ask(words, environment=outside_jobs(os.environ), limit_s=10)
    except (OSError, TimeoutError):
        return False
    return not answer.stdout.strip() and "contact" not in answer.stderr


def command_line(text: str) -> list[str]:
    """Return the words of the user's own launcher command, which need not be installed here. Raises SelectionError if
    it is not a command line with {n}."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SelectionError(f"--launcher {text!r}: not a command line: {error}") from None
    if not any(_COUNT in word for word in words):
        raise SelectionError(
            f"--launcher {text!r}: expected mpirun, srun or a command line with {_COUNT} for the number of ranks, "
            "such as 'mpirun -np {n} --hostfile hosts'"
        )
    return words


NAMED = ("mpirun", "srun")
"""Launchers that are named without a command line."""


def _program(name: str) -> str:
    """Return a launcher's path: next to this Python, where a wheel installs it, else on PATH. Raises SelectionError if
    it is in neither."""
    installed = Path(sys.executable).parent / name
    path = str(installed) if "/" not in name and os.access(installed, os.X_OK) else shutil.which(name)
    if path is None:
        lacking = f"; {MPI.install} installs it" if name == "mpirun" else ""
        raise SelectionError(f"--launcher {name}: command not found{lacking}")
    return path


def _mpirun() -> tuple[str, ...]:
    """Return the command line of mpirun, with options that stop Open MPI from binding the ranks."""
    path = _program("mpirun")
    try:
        answer = process.ask([path, "--version"], limit_s=30)
    except (OSError, TimeoutError) as error:
        raise SelectionError(f"--launcher mpirun: `{path} --version` failed: {error}") from None
    if "Open MPI" not in answer.stdout:  # MPICH and its relatives bind nothing by default
        return (path, "-np", _COUNT)
    # Ranks bind themselves (`tcbench.engine.affinity`); tcbench checks beforehand that there are enough cores.
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return (path, *root, "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "-np", _COUNT)


def fitting(plan: Plan, launcher: Launcher, *, explicit: bool) -> Plan:
    """Return the plan. If all ranks start on this host, cells with more ranks than it has cores or devices are marked
    as skipped, or raise SelectionError if the user gave the number of ranks (`explicit`)."""
    cells = []
    for planned in plan.cells:
        reason = planned.skip_reason or _why_not(planned.cell, launcher)
        if explicit and reason and not planned.skip_reason:
            raise SelectionError(f"--ranks {planned.cell.ranks}: {reason}")
        cells.append(replace(planned, skip_reason=reason))
    return replace(plan, cells=tuple(cells))


def _why_not(cell: Cell, launcher: Launcher) -> str | None:
    """Return why this host cannot run the cell's ranks, or None if it can."""
    if cell.workers == 1 or not launcher.is_local:
        return None
    cores = machine.usable_cpus()
    reason = kind_of(cell.device).rank_problem(cell.device, cell.ranks)
    if cell.ranks > cores:
        reason = f"this machine has {cores} usable {'core' if cores == 1 else 'cores'}, and each rank takes one"
    return f"{reason}; to use more hosts: --launcher 'mpirun -np {{n}} --hostfile HOSTS'" if reason else None


def find_for(plan: Plan, name: str | None, *, explicit: bool) -> tuple[Plan, Launcher]:
    """Return the plan, in which cells with too many ranks for this host are skipped, and the launcher for its ranks.

    `name` is the value of `--launcher`, None if not given. Raises SelectionError if the launcher is missing, and, if
    the user gave the number of ranks (`explicit`), for a cell that cannot run."""
    if explicit and kind_of(plan.device.name).simulates is not None:
        reasons = [planned.skip_reason for planned in plan.cells if planned.cell.ranks > 1 and planned.skip_reason]
        if reasons:
            raise SelectionError(f"--ranks on {plan.device.name}: {reasons[0]}")
    if name is None and all(planned.cell.workers == 1 for planned in plan.cells if planned.skip_reason is None):
        return plan, Launcher()
    launcher = find(name)
    return fitting(plan, launcher, explicit=explicit), launcher
