"""The command `tcbench run`: plan, measure, store and show the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from tcbench.core.errors import SelectionError
from tcbench.show import options
from tcbench.show.app import INTERRUPTED, SOME_CELL_FAILED, command, command_again, given_words
from tcbench.show.console import make_console, stages
from tcbench.show.next_steps import NextStep, resume_step, run_step

if TYPE_CHECKING:
    from tcbench.core.record import Cell, Record, Selection
    from tcbench.run.launcher import Launcher
    from tcbench.run.plan import Plan
    from tcbench.run.rounds import Rounds


@command("Run a scenario; keep records and a chart.")
@options.selects("scenario quick batch_sizes ranks configs device models ...")
def run(
    context: typer.Context,
    chosen: Selection,
    out: Path = options.OUT_FOLDER,
    resume: bool = options.OUTPUT.option("--resume", "Add what is missing to the newest run of the same cells."),
    allow: Literal["code"] | None = options.ALLOW_CODE,
    label: str | None = options.OUTPUT.option(
        "--label NAME",
        "A suffix for the run's name, after the date. Default: none.",
        takes="1 to 80 letters, digits, `_`, `.` and `-`",
    ),
    dry_run: bool = options.OUTPUT.option("--dry-run", "Show what would run, and stop."),
    quiet: bool = options.QUIET,
    format_: options.TableOrJson = options.FORMAT,
) -> None:
    """Run a scenario's configs at its batch sizes; print a table, keep records and a chart.

    Exit code: 0 when every cell is ok, skipped or out of memory; 2 for a mistake in the command or the scenario; 3
    when some cell failed; 130 when interrupted.

    Examples:
    tcbench run                                     the whole ladder on the best device here
    tcbench run --quick                             the best config against the base, in under a minute on most machines
    tcbench run --bs 32,64,128,256 --config 'fp16*'  the fp16 half at the talk's batch sizes
    tcbench run --config fp32 --config fp16+dali --bs 8 --trials 5
    tcbench run naruse2018 --data /data/imagenet/train --bs 32
    tcbench run scaling --ranks 1,2,4               many ranks: over MPI, or NCCL on GPUs
    tcbench run --resume                            the same command after an interrupt: only what is missing"""
    from tcbench.core.store import run_id_suffix
    from tcbench.run import images
    from tcbench.run.launcher import find_for
    from tcbench.run.plan import plan_of

    ending = run_id_suffix(label)
    options.export_tuning_options(chosen)
    plan = plan_of(chosen)
    with stages(quiet) as advance:
        images.check_folder(plan, advance)
    plan, launcher = find_for(plan, chosen.launcher, explicit=chosen.ranks is not None)
    if dry_run:
        _show_plan(plan, out, format_ == "json")
        return
    words = ["run", *given_words(context, without=_NOT_REPEATED)] if chosen.configs or chosen.quick else []
    earlier = _earlier(plan, out, ending, allow) if resume else (None, (), "")
    if _run(plan, launcher, out, ending, earlier, quiet, format_ == "json", words):
        raise typer.Exit(SOME_CELL_FAILED)


_NOT_REPEATED = {"configs", "quick", "fresh_autotune", "resume", "label", "quiet", "format_"}
"""Options left out of the suggestion to run all configs of the scenario."""


def _start(plan: Plan, out: Path, before: Sequence[Record] = ()) -> Rounds:
    """Return the rounds of a plan that are left to run after the records `before`, with an estimate of the time they
    take. The estimate is based on the last run on this machine, or on the machine's present speed."""
    from tcbench.hardware import load
    from tcbench.run import prediction, rounds
    from tcbench.run.inputs import recent_trials

    _, earlier = recent_trials(out / plan.device.machine, (planned.cell.model for planned in plan.cells))
    return rounds.start(plan, before, load.slowdown(), prediction.foreseen(plan), earlier)


def _show_plan(plan: Plan, out: Path, json: bool) -> None:
    """Print a plan as JSON, or as a table below lines on the plan and on the number and time of its trials."""
    from tcbench.commands.run import planning

    state = _start(plan, out)
    if json:
        typer.echo(planning.plan_json(plan, state))
        return
    stdout = make_console()
    stdout.say(*filter(None, (planning.plan_line(plan), plan.left_out, planning.rounds_line(state))))
    stdout.print(planning.plan_table(plan, state))


_Earlier = tuple[Path | None, tuple["Record", ...], str]
"""The file and the records of a run to resume, and a line about them."""


def _run(
    plan: Plan,
    launcher: Launcher,
    out: Path,
    ending: str,
    earlier: _Earlier,
    quiet: bool,
    json: bool,
    all_configs: Sequence[str],
) -> bool:
    """Run a plan, store its records and show the results. Return whether some cell failed.

    `all_configs` is the command that runs all configs of the scenario, if this one runs only some."""
    from tcbench.commands.run import planning
    from tcbench.commands.run.ahead import build
    from tcbench.commands.run.table import round_label
    from tcbench.core import messages, store
    from tcbench.run import images
    from tcbench.run.checkup import disturbances
    from tcbench.run.ranks import probe_largest
    from tcbench.run.rounds import runs_again_alone, turn_group
    from tcbench.run.runner import COOLING_S, Runner
    from tcbench.run.worker_launch import Launch
    from tcbench.show.format import counted
    from tcbench.show.progress import RunProgress

    stderr = make_console(stderr=True, quiet=quiet)
    say = stderr.say
    resumed, before, resume_line = earlier
    path = resumed or store.new_path(out, plan.device.machine, plan.scenario.name, ending)
    fresh: list[Record] = []
    state = _start(plan, out, before)
    ahead = list(state.ahead())

    def cells_ahead() -> list[Cell]:
        """Return the cells of the remaining trials."""
        return [planned.cell for planned, _ in ahead if planned.skip_reason is None]

    try:
        cores = probe_largest(
            launcher, [planned.cell for planned in plan.cells if planned.skip_reason is None and ahead]
        )
        with store.Store(path) as records:
            findings = list(disturbances())  # checked before the following work keeps all cores busy
            with stages(quiet) as advance:
                images.generate(plan, advance)
                compiled = build(cells_ahead(), plan.device.name, advance)
            say(planning.plan_line(plan))
            if plan.left_out:
                say(plan.left_out)
            if (library := _library(plan)) is not None:
                say(library)
            if compiled:
                say(compiled)
            for finding in findings:
                say(f"note: {finding.detail}" + (f"; {finding.remedy}" if finding.remedy else ""))
            if resume_line:
                say(resume_line)
            say(planning.rounds_line(state))
            expected = replace(state.costs, remaining=tuple(cells_ahead()))
            with RunProgress(stderr, expected, state.certain()) as progress:
                launch = Launch(variables={messages.CORES: str(cores)})
                settings: dict[str, Any] = {"launch": launch, "launcher": launcher, "plan": plan.key}
                runner = Runner(path.stem, plan.timeout_s, listen=progress.listen, cooling_s=COOLING_S, **settings)
                alone = {record.cell.key for record in before if runs_again_alone(record)}
                while ahead:
                    group = turn_group(ahead, alone)
                    progress.begin(round_label(state), cells_ahead(), state.certain(), len(group))
                    for attempt, record in enumerate(runner.run_group(group, plan.turns_max_time_s)):
                        records.append(record)
                        fresh.append(record)
                        state = state.with_record(record)
                        ahead = list(state.ahead())
                        if again := runs_again_alone(record):
                            alone.add(record.cell.key)
                        again = again or (len(group) == 1 and attempt == 0 and runner.repeats(record))
                        progress.finished(record, cells_ahead(), again=again)
        keys = {planned.cell.key for planned in plan.cells}
        current = [record for record in store.current([*before, *fresh]) if record.cell.key in keys]
        failed = any(record.status in ("failed", "timeout", "crashed") for record in current)
        _show_results(current, path, out, failed, json, all_configs)
    except KeyboardInterrupt:
        stored = len(store.read([path]).records)  # more than `fresh` if the interrupt came during a write
        where = f"{counted(stored, 'record')} kept in {path}" if stored else "nothing was measured yet"
        typer.echo(f"\ninterrupted; {where}; continue with: {command_again(resume=bool(stored))}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        store.remove_empty(path)
    return failed


def _earlier(plan: Plan, out: Path, ending: str, allow: str | None) -> _Earlier:
    """Return the newest run of this plan to resume: its file, its records, and a line that names it.

    If there is none, return None, no records, and a line with the reason. Raises SelectionError if the run was measured
    with other code, unless `allow` is "code"."""
    from tcbench.core import store
    from tcbench.hardware.machine import other_code
    from tcbench.run.rounds import differences
    from tcbench.show.format import counted

    newest_differs = ""
    for path in store.newest_first(out, plan.device.machine, plan.scenario.name, ending):
        before = store.current(store.read([path]).records)
        if not (differing := differences(plan, before)):
            break
        newest_differs = newest_differs or f"; {path} has another selection: {differing}"
    else:
        return None, (), f"nothing to resume, starting a new run{newest_differs}"
    code = other_code(before)
    if code and allow is None:
        raise SelectionError(
            f"--resume: {path} was measured with other code: {code}; --allow code adds to it anyway; "
            "omit --resume to start a new run"
        )
    other = f", measured with other code: {code}" if code else ""
    return path, before, f"resuming {path}: {counted(len(before), 'record')}{other}"


def _library(plan: Plan) -> str | None:
    """Return a line that names the library that will compute, and why no faster one will. None if no cell uses the
    default backend, or if the device's kind has only one library."""
    from tcbench.core.record import DEFAULT_BACKEND
    from tcbench.engine.api import kind_of

    kind = kind_of(plan.device.name)
    if (
        not any(planned.cell.backend == DEFAULT_BACKEND for planned in plan.cells)
        or (library := kind.library()) is None
    ):
        return None
    shortfall = kind.shortfall()
    return f"{library} computes" + (f": {shortfall}" if shortfall else "")


def _show_results(
    records: Sequence[Record], path: Path, out: Path, failed: bool, json: bool, all_configs: Sequence[str]
) -> None:
    """Print the results as tables or JSON, save charts beside the records at `path`, and suggest next steps.

    `failed` means that some cell failed. `all_configs` are the words of the command that runs all configs of the
    scenario, if this one ran only some."""
    from tcbench.analysis.summary import speedups, summarise
    from tcbench.commands.run import networks_chart, scaling_table
    from tcbench.commands.run.scaling import curves
    from tcbench.commands.run.table import fastest_sentence, footnotes, reasons, results_table, summary_json, tally
    from tcbench.show import naming
    from tcbench.show.saving import save_each

    def draw() -> Any:
        from tcbench.commands.run.chart import throughput_chart

        return networks_chart.networks_chart(summaries) if networks else throughput_chart(summaries)

    def draw_scaling() -> Any:
        from tcbench.commands.run.scaling_chart import scaling_chart

        return scaling_chart(scaling)

    summaries = summarise(records)
    ratios, scaling, networks = speedups(summaries), curves(records), networks_chart.network_results(summaries)
    drawings: dict[Path, Callable[[], Any]] = {}
    if measured := any(summary.images_per_s for summary in summaries):
        drawings[path.with_suffix(".png")] = draw
        if scaling and not networks:
            drawings[path.with_name(f"{path.stem}-scaling.png")] = draw_scaling
    if json:
        save_each(drawings)
        typer.echo(summary_json(path.stem, path, summaries, ratios, scaling_table.to_json(scaling)))
        return
    stdout = make_console()
    stdout.print()
    stdout.say(*naming.simulation_lines(summary.environment for summary in summaries), style="bold")
    stdout.table(results_table(summaries, ratios))
    if scaling:
        stdout.table(scaling_table.table(scaling))
    if networks:
        stdout.table(networks_chart.table(networks))
    stdout.say(*filter(None, [fastest_sentence(summaries, ratios)]))
    stdout.say(*reasons(summaries), style="yellow")
    stdout.notes([*footnotes(summaries), *(scaling_table.notes(scaling) if scaling else ())])
    charts = save_each(drawings)
    stdout.say(f"{tally(summaries)}. Records: {path}", *(f"Chart: {chart}" for chart in charts))
    steps = [resume_step("repeat what failed; the record has its log")] if failed else []
    if measured:
        steps.append(run_step("explain", path, out, "what limits each cell, and what to try next"))
        steps.append(run_step("report", path, out, "everything on one page"))
    if all_configs and not networks:
        steps.append(NextStep(tuple(all_configs), "all configs of the scenario: the gain of each rung"))
    stdout.offer(steps)
