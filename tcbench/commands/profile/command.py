"""The command `tcbench profile`: record a timeline of one cell."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import typer

from tcbench.core import files
from tcbench.core.errors import SelectionError, TcbenchError, TraceError
from tcbench.show import options
from tcbench.show.app import SOME_CELL_FAILED, command, interruptible
from tcbench.show.console import make_console, stages
from tcbench.show.next_steps import NextStep
from tcbench.show.saving import save_each

if TYPE_CHECKING:
    from tcbench.core.record import Cell, Selection
    from tcbench.core.timeline import Timeline
    from tcbench.run.launcher import Launcher
    from tcbench.run.plan import Plan, PlannedCell
    from tcbench.run.runner import Listener

Tool = Literal["auto", "nsys", "cupti", "ranges"]

TrialResult = TypeVar("TrialResult")

_TIMED_S = 5.0
"""The budget of the timed pass before the profiled one, enough for steady steps."""


@command("Record one cell's timeline: a trace, a picture, a summary.")
@options.selects(
    "scenario batch_sizes device input models image_size ranks ...",
    without="quick configs trials budget_s target max_time_s timeout_s launcher goes_on",
    batch_sizes=options.CELLS.field(
        "--bs N",
        "Batch size. Default: the scenario's first.",
        int | None,
        read=lambda n: None if n is None else (n,),
        within=(1, 999_999),
    ),
    models=options.CELLS.field(
        "--model NAME",
        "A network, such as resnet18 (`tcbench list` shows all). Default: the scenario's.",
        takes=options.NETWORKS,
        read=options.model_names,
        complete=options.completion("complete_model"),
    ),
    ranks=options.CELLS.field(
        "--ranks N",
        "Processes that train together, started by mpirun on this machine, each with a timeline.",
        int,
        1,
        read=lambda n: (n,),
        within=(1, 999_999),
    ),
)
def profile(
    config: str = typer.Argument(
        metavar="CELL",
        help="A config's name, or rungs joined by '+'; its batch size is --bs. A scenario's file: its first config.",
        autocompletion=options.completion("complete_config"),
    ),
    steps: int = options.MEASURING.option("--steps -n N", "Steps to record.", 5, within=(1, 10_000)),
    tool: Tool = options.MEASURING.option(
        "--tool TOOL",
        "nsys (Nsight Systems), cupti (GPUs only), ranges (tcbench's own), or auto: the first that is available; on a "
        "CPU, ranges.",
        "auto",
    ),
    host: bool = options.MEASURING.option(
        "--host", "Instead of a timeline, sample the host's Python functions for some seconds with py-spy."
    ),
    *,
    chosen: Selection,
    out: Path = options.out_option("Files"),
    quiet: bool = options.QUIET,
) -> None:
    """Run one cell, record a few of its steady steps, and show what limits it. Write a trace for Perfetto
    (ui.perfetto.dev) that also holds the trial's record, a picture, and a summary. With --host, write a
    file for www.speedscope.app, which shows in which Python functions the steps spend their time.

    Exit code: 0; 2 for a mistake in the command; 3 when the cell failed; 130 when interrupted.

    Examples:
    tcbench profile fp16+dali --bs 8                   what limits it, with a picture
    tcbench profile fp16 --bs 64 --device cuda:0       with Nsight Systems where nsys is on PATH, else with CUPTI
    tcbench profile fp32 --bs 4 --tool ranges -n 10    without a profiler
    tcbench profile fp32 --bs 8 --host                 the host's functions, for www.speedscope.app"""
    from tcbench.commands.profile import profiler
    from tcbench.run.scenario import SUFFIX, load
    from tcbench.tracing import perfetto

    options.export_tuning_options(chosen)
    names = options.config_names([config], "CELL")
    if chosen.scenario is None and config.endswith(SUFFIX):  # as in `run`: the scenario, here its first config
        names, chosen = (load(config).configs[0].name,), replace(chosen, scenario=config)
    plan, planned = _planned(replace(chosen, configs=names), steps)
    stderr, stdout = make_console(stderr=True), make_console()
    if host:
        stdout.say(*_sampled(plan, planned, tool, out, quiet))
        return
    recorder, launcher = profiler.recorder_for(tool, planned.cell), _launcher(plan)
    stem = _stem(out / plan.device.machine, planned.cell)
    trial = profiler.ProfiledTrial(planned, recorder, launcher, plan.timeout_s, stem, options.ANOTHER_FOLDER)
    profile = _with_progress(trial.run, plan, planned, quiet)
    if not profile.timelines:
        raise _Failed(f"{planned.cell.label}: {profile.record.status}: {profile.record.reason}")

    def draw() -> object:
        from tcbench.commands.timeline.chart import timeline_chart

        return timeline_chart(profile.timelines)

    trace = stem.with_name(stem.name + ".json.gz")
    perfetto.write(profile.timelines, trace, profile.record)
    pictures = save_each({stem.with_name(stem.name + ".png"): draw}, "picture")
    written = [trace, *pictures]
    summary = "\n".join(_summary(replace(timeline, record=profile.record)) for timeline in profile.timelines)
    text = stem.with_name(stem.name + ".txt")
    files.write(text, f"{summary}\n".encode(), options.ANOTHER_FOLDER)
    written += [text, *profile.files]
    stderr.say(*(f"note: {line}" for line in profile.notes), style="yellow")
    endings = [path.name.removeprefix(f"{stem.name}.") for path in written]
    stdout.say(summary, "", f"wrote {stem}.{{{','.join(endings)}}}")  # in the brace syntax of a shell
    if pictures and (zoom := _close_up(profile.timelines[0])):
        words = ("timeline", str(trace), "--zoom", f"{zoom[0]:g}:{zoom[1]:g}", "-o", "zoomed.png")
        stdout.offer([NextStep(words, "a close-up; ui.perfetto.dev opens the trace too")])


def _close_up(timeline: Timeline) -> tuple[float, float] | None:
    from tcbench.commands.timeline.chart import close_up  # needs matplotlib, which may not load

    return close_up(timeline)


def _with_progress(
    run: Callable[[Listener], TrialResult], plan: Plan, planned: PlannedCell, quiet: bool
) -> TrialResult:
    """Prepare the input, call `run` with a listener that shows a progress line, and return what `run` returns."""
    from tcbench.run import images
    from tcbench.run.eta import estimate
    from tcbench.show.progress import RunProgress

    with stages(quiet) as advance:
        images.check_folder(plan, advance)
        images.generate(plan, advance)
    progress = RunProgress(make_console(stderr=True, quiet=quiet), estimate([planned.cell]), 1)
    with interruptible(lambda: "; nothing was kept"), progress:
        return run(progress.listen)


def _sampled(plan: Plan, planned: PlannedCell, tool: Tool, out: Path, quiet: bool) -> list[str]:
    """Run the cell with py-spy, which samples the host's Python functions, and return lines that say where the file is
    and how to open it. Raises an error if the trial fails, or for an option that --host excludes."""
    from tcbench.commands.profile import profiler

    for is_set, option in ((planned.cell.host_speed != 1, "--host-speed"), (planned.cell.ranks > 1, "--ranks")):
        if is_set:
            raise SelectionError(f"--host samples one process at this host's own speed; omit {option}")
    if tool != "auto":
        raise SelectionError(f"--tool {tool} records a timeline, and --host samples with py-spy; omit one of them")
    stem = _stem(out / plan.device.machine, planned.cell, "host")
    run = functools.partial(profiler.sample_host, planned, plan.timeout_s, stem)
    record, samples = _with_progress(run, plan, planned, quiet)
    if samples is None:
        raise _Failed(f"{planned.cell.label}: {record.status}: {record.reason}")
    return [
        f"wrote {samples}",
        "Open it at www.speedscope.app; the phases are the functions below `profile` (loop.py).",
    ]


class _Failed(TcbenchError):
    """The trial of the cell failed."""

    exit_code = SOME_CELL_FAILED


def _planned(chosen: Selection, steps: int) -> tuple[Plan, PlannedCell]:
    """Return the plan, with a short timed pass, and its only cell, with `steps` profiled steps. Raises TcbenchError for
    no or several cells, or one that cannot run here."""
    import msgspec

    from tcbench.run.plan import PlannedCell, plan_of

    plan = plan_of(replace(chosen, max_time_s=_TIMED_S), first=True)
    if len(plan.cells) != 1:
        models = {planned.cell.model for planned in plan.cells}
        names = "; ".join(
            f"{planned.cell.model}: {planned.cell.label}" if len(models) > 1 else planned.cell.label
            for planned in plan.cells[:3]
        )
        more = "; ..." if len(plan.cells) > 3 else ""
        raise SelectionError(f"expected one cell, got {len(plan.cells)}: {names}{more}")
    (planned,) = plan.cells
    if planned.cell.command is not None:
        raise SelectionError(
            f"{planned.cell.label} is a program of your own: record a trace with its framework's profiler or with nsys "
            "around it, and run tcbench explain TRACE (docs/traces.md)"
        )
    if planned.skip_reason is not None:
        raise SelectionError(f"{planned.cell.label} cannot run here: {planned.skip_reason}")
    measure = msgspec.structs.replace(planned.cell.measure, profiled_steps=steps)
    return plan, PlannedCell(msgspec.structs.replace(planned.cell, measure=measure))


def _launcher(plan: Plan) -> Launcher:
    """Return the launcher: for several ranks mpirun on this machine, because their recordings are read here. Raises
    SelectionError."""
    from tcbench.run.launcher import find_for
    from tcbench.run.ranks import probe_largest

    [cell] = [planned.cell for planned in plan.cells]
    _, launcher = find_for(plan, "mpirun" if cell.ranks > 1 else None, explicit=True)
    probe_largest(launcher, [cell])
    return launcher


def _stem(folder: Path, cell: Cell, kind: str = "profile") -> Path:
    """Return the path of a profile's files without suffix, from cell and time (UTC), and make the folder."""
    ranks = f"-ranks{cell.ranks}" if cell.ranks > 1 else ""
    name = re.sub(r"[^\w.+-]", "_", f"{kind}-{cell.config}-bs{cell.batch_size}{ranks}-{cell.device}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"{folder}: cannot be created ({error.strerror}); name another folder with --out") from None
    return folder / f"{name}-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"


def _summary(timeline: Timeline) -> str:
    """Describe the bottleneck of a cell and the costliest parts of its step."""
    from tcbench.analysis.bottleneck import explain_timeline
    from tcbench.commands.explain.table import cost_lines
    from tcbench.commands.roofline.roofline import costliest
    from tcbench.run import ceilings
    from tcbench.show.bottlenecks import limit_sentence

    costs = costliest(timeline, ceilings.trial_ceilings(timeline.record))
    verdict = f"{timeline.label} on {timeline.device_name}: {limit_sentence(explain_timeline(timeline))}"
    return "\n".join([verdict, *cost_lines(costs)])
