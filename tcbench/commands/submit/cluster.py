"""A matrix on a cluster: a Slurm job per partition or type of GPU, each running the same `tcbench run`. Scripts are
written without submitit; submitit submits them and follows the jobs."""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tcbench.core import files, process
from tcbench.core.errors import ClusterError, hint
from tcbench.core.text import plain
from tcbench.core.variables import outside_jobs
from tcbench.run.worker_launch import python_module

FOLDER = ".jobs"
"""Folder beside those of machines in which submitit keeps jobs, scripts and logs."""

_POLL_S = 1.0
_WRITTEN_WITHIN_S = 15.0
"""Seconds after which a file written by a node is visible here, on a shared file system with a cache."""


@dataclass(frozen=True)
class Target:
    """The place of one job: a partition (None: the cluster's default), a type of GPU (None: any), or both."""

    partition: str | None
    gpu: str | None

    @property
    def name(self) -> str:
        """The name of the place: `a100-h100`."""
        return "-".join(filter(None, (self.partition, self.gpu)))


Gpus = Mapping[str, frozenset[str]]
"""The types of GPU of each partition; "" is a GPU without a type."""


def gpus_by_partition() -> Gpus:
    """Return the cluster's partitions with their GPUs. Raises ClusterError if Slurm is missing or does not answer."""
    missing = [name for name in ("sbatch", "srun", "sinfo", "squeue") if shutil.which(name) is None]
    if missing:
        raise ClusterError(f"{missing[0]} not found: expected Slurm's commands on PATH, as on a cluster's login node")
    try:
        words = ["sinfo", "--noheader", "--format=%R|%G"]
        answer = process.ask(words, environment=outside_jobs(os.environ), limit_s=60)
    except TimeoutError as error:
        raise ClusterError(f"sinfo: {error}; is the cluster's controller running?") from None
    if answer.code:
        raise ClusterError(f"sinfo: {answer.last_line}")
    partitions: dict[str, frozenset[str]] = {}
    for name, _, resources in (line.partition("|") for line in answer.stdout.splitlines()):
        types = re.findall(r"\bgpu(?::([^:(,]+))?:\d", resources)
        partitions[name] = partitions.get(name, frozenset()) | frozenset(types)
    return partitions


def assumed_gpus(partitions: Sequence[str], types: Sequence[str]) -> Gpus:
    """Return a cluster whose partitions are those named, each with all named GPUs, to write scripts without Slurm."""
    return dict.fromkeys(partitions or ("",), frozenset({*types, ""}))


def targets(partitions: Sequence[str], types: Sequence[str], gpus: Gpus) -> tuple[Target, ...]:
    """Return every combination of partition and type of GPU. Raises ClusterError for one that does not exist."""
    if not partitions and not types:
        raise ClusterError(f"expected --partition or --gpu; this cluster has the partitions {', '.join(gpus)}")
    for name in partitions:
        if name not in gpus:
            raise ClusterError(f"--partition {name}: no such partition; {hint(name, gpus)}")
    chosen = []
    for partition in partitions or (None,):
        types_there = gpus[partition] if partition else frozenset[str]().union(*gpus.values())
        for gpu in types or (None,):
            if gpu is not None and gpu not in types_there:
                where = f"partition {partition}" if partition else "this cluster"
                raise ClusterError(
                    f"--gpu {gpu}: {where} has no such GPU"
                    + (
                        f"; {hint(gpu, sorted(types_there - {''}))}"
                        if types_there - {""}
                        else ", nor any GPU with a type"
                    )
                )
            chosen.append(Target(partition, gpu))
    return tuple(dict.fromkeys(chosen))


@dataclass(frozen=True)
class Request:
    """The resources of a job.

    `time_min` is the time limit in minutes; each rank gets a GPU if `on_gpus` and the partition has any. `options` are
    further sbatch options by long name (with `_`); they override those that tcbench sets."""

    time_min: int
    ranks: int
    on_gpus: bool
    options: Mapping[str, str | bool]

    @property
    def ranks_per_node(self) -> int:
        """The number of ranks on each node, which is equal on all nodes, because a rank takes a GPU by its number on
        the node. Raises ClusterError."""
        nodes = self.options.get("nodes", "1")
        count = int(nodes) if isinstance(nodes, str) and re.fullmatch("[0-9]{1,9}", nodes, re.ASCII) else 0
        if count == 0:
            raise ClusterError(
                f"--sbatch nodes={nodes}: expected a single number: ranks and GPUs are requested per node"
            )
        if self.ranks % count:
            raise ClusterError(
                f"--sbatch nodes={nodes}: {self.ranks} ranks cannot be split evenly; expected a number of nodes "
                f"that divides {self.ranks}"
            )
        return self.ranks // count


_TASKS = ("ntasks", "ntasks_per_node")
_GPUS = ("gpus", "gpus_per_node", "gpus_per_task", "gpus_per_socket", "gres")
"""Options of sbatch by which users request tasks or GPUs themselves."""


def job_script(
    target: Target, scenario: str, command: Sequence[str], folder: Path, request: Request, gpus: Gpus
) -> str:
    """Return the script of a target's job, which runs tcbench with the words of `command`.

    submitit keeps the job in `folder`. Unlike submitit's own scripts, it requests no signal ahead of the time limit:
    Slurm sends that to the job's steps, up to a minute early, which would kill the ranks of a trial. tcbench starts
    ranks by `srun` within the job, so it must not run in a step of the job itself, which would leave no room for
    them."""
    has_gpus = target.gpu or target.partition is None or gpus[target.partition]
    each: dict[str, str | int | bool] = {"job_name": f"tcbench-{scenario}-{target.name}", "nodes": 1}
    each |= {"time": request.time_min, "open_mode": "append", "output": f"{folder.absolute()}/%j_0_log.out"}
    if target.partition:
        each["partition"] = target.partition
    if request.options.keys().isdisjoint(_TASKS):
        each["ntasks_per_node"] = request.ranks_per_node
    if request.on_gpus and has_gpus and request.options.keys().isdisjoint(_GPUS):
        each["gpus_per_node"] = ":".join(filter(None, (target.gpu, str(request.ranks_per_node))))
    lines = [
        f"#SBATCH --{name.replace('_', '-')}" + ("" if value is True else f"={shlex.quote(str(value))}")
        for name, value in sorted({**each, **request.options}.items())
    ]
    # -P: files in the current directory must not shadow modules.
    words = [sys.executable, "-P", "-u", "-m", "submitit.core._submit", str(folder)]
    runs = [f"# {plain(command_text(command))}", "export SUBMITIT_EXECUTOR=slurm", shlex.join(words)]
    return "\n".join(["#!/bin/bash", "", *lines, "", *runs, ""])


def executor(folder: Path, script: str) -> Any:
    """Return submitit's executor, which submits `script` as a job and keeps the job's files in `folder`."""
    from tcbench.commands.submit.slurm import Slurm

    return Slurm(folder, script)


def command_text(command: Sequence[str]) -> str:
    """Return a job's command as a user would type it."""
    return shlex.join(["tcbench", *command])


def run_job(command: Sequence[str], folder: str) -> int:
    """Run tcbench inside a job, and store its exit code in the job's folder."""
    from submitit import JobEnvironment

    # A job that Slurm has requeued continues the run that it began.
    again = ["--resume"] if os.environ.get("SLURM_RESTART_COUNT") and "--resume" not in command else []
    words = python_module(sys.executable, "tcbench", *command, *again)
    code = process.run(words, folder=Path.cwd(), environment=os.environ, output=sys.stdout.buffer)
    if code < 0:  # for example at the time limit: this process is killed next, and the job's state tells the reason
        raise RuntimeError(f"tcbench was killed by signal {-code}")
    files.write(Path(folder) / _code_name(JobEnvironment().job_id), str(code).encode())
    return code


def _code_name(job_id: str) -> str:
    return f"{job_id}_exit_code"


@dataclass(frozen=True)
class _Note:
    """The facts of a submitted job that are stored for a later `--resume`."""

    job_id: str
    command: tuple[str, ...]


_NOTE = "job.json"


@dataclass(frozen=True)
class Job:
    """A submitted job. `handle` is submitit's own object."""

    target: Target
    command: tuple[str, ...]
    handle: Any

    @property
    def id(self) -> str:
        return str(self.handle.job_id)

    @property
    def log(self) -> Path:
        return Path(self.handle.paths.stdout)

    @property
    def last_line(self) -> str:
        """The line of the log that tells how the command ended: the last error of tcbench, else the last line of its
        output; "" if there is none."""
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
            output = [plain(line) for line in lines if line and not line.startswith("submitit ")]
            errors = [line for line in output if line.startswith("tcbench: error")]
            return (errors or output or [""])[-1]
        return ""

    @property
    def submitted_at(self) -> float:
        """The time of submission in seconds since the epoch, by the file system's clock."""
        return (self.log.parent / _NOTE).stat().st_mtime

    @property
    def exit_code(self) -> int | None:
        """The exit code of the job's command; None if it has not finished."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.log.parent / _code_name(self.id)).read_text())
        return None

    @property
    def state(self) -> str:
        """The state in Slurm's words, such as "running"."""
        return str(self.handle.state).lower()

    @property
    def ended(self) -> bool:
        return bool(self.handle.done())


def submit(slurm: Any, target: Target, command: Sequence[str]) -> Job:
    """Submit a job that runs tcbench with the words of `command`. Raises ClusterError."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    folder = Path(slurm.folder)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints there what it raises
            handle = slurm.submit(run_job, tuple(command), str(folder))
    except (FailedJobError, FailedSubmissionError) as error:
        raise ClusterError(f"{target.name}: {plain(' '.join(str(error).split()))}") from None
    except OSError as error:
        raise ClusterError(f"{folder}: cannot be written ({error.strerror}); name another folder with --out") from None
    note = _Note(str(handle.job_id), tuple(command))
    files.write(folder / _NOTE, msgspec.json.encode(note), "name another folder with --out")
    return Job(target, note.command, handle)


def newest_job(slurm: Any, target: Target) -> Job | None:
    """Return the newest job of a target, from the note in its executor's folder; None if it has none."""
    folder = Path(slurm.folder)
    try:
        note = msgspec.json.decode((folder / _NOTE).read_bytes(), type=_Note)
    except (OSError, msgspec.DecodeError):
        return None
    return Job(target, note.command, slurm.job_class(folder, note.job_id))


def cancel(jobs: Iterable[Job]) -> None:
    """Remove jobs from the queue."""
    for job in jobs:
        job.handle.cancel(check=False)


def follow(jobs: Iterable[Job]) -> Iterator[Job]:
    """Yield the jobs in rounds, with pauses, until all have ended; each one last when its exit code can be read."""
    remaining = list(jobs)
    while remaining:
        for job in tuple(remaining):
            if job.ended:
                remaining.remove(job)
                deadline = time.monotonic() + _WRITTEN_WITHIN_S
                while job.exit_code is None and job.state == "completed" and time.monotonic() < deadline:
                    time.sleep(_POLL_S)
            yield job
        if remaining:
            time.sleep(_POLL_S)
