"""`tcbench submit`: one run on several kinds of machines of a cluster."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, Literal

import typer

from tcbench.core.errors import ClusterError, SelectionError
from tcbench.show import options
from tcbench.show.app import SOME_CELL_FAILED, command, command_again, interruptible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tcbench.commands.submit.cluster import Job, Target
    from tcbench.core.record import Selection

CLUSTER = options.Group("Where it runs")


def _names(option: str, text: str | None) -> list[str]:
    """Return the comma-separated names of an option, without duplicates. Raises SelectionError."""
    names = list(dict.fromkeys(text.split(","))) if text is not None else []
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name, re.ASCII):
            raise SelectionError(f"{option} {text!a}: expected names with commas between them")
    return names


_RESERVED = ("array", "wrap", "output", "error", "job-name", "open-mode")
"""Options of sbatch that tcbench sets itself."""


def _sbatch_options(texts: Sequence[str] | None) -> dict[str, str | bool]:
    """Return the options of --sbatch NAME=VALUE or NAME by name; the value is True if there is none. Raises
    SelectionError for an option that tcbench sets itself."""
    options: dict[str, str | bool] = {}
    for text in texts or ():
        name, has_value, value = text.partition("=")
        if name in _RESERVED:
            raise SelectionError(f"--sbatch {name}: tcbench sets this option itself, to follow the job")
        if name == "signal":
            raise SelectionError(
                "--sbatch signal: a signal before the time limit would kill the running trial; without it, finished "
                "trials are stored, and --resume continues"
            )
        if not re.fullmatch(r"[a-z][a-z-]+", name, re.ASCII) or not value.isprintable() or (has_value and not value):
            raise SelectionError(f"--sbatch {text!a}: expected an option of sbatch, such as account=me or exclusive")
        options[name.replace("-", "_")] = value if has_value else True
    return options


@command("Run a scenario on a cluster: one Slurm job for each partition or GPU.")
@options.selects(
    "scenario batch_sizes ranks configs device models ...",
    scenario=options.OptionField(options.scenario_argument(), str),
)
def submit(
    *,
    chosen: Selection,
    partition: str | None = CLUSTER.option(
        "--partition NAME,NAME,...",
        "Partitions; each gets a job. Default, with --gpu: the cluster's default.",
        takes="partitions of the cluster",
        read=functools.partial(_names, "--partition"),
    ),
    gpu: str | None = CLUSTER.option(
        "--gpu TYPE,TYPE,...",
        "Types of GPU as Slurm names them (sinfo -o %G); each gets a job in each partition. "
        "Default, with --partition: any.",
        takes="types of GPU of the cluster",
        read=functools.partial(_names, "--gpu"),
    ),
    time: int = CLUSTER.option(
        "--time MINUTES", "Time limit of a job; --resume continues.", 60, within=(1, 10_000_000)
    ),
    sbatch: list[str] | None = CLUSTER.option(
        "--sbatch OPTION",
        "More options of sbatch, such as account=me, nodes=2 or exclusive. May be given more than once. Default: none.",
        takes="an option of sbatch that `submit` does not set",
        read=_sbatch_options,
    ),
    out: Path = options.OUT_FOLDER,
    resume: bool = options.OUTPUT.option("--resume", "Submit only what has not finished, and follow what runs."),
    allow: Literal["code"] | None = options.ALLOW_CODE,
    dry_run: bool = options.OUTPUT.option("--dry-run", "Show the sbatch scripts, then stop."),
    quiet: bool = options.QUIET,
) -> None:
    """Run a scenario in one Slurm job for each partition or type of GPU, all with the same options of `tcbench run`,
    and follow the jobs. If you interrupt the command, the jobs continue.

    Exit code: 0 if every job finished with every cell ok, skipped or out of memory; 2 for a mistake in the command or
    the scenario, or if the cluster rejects a job; 3 if a cell or a job failed; 130 if interrupted.

    Examples:
    tcbench submit naruse2018 --partition a100,h100    the same ladder on both, records in results/
    tcbench submit naruse2018 --partition gpu --gpu v100,h100 --sbatch account=me
    tcbench submit naruse2018 --partition a100,h100 --dry-run
    tcbench submit naruse2018 --partition a100,h100 --resume    only what is missing; follows what still runs"""
    from tcbench.core.packages import Package
    from tcbench.core.store import run_id_suffix
    from tcbench.engine.api import host_device
    from tcbench.run.plan import plan_of

    on_gpus = _runs_on_gpus(chosen.device)
    # The plan is made without the device, which only the jobs have.
    plan = plan_of(replace(chosen, device=host_device().name) if on_gpus else chosen, remote=True)
    submitit = Package("submitit", "uv sync --extra slurm")
    if not dry_run and not submitit.is_installed():
        raise ClusterError(f"submit needs the package {submitit.module}: {submitit.install}")
    from tcbench.commands.submit import cluster

    if gpu and not on_gpus:
        raise SelectionError(f"--gpu {gpu} with --device {chosen.device}: expected --partition, or no --device")
    partitions, types = _names("--partition", partition), _names("--gpu", gpu)
    if dry_run and (partitions or types) and which("sbatch") is None:
        gpus = cluster.assumed_gpus(partitions, types)
        _say("note: no sbatch here: partitions and GPUs are not checked", quiet)
    else:
        gpus = cluster.gpus_by_partition()
    request = cluster.Request(
        time_min=time,
        ranks=max(planned.cell.ranks for planned in plan.cells),
        on_gpus=on_gpus,
        options=_sbatch_options(sbatch),
    )
    if left_out := sorted(name for name in os.environ if name.startswith("SBATCH_")):
        _say(f"note: {', '.join(left_out)}: not passed to the jobs; use --sbatch OPTION instead", quiet)
    work = []
    for target in cluster.targets(partitions, types, gpus):
        words = ["run", str(chosen.scenario), *options.words(chosen)]
        words += ["--out", str(out.absolute()), "--label", target.name]
        words += ["--resume"] * resume + (["--allow", allow] if allow else [])
        folder = out.absolute() / cluster.FOLDER / f"{plan.scenario.name}{run_id_suffix(target.name)}"
        script = cluster.job_script(target, plan.scenario.name, words, folder, request, gpus)
        if dry_run:
            typer.echo(script)
        else:
            work.append((target, words, cluster.executor(folder, script)))
    if dry_run:
        return
    jobs: list[Job] = []
    with interruptible(lambda: f"; {_how_to_go_on(jobs)}"):
        _begin(work, jobs, resume, quiet)
        failed = _follow(jobs, out, plan.scenario.name, quiet)
    if failed:
        typer.echo(f"Next: {command_again(resume=True)}   (runs what failed again)")
        raise typer.Exit(SOME_CELL_FAILED)


def _runs_on_gpus(device: str) -> bool:
    """Return whether jobs with this --device need GPUs. Raises SelectionError for an unknown device."""
    from tcbench.engine.api import kind_of

    if device == "auto":
        return True
    kind = kind_of(device)
    return not kind.is_host and kind.simulates is None


def _begin(work: Sequence[tuple[Target, Sequence[str], Any]], jobs: list[Job], resume: bool, quiet: bool) -> None:
    """Submit jobs and add them to `jobs`.

    With `resume`, running jobs are added without being submitted, and finished ones are skipped. All or nothing: raises
    ClusterError if the cluster rejects a job, after cancelling the others."""
    from tcbench.commands.submit import cluster

    submitted: list[Job] = []
    for target, words, executor in work:
        last = cluster.newest_job(executor, target) if resume else None
        same = last is not None and _measuring_words(last.command) == _measuring_words(words)
        if last is not None and not last.ended:
            if not same:
                cluster.cancel(submitted)
                raise ClusterError(
                    f"{target.name}: job {last.id} still runs `{cluster.command_text(last.command)}`; wait until "
                    f"it ends, or cancel it with: scancel {last.id}"
                )
            jobs.append(last)
        elif last is not None and same and last.exit_code == 0:
            _say(f"{target.name}: nothing is missing: job {last.id} has finished", quiet)
        else:
            try:
                job = cluster.submit(executor, target, words)
            except ClusterError:
                cluster.cancel(submitted)
                raise
            submitted.append(job)
            jobs.append(job)


def _measuring_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command up to its label, which say what is measured. The rest is --resume and --allow."""
    return [*words[: words.index("--label") + 2]]


def _follow(jobs: Sequence[Job], out: Path, scenario: str, quiet: bool) -> bool:
    """Print the progress of jobs on standard error until all have ended. Return whether any job failed."""
    from tcbench.commands.submit import cluster
    from tcbench.core import store
    from tcbench.show.format import counted

    failed, last_lines = False, dict[str, str]()
    for job in cluster.follow(jobs):
        records = store.latest(out, None, scenario, store.run_id_suffix(job.target.name))
        # Records from before the submission belong to an older run.
        if records is not None and records.stat().st_mtime < job.submitted_at:
            records = None
        n = records.read_bytes().count(b"\n") if records else 0
        measured = f", {counted(n, 'record')} in {records}" if records else ""
        bad = job.ended and job.exit_code != 0
        failed = failed or bad
        if not job.ended:
            line = f"{job.target.name}: job {job.id} is {job.state}{measured}"
        elif not bad:
            line = f"{job.target.name}: job {job.id} has finished{measured}"
        else:
            early = f"early ({job.state})" if job.exit_code is None else f"with exit code {job.exit_code}"
            how = f"job {job.id} has ended {early}"
            why = f": {job.last_line}" if job.last_line else ""
            line = f"{job.target.name}: {how}{measured}{why}; its log: {job.log}"
        if last_lines.get(job.id) != line:
            last_lines[job.id] = line
            _say(line, quiet and not bad)
    return failed


def _say(line: str, quiet: bool) -> None:
    """Print a line on standard error unless `quiet`."""
    if not quiet:
        typer.echo(line, err=True)


def _how_to_go_on(jobs: Sequence[Job]) -> str:
    """Return the commands that resume and that cancel the jobs."""
    again = f"continue with: {command_again(resume=True)}"
    if not jobs:
        return f"nothing was submitted; {again}"
    ids = " ".join(job.id for job in jobs)
    return f"the jobs continue; follow them with: {command_again(resume=True)}; cancel them with: scancel {ids}"
