"""`tcbench run`: plan, measure, store, show."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tcbench.cli.app import INTERRUPTED, OUT, SOME_CELL_FAILED, command, given
from tcbench.cli.options import (
    HOW,
    WHERE,
    BatchSizesOption,
    BudgetOption,
    ConfigOption,
    DataOption,
    DeviceOption,
    FormatOption,
    HostSpeedOption,
    ImageSizeOption,
    LauncherOption,
    MaxTimeOption,
    ModelOption,
    OutOption,
    QuietOption,
    RanksOption,
    ScenarioArgument,
    SeedOption,
    TargetOption,
    ThreadsOption,
    TimeoutOption,
    TrialsOption,
    seconds,
    selection,
)
from tcbench.core.errors import SelectionError, TcbenchError

if TYPE_CHECKING:
    from tcbench.analysis.scaling import Curve
    from tcbench.analysis.summary import CellSummary
    from tcbench.core.record import Cell, Record
    from tcbench.run.launcher import Launcher
    from tcbench.run.plan import Plan, Selection


@command(
    "Run a scenario; keep records and a chart.",
    """
tcbench run                                        the whole ladder on the best device here
tcbench run --bs 32,64,128,256 --config 'fp16*'    the fp16 half at the talk's batch sizes
tcbench run --config fp32 --config fp16+dali --bs 8 --trials 5
tcbench run naruse2018 --data /data/imagenet/train --bs 32
tcbench run scaling --ranks 1,2,4                  many ranks: over MPI, or NCCL on GPUs
tcbench run --resume                               the same command again, after an interrupt: only what is missing
""",
)
def run(
    context: typer.Context,
    scenario: ScenarioArgument = None,
    bs: BatchSizesOption = None,
    ranks: RanksOption = None,
    config: ConfigOption = None,
    device: DeviceOption = "auto",
    model: ModelOption = None,
    data: DataOption = None,
    image_size: ImageSizeOption = None,
    trials: TrialsOption = None,
    budget: BudgetOption = None,
    target: TargetOption = None,
    max_time: MaxTimeOption = None,
    timeout: TimeoutOption = None,
    fresh_autotune: Annotated[
        bool,
        typer.Option(
            "--fresh-autotune", help="Time cuDNN's or oneDNN's plans again, ignoring kept choices.", rich_help_panel=HOW
        ),
    ] = False,
    tuning_budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="On a GPU: the time a trial may take to tune cuDNN's plans; each work's first are always timed. "
            "Default: 60s.",
            rich_help_panel=HOW,
        ),
    ] = None,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    host_speed: HostSpeedOption = 1.0,
    launcher: LauncherOption = None,
    out: OutOption = OUT,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Add what is missing to the newest run of this scenario.", rich_help_panel=WHERE),
    ] = False,
    allow: Annotated[
        str | None,
        typer.Option(
            metavar="code",
            help="With --resume: add to a run that was measured with other code; pictures then name every commit. "
            "Default: nothing.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Ends the run's name, after its date. Default: none.", rich_help_panel=WHERE),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, and stop.", rich_help_panel=WHERE)
    ] = False,
    quiet: QuietOption = False,
    format_: FormatOption = "table",
) -> None:
    """Run a scenario's configs at its batch sizes; print a table, keep records and a chart.

    Exit code: 0 when every cell is ok, skipped or out of memory; 2 for a mistake in the command or the scenario; 3
    when some cell failed; 130 when interrupted.
    """
    from tcbench.core import messages

    chosen = selection(
        bs=bs,
        config=config,
        data=data,
        image_size=image_size,
        trials=trials,
        budget=budget,
        target=target,
        max_time=max_time,
        timeout=timeout,
        seed=seed,
        threads=threads,
        host_speed=host_speed,
        ranks=ranks,
        model=model,
    )
    of_label = ending(label)
    if allow not in (None, "code"):
        raise SelectionError(f"--allow {allow[:40]!a}: expected code")
    tuning_budget_s = seconds("--tuning-budget", tuning_budget)
    plan = make_plan(scenario, chosen, device)
    check_folder(plan)
    plan, starter = with_launcher(plan, launcher, asked=ranks is not None)
    if dry_run:
        _show_plan(plan, format_ == "json")
        return
    if fresh_autotune:
        os.environ[messages.FRESH_AUTOTUNE] = "1"  # workers inherit it
    if tuning_budget_s is not None:
        os.environ[messages.TUNING_BUDGET] = str(tuning_budget_s)
    kept = [one for one in context.command.params if one.name not in _OF_ONE_RUN]
    whole = shlex.join(["tcbench", "run", *given(context, kept)]) if config else ""
    earlier = _earlier(plan, out, of_label, allow) if resume else (None, (), "")
    failed = _run(plan, starter, out, of_label, earlier, quiet, format_ == "json", whole)
    if failed:
        raise typer.Exit(SOME_CELL_FAILED)


_OF_ONE_RUN = {"config", "fresh_autotune", "resume", "label", "quiet", "format_"}
"""Options that the proposal to run a scenario's other configs too does not repeat."""


def make_plan(scenario: str | None, chosen: Selection, device: str, *, remote: bool = False) -> Plan:
    """The scenario's cells on the device; without a name, the default scenario of that. `remote` as in `plan.make`.
    Raises SelectionError or ScenarioError."""
    from tcbench.engine.accelerators import device as devices
    from tcbench.engine.backends import device_kinds
    from tcbench.run import plan
    from tcbench.run import scenario as scenarios

    loaded = scenarios.load(scenario) if scenario else None
    target = devices.find(
        device, device_kinds(config.backend for config in loaded.configs) if loaded else device_kinds()
    )
    default = "cpu" if target.kind == "cpu" else "naruse2018"
    return plan.make(loaded or scenarios.load(default), chosen, target, remote=remote)


def _show_plan(plan: Plan, json: bool) -> None:
    from tcbench.run import rounds
    from tcbench.show import console

    state = rounds.start(plan)
    if json:
        typer.echo(console.plan_json(plan, state))
        return
    out = console.make_console()
    for line in (console.plan_line(plan), console.rounds_line(state)):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    out.print(console.plan_table(plan, state))


def with_launcher(plan: Plan, name: str | None, *, asked: bool) -> tuple[Plan, Launcher]:
    """The plan as far as there is room for its ranks, and what starts them. `asked`: their number stands on the command
    line. Raises SelectionError where nothing starts them, or where there is no room for what was asked."""
    from tcbench.engine.accelerators.device import kind_of
    from tcbench.run import launcher

    if asked and kind_of(plan.device.name).simulates is not None:
        reasons = [planned.skip_reason for planned in plan.cells if planned.cell.ranks > 1 and planned.skip_reason]
        if reasons:
            raise SelectionError(f"--ranks on {plan.device.name}: {reasons[0]}")
    if name is None and all(planned.cell.ranks == 1 for planned in plan.cells if planned.skip_reason is None):
        return plan, launcher.Launcher()
    starter = launcher.find(name)
    return launcher.fitting(plan, starter, asked=asked), starter


def ending(label: str | None) -> str:
    """The end of the name of a run with a label. Raises SelectionError."""
    if label is None:
        return ""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", label, re.ASCII):
        raise SelectionError(f"--label {label!a}: expected letters, digits, and any of _ . -")
    return f"_{label}"


_Earlier = tuple[Path | None, tuple["Record", ...], str]
"""A run's file and records, and a line about them."""


def _run(
    plan: Plan, launcher: Launcher, out: Path, ending: str, earlier: _Earlier, quiet: bool, json: bool, whole: str
) -> bool:
    """Run a plan to its end, store and show it. `whole` as in `_next_step`. True when some cell failed."""
    from tcbench.analysis.eta import estimate
    from tcbench.core import messages, store
    from tcbench.run import rounds
    from tcbench.run.checkup import disturbances
    from tcbench.run.runner import Launch, Runner
    from tcbench.show import console
    from tcbench.show.format import counted
    from tcbench.show.progress import RunProgress

    stderr = console.make_console(stderr=True)

    def say(line: str) -> None:
        if not quiet:
            stderr.print(line, markup=False, highlight=False, soft_wrap=True)

    resumed, before, whether = earlier
    path = resumed or store.new_path(out, plan.device.machine, plan.scenario.name, ending)
    fresh: list[Record] = []
    state = rounds.start(plan, before)
    ahead = list(state.ahead())

    def to_run() -> list[Cell]:
        return [planned.cell for planned, _ in ahead if planned.skip_reason is None]

    try:
        cores = probe(launcher, [planned.cell for planned in plan.cells if planned.skip_reason is None and ahead])
        with store.Store(path) as records:
            generate_input(plan, stderr, quiet)
            say(console.plan_line(plan))
            if (library := _library(plan)) is not None:
                say(library)
            for finding in disturbances():
                say(f"note: {finding.detail}" + (f"; {finding.remedy}" if finding.remedy else ""))
            if whether:
                say(whether)
            say(console.rounds_line(state))
            with RunProgress(stderr, estimate((), before), len(ahead), quiet) as progress:
                launch = Launch(variables={messages.CORES: str(cores)})
                runner = Runner(
                    path.stem, plan.timeout_s, listen=progress.listen, launch=launch, launcher=launcher, plan=plan.key
                )
                while ahead:
                    round_ = ahead[0][1] + 1
                    progress.begin(f"round {round_}" if round_ > 1 else "", to_run(), len(fresh) + len(ahead))
                    for record in runner.run(ahead[:1]):
                        records.append(record)
                        fresh.append(record)
                        state = state.after(record)
                        ahead = list(state.ahead())
                        progress.finished(record, to_run(), len(fresh) + len(ahead))
        wanted = {planned.cell.key for planned in plan.cells}
        records_now = [record for record in store.current([*before, *fresh]) if record.cell.key in wanted]
        failed = any(record.status in ("failed", "timeout", "crashed") for record in records_now)
        _show_results(records_now, path, failed, json, whole)
    except KeyboardInterrupt:
        stored = len(store.read([path]).records)  # an interrupt may come just after one was written
        where = f"{counted(stored, 'record')} kept in {path}" if stored else "nothing was measured yet"
        typer.echo(f"\ninterrupted; {where}; go on with: {command_again(resume=bool(stored))}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        store.remove_empty(path)
    return failed


def _earlier(plan: Plan, out: Path, ending: str, allow: str | None) -> _Earlier:
    """The newest run of the scenario where it is of this plan, with its records; and a line that says which run is gone
    on with, or why none is. Raises SelectionError where its code was another and `allow` is not "code"."""
    from tcbench.core import store
    from tcbench.hardware.machine import other_code
    from tcbench.run.rounds import differences
    from tcbench.show.format import counted

    path = store.latest(out, plan.device.machine, plan.scenario.name, ending)
    if path is None:
        return None, (), "nothing to resume: a new run"
    before = store.current(store.read([path]).records)
    if differing := differences(plan, before):
        return None, (), f"nothing to resume: a new run, as {path} is of another selection: {differing}"
    code = other_code(before)
    if code and allow is None:
        raise SelectionError(
            f"--resume: {path} was measured with other code: {code}; --allow code adds to it all the same, "
            "without --resume a new run begins"
        )
    of_other = f", of other code: {code}" if code else ""
    return path, before, f"resuming {path}: {counted(len(before), 'record')} there{of_other}"


def probe(launcher: Launcher, cells: Sequence[Cell]) -> int:
    """Have the launcher start as many ranks as the largest cell has, before anything is measured; the number of
    processors that each is bound to, 0 where they are not or there is one. Raises SelectionError where they do not
    come."""
    from tcbench.run import ranks
    from tcbench.run.runner import Launch, worker_environment

    cell = max(cells, key=lambda cell: cell.ranks, default=None)
    if cell is not None and cell.ranks > 1:
        return ranks.probe(launcher, cell.ranks, Launch().rank_command, worker_environment(cell))
    return 0


def _library(plan: Plan) -> str | None:
    """The library that will compute and, where that is not the fastest, why, with the command that brings it; None
    where the packages' versions say it."""
    from tcbench.engine.accelerators.device import kind_of
    from tcbench.engine.backends import DEFAULT

    kind = kind_of(plan.device.name)
    if not any(planned.cell.backend == DEFAULT for planned in plan.cells) or (library := kind.library()) is None:
        return None
    shortfall = kind.shortfall()
    return f"{library} computes" + (f": {shortfall}" if shortfall else "")


def _show_results(records: Sequence[Record], path: Path, failed: bool, json: bool, whole: str) -> None:
    """The table or its JSON, the chart, what to do next."""
    from tcbench.analysis.networks import networks
    from tcbench.analysis.scaling import curves
    from tcbench.analysis.summary import speedups, summarise
    from tcbench.show import console, scaling, simulated
    from tcbench.show import networks as of_networks

    summaries = summarise(records)
    ratios = speedups(summaries)
    scaled = curves(records)
    charts = _charts(summaries, scaled, path)
    if json:
        typer.echo(console.summary_json(path.stem, path, summaries, ratios, scaling.to_json(scaled)))
        return
    stdout = console.make_console()

    def say(line: str, style: str = "") -> None:
        stdout.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    stdout.print()
    for line in simulated.lines(summary.environment for summary in summaries):
        say(line, "bold")
    stdout.print(console.results_table(summaries, ratios))
    stdout.print()
    if scaled:
        stdout.print(scaling.table(scaled))
        stdout.print()
    if beside := networks(summaries):
        stdout.print(of_networks.table(beside))
        stdout.print()
    for line in console.reasons(summaries):
        say(line, "yellow")
    for line in (*console.footnotes(summaries), *(scaling.notes(scaled) if scaled else ())):
        say(line, "dim")
    say(f"{console.tally(summaries)}. Records: {path}")
    for chart in charts:
        say(f"Chart: {chart}")
    say(_next_step(summaries, path, failed, whole))


def check_folder(plan: Plan) -> None:
    """Look at the user's images before any worker needs them, so that a bad folder is an error and not failed cells."""
    from tcbench.core.errors import DataError
    from tcbench.engine.feeds import dataset, pictures
    from tcbench.show.console import make_console
    from tcbench.show.progress import Stages

    cell = plan.cells[0].cell
    if cell.input.kind == "folder" and cell.input.path is not None:
        with Stages(make_console(stderr=True), quiet=False) as stages:
            images = dataset.scan(Path(cell.input.path), progress=partial(stages.advance, "checking the images"))
        n_classes = len(images.classes)
    else:
        n_classes = pictures.N_CLASSES if cell.input.kind == "generated" else 0
    if n_classes > cell.n_classes:
        raise DataError(
            f"the images have {n_classes} classes, the scenario's model {cell.n_classes}: "
            f"expected model.classes of at least {n_classes} in {plan.scenario.path}"
        )


def generate_input(plan: Plan, console: Any, quiet: bool) -> None:
    """Make the default images before any worker needs them."""
    from tcbench.engine.feeds import generated
    from tcbench.show.progress import Stages

    if any(p.cell.input.kind == "generated" and p.skip_reason is None for p in plan.cells):
        with Stages(console, quiet) as stages:
            generated.ensure_generated(partial(stages.advance, "generating JPEGs, once"))


def _charts(summaries: Sequence[CellSummary], scaled: Sequence[Curve], records: Path) -> list[Path]:
    """The throughput chart beside the records, or that of networks where there are several, and that of scaling over
    ranks; none when nothing was measured."""
    if not any(summary.images_per_s for summary in summaries):
        return []
    from tcbench.analysis.networks import networks
    from tcbench.cli.plot import throughput_chart
    from tcbench.show import charts

    drawings: dict[Path, Callable[[], Any]] = {records.with_suffix(".png"): lambda: throughput_chart(summaries)}
    if scaled:
        drawings[records.with_name(f"{records.stem}-scaling.png")] = lambda: charts.scaling_chart(scaled)
    if networks(summaries):
        drawings = {records.with_suffix(".png"): lambda: charts.networks_chart(summaries)}
    drawn = []
    for path, draw in drawings.items():
        try:
            charts.save(draw(), path)
        except TcbenchError as error:
            typer.echo(f"note: no chart: {error}", err=True)
        else:
            drawn.append(path)
    return drawn


def _next_step(summaries: Sequence[CellSummary], path: Path, failed: bool, whole: str) -> str:
    """One line: the most useful thing to do with these results. `whole`: the command for all configs, where some were
    chosen."""
    from tcbench.analysis.ladder import climbs
    from tcbench.analysis.networks import networks

    if failed:
        return f"Next: {command_again(resume=True)}   (runs again what failed; its log is in the record)"
    if any(summary.cell.ranks > 1 for summary in summaries):
        return f"Next: tcbench explain {shlex.quote(str(path))}   (what holds each cell back: the all-reduce?)"
    if climbs(summaries):
        return f"Next: tcbench plot {shlex.quote(str(path))} --kind ladder -o ladder.png   (what each rung buys)"
    if any(summary.cell.is_own for summary in summaries):
        return f"Next: tcbench explain {shlex.quote(str(path))}   (which phase takes most of each step)"
    of_networks = bool(networks(summaries))
    if of_networks or not whole:
        what = "network" if of_networks else "cell"
        return f"Next: tcbench explain {shlex.quote(str(path))}   (what holds each {what} back)"
    return f"Next: {whole}   (all configs of the scenario: what each rung buys)"


def command_again(*, resume: bool) -> str:
    """The command that was given, to be given again."""
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--debug")]
    return shlex.join(["tcbench", *words, *(["--resume"] if resume else [])])
