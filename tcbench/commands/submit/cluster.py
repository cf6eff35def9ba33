"""The matrix over a cluster: a Slurm job for each partition or type of GPU, all of which run one `tcbench run`.

submitit submits the scripts, which are written without it, and follows the jobs.
"""

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
"""The folder beside the machines' in which submitit keeps jobs, their scripts and what they print."""

_POLL_S = 1.0
_WRITTEN_WITHIN_S = 15.0
"""Seconds until what a node has written shows here, on a shared file system that caches."""


@dataclass(frozen=True)
class Target:
    """One job's place: a partition (None: the cluster's default), a type of GPU (None: any), or both."""

    partition: str | None
    gpu: str | None

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.partition, self.gpu)))


Gpus = Mapping[str, frozenset[str]]
"""The types of GPU of each partition; "" is one without a type."""


def gpus() -> Gpus:
    """The cluster's partitions with their GPUs. Raises ClusterError where there is no Slurm, or none that answers."""
    missing = [name for name in ("sbatch", "srun", "sinfo", "squeue") if shutil.which(name) is None]
    if missing:
        raise ClusterError(f"no {missing[0]} here: expected Slurm's commands on PATH, as on a cluster's login node")
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


def unchecked(partitions: Sequence[str], types: Sequence[str]) -> Gpus:
    """A cluster that has what is named, for scripts that are written where no Slurm is."""
    return dict.fromkeys(partitions or ("",), frozenset({*types, ""}))


def targets(partitions: Sequence[str], types: Sequence[str], there: Gpus) -> tuple[Target, ...]:
    """Each of the partitions with each of the types of GPU. Raises ClusterError for one that is not there."""
    if not partitions and not types:
        raise ClusterError(f"expected --partition or --gpu; this cluster has the partitions {', '.join(there)}")
    for name in partitions:
        if name not in there:
            raise ClusterError(f"--partition {name}: no such partition; {hint(name, there)}")
    chosen = []
    for partition in partitions or (None,):
        known = there[partition] if partition else frozenset[str]().union(*there.values())
        for gpu in types or (None,):
            if gpu is not None and gpu not in known:
                where = f"partition {partition}" if partition else "this cluster"
                raise ClusterError(
                    f"--gpu {gpu}: {where} has no such GPU"
                    + (f"; {hint(gpu, sorted(known - {''}))}" if known - {""} else ", nor one with a type")
                )
            chosen.append(Target(partition, gpu))
    return tuple(dict.fromkeys(chosen))


@dataclass(frozen=True)
class Request:
    """A job's demand: minutes until it is ended, a GPU for each rank (`on_gpus`: where the partition has some), and
    more options of sbatch by their long names with `_`, which go before these."""

    time_min: int
    ranks: int
    on_gpus: bool
    options: Mapping[str, str | bool]

    @property
    def ranks_per_node(self) -> int:
        """As many on each node: a rank takes a GPU by its number on its node. Raises ClusterError."""
        nodes = self.options.get("nodes", "1")
        count = int(nodes) if isinstance(nodes, str) and re.fullmatch("[0-9]{1,9}", nodes, re.ASCII) else 0
        if count == 0:
            raise ClusterError(
                f"--sbatch nodes={nodes}: expected one number of nodes: ranks and GPUs are asked for by node"
            )
        if self.ranks % count:
            raise ClusterError(
                f"--sbatch nodes={nodes}: {self.ranks} ranks are not as many on each; expected a number of nodes that "
                f"divides {self.ranks}"
            )
        return self.ranks // count


_TASKS = ("ntasks", "ntasks_per_node")
_GPUS = ("gpus", "gpus_per_node", "gpus_per_task", "gpus_per_socket", "gres")
"""Options of sbatch by which a user asks for tasks and for GPUs in place of ours."""


def script(target: Target, scenario: str, command: Sequence[str], folder: Path, request: Request, there: Gpus) -> str:
    """The script of one target's job, which runs tcbench with the words of `command`; submitit keeps them in `folder`.

    It asks for no signal ahead of the time limit, as submitit does by itself: that goes to the job's steps, up to a
    minute early, and would kill the ranks of a trial. Ranks are started by `srun` within the job, which a step of the
    job's own would leave no room for."""
    has_gpus = target.gpu or target.partition is None or there[target.partition]
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
    # -P: what lies in the current directory is no module of submitit's or of ours.
    words = [sys.executable, "-P", "-u", "-m", "submitit.core._submit", str(folder)]
    runs = [f"# {plain(shown(command))}", "export SUBMITIT_EXECUTOR=slurm", shlex.join(words)]
    return "\n".join(["#!/bin/bash", "", *lines, "", *runs, ""])


def executor(folder: Path, script: str) -> Any:
    """submitit's executor of a job with that script."""
    from tcbench.commands.submit.slurm import Slurm

    return Slurm(folder, script)


def shown(command: Sequence[str]) -> str:
    """A job's command as a user would give it."""
    return shlex.join(["tcbench", *command])


def work(command: Sequence[str], folder: str) -> int:
    """A job's work: run tcbench with these words, leave its exit code in the job's folder, and give it."""
    from submitit import JobEnvironment

    # A job that Slurm has put back into the queue goes on with the run that it began.
    again = ["--resume"] if os.environ.get("SLURM_RESTART_COUNT") and "--resume" not in command else []
    words = python_module(sys.executable, "tcbench", *command, *again)
    code = process.run(words, folder=Path.cwd(), environment=os.environ, output=sys.stdout.buffer)
    if code < 0:  # at the time limit, for one: this process is ended next, and its job's state says by what
        raise RuntimeError(f"tcbench was killed by signal {-code}")
    files.write(Path(folder) / _code_name(JobEnvironment().job_id), str(code).encode())
    return code


def _code_name(job_id: str) -> str:
    return f"{job_id}_exit_code"


@dataclass(frozen=True)
class _Note:
    """The facts of a submitted job that are kept for whoever comes back to it."""

    job_id: str
    command: tuple[str, ...]


_NOTE = "job.json"


@dataclass(frozen=True)
class Job:
    """A job that was submitted. `handle` is submitit's."""

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
        """The line of the log that says how its command ended: the last error of tcbench, else the last line that is
        not submitit's own; "" where there is none."""
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
            said_by_command = [plain(line) for line in lines if line and not line.startswith("submitit ")]
            errors = [line for line in said_by_command if line.startswith("tcbench: error")]
            return (errors or said_by_command or [""])[-1]
        return ""

    @property
    def submitted_at(self) -> float:
        """When, in seconds since the epoch by the clock of the file system."""
        return (self.log.parent / _NOTE).stat().st_mtime

    @property
    def exit_code(self) -> int | None:
        """The exit code of its command; None where that has not come to its end."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.log.parent / _code_name(self.id)).read_text())
        return None

    @property
    def state(self) -> str:
        """By Slurm's word, such as "running"."""
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
            handle = slurm.submit(work, tuple(command), str(folder))
    except (FailedJobError, FailedSubmissionError) as error:
        raise ClusterError(f"{target.name}: {plain(' '.join(str(error).split()))}") from None
    except OSError as error:
        raise ClusterError(f"{folder}: cannot be written ({error.strerror}); name another folder with --out") from None
    note = _Note(str(handle.job_id), tuple(command))
    files.write(folder / _NOTE, msgspec.json.encode(note), "name another folder with --out")
    return Job(target, note.command, handle)


def last(slurm: Any, target: Target) -> Job | None:
    """The target's newest job; None where there is none."""
    folder = Path(slurm.folder)
    try:
        note = msgspec.json.decode((folder / _NOTE).read_bytes(), type=_Note)
    except (OSError, msgspec.DecodeError):
        return None
    return Job(target, note.command, slurm.job_class(folder, note.job_id))


def cancel(jobs: Iterable[Job]) -> None:
    """Take jobs out of the queue."""
    for job in jobs:
        job.handle.cancel(check=False)


def follow(jobs: Iterable[Job]) -> Iterator[Job]:
    """Each of the jobs in turns, for the last time when it has ended; waits in between."""
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
