"""`tcbench gate`: base and current in turns on this machine, until it is settled whether something got slower."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcbench.cli.app import INTERRUPTED, OUT, command
from tcbench.cli.comparisons import (
    AllowOption,
    FormatOption,
    MetricOption,
    OutputOption,
    StrictOption,
    ThresholdOption,
    allowed,
    called,
    check_output,
    comparable,
    exit_code,
    metrics,
    present,
    retry_command,
    threshold,
)
from tcbench.cli.options import (
    HOW,
    BatchSizesOption,
    ConfigOption,
    DataOption,
    DeviceOption,
    ImageSizeOption,
    LauncherOption,
    MaxTimeOption,
    OutOption,
    QuietOption,
    RanksOption,
    ScenarioArgument,
    SeedOption,
    TargetOption,
    ThreadsOption,
    TimeoutOption,
    seconds,
    selection,
)
from tcbench.core.errors import SelectionError, TcbenchError

if TYPE_CHECKING:
    from tcbench.analysis.verdict import Interim, Rule
    from tcbench.core.record import Cell
    from tcbench.run.builds import Build
    from tcbench.run.gate import Role
    from tcbench.run.launcher import Launcher
    from tcbench.run.plan import Plan, Selection
    from tcbench.run.turns import Ended

BUILDS = "What is compared"

COMPARED = frozenset({"libraries", "python"})
"""Facets that may always differ between two environments: they are compared for these."""


@command(
    "Run two versions in turns until it is settled whether one is slower.",
    """
tcbench gate --base main                           the working tree against a revision with its own environment
tcbench gate ./my_step.toml --base HEAD            before a commit: a step of one's own
tcbench gate --base v1.0 --current v1.1 --bs 8 --budget 30m --format github
tcbench gate --base-python old/bin/python          the same code on other libraries
tcbench gate ./my_step.toml --bisect v1.0..main    the commit that made it slower
""",
)
def gate(
    context: typer.Context,
    scenario: ScenarioArgument = None,
    base: Annotated[
        str | None,
        typer.Option(metavar="REVISION", help="The git revision to judge against.", rich_help_panel=BUILDS),
    ] = None,
    current: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION", help="The git revision to judge. Default: the working tree.", rich_help_panel=BUILDS
        ),
    ] = None,
    base_python: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON", help="In place of --base: the interpreter to judge against.", rich_help_panel=BUILDS
        ),
    ] = None,
    current_python: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON",
            help="The interpreter to judge. Default: that of this command.",
            rich_help_panel=BUILDS,
        ),
    ] = None,
    bisect: Annotated[
        str | None,
        typer.Option(
            metavar="GOOD..BAD",
            help="In place of --base: name the commit after GOOD, up to BAD, that made a cell slower.",
            rich_help_panel=BUILDS,
        ),
    ] = None,
    setup: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Makes the environment (.venv) of a revision in its worktree, each time; '' for none. "
            "Default: 'uv sync --quiet' where the revision has a pyproject.toml.",
            rich_help_panel=BUILDS,
        ),
    ] = None,
    bs: BatchSizesOption = None,
    ranks: RanksOption = None,
    config: ConfigOption = None,
    device: DeviceOption = "auto",
    data: DataOption = None,
    image_size: ImageSizeOption = None,
    interims: Annotated[
        str,
        typer.Option(
            "--looks",
            metavar="N,N,...",
            help="Trials a side after which a cell is judged: one to four numbers, ascending.",
            rich_help_panel=HOW,
        ),
    ] = "3,4,6,8",
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Begin no trial after trials have taken so long, e.g. 30m or 1800 (seconds).",
            rich_help_panel=HOW,
        ),
    ] = None,
    target: TargetOption = None,
    max_time: MaxTimeOption = None,
    timeout: TimeoutOption = None,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    launcher: LauncherOption = None,
    metric: MetricOption = None,
    threshold_: ThresholdOption = "3%",
    allow: AllowOption = None,
    strict: StrictOption = False,
    format_: FormatOption = "table",
    output: OutputOption = None,
    out: OutOption = OUT,
    quiet: QuietOption = False,
) -> None:
    """Run base and current in turns, each trial in a process of its own, and judge cell by cell: what is decided stops,
    what is inconclusive gets more trials. Libraries and Python may differ. Exit codes: 0 no regression; 1 a regression,
    or a cell that does not run any more; 2 a mistake, or a side that cannot be prepared; 4 inconclusive and --strict; 5
    not comparable, or nothing was measured on both sides; 130 interrupted."""
    from tcbench.analysis.verdict import Rule
    from tcbench.cli.run import check_folder, make_plan, with_launcher
    from tcbench.run import builds
    from tcbench.run import gate as gates
    from tcbench.show import console
    from tcbench.show.comparison import Labels

    check_output(output)
    names, rule = metrics(metric), Rule(threshold(threshold_))
    may_differ = allowed(allow)
    may_differ = replace(may_differ, facets=may_differ.facets | COMPARED)
    of_gate = parse_interims(interims, rule)
    budget_s = seconds("--budget", budget)
    chosen = selection(
        bs=bs,
        config=config,
        data=data,
        image_size=image_size,
        target=target,
        max_time=max_time,
        timeout=timeout,
        seed=seed,
        threads=threads,
        ranks=ranks,
    )
    stderr = console.make_console(stderr=True)

    def say(line: str) -> None:
        if not quiet:
            stderr.print(line, markup=False, highlight=False, soft_wrap=True)

    if bisect is not None:
        from tcbench.cli import bisect as bisecting

        if any((base, current, base_python, current_python)) or names != ("throughput",):
            raise SelectionError(
                "--bisect GOOD..BAD looks for lost throughput between two revisions: leave out --base, "
                "--current, --base-python, --current-python and --metric"
            )

        def of_bad() -> tuple[Plan, Launcher]:
            made = make_plan(scenario, chosen, device)
            check_folder(made)
            return with_launcher(made, launcher, asked=ranks is not None)

        bisecting.bisect(
            bisect, of_bad, setup, of_gate, rule, budget_s, out.absolute(), say, quiet=quiet, json=format_ == "json"
        )
    wanted = builds.Requested(base, current, base_python, current_python, setup)
    out = out.absolute()
    with builds.prepared(wanted, say) as ready:
        # The scenario and its step are the current side's.
        with contextlib.chdir(ready[1].folder):
            plan = make_plan(scenario, chosen, device, remote=current_python is not None)
        check_folder(plan)
        plan, starter = with_launcher(plan, launcher, asked=ranks is not None)
        gone = _gone(scenario, chosen, device, ready[0], plan, say) if base is not None else ()
        ended = _settled(plan, starter, ready, of_gate, names, out, budget_s, say, quiet)
    cells = [planned.cell for planned in plan.cells]
    comparison = gates.comparison(ended.state, cells, ended.base, ended.current, rule, "the budget was spent")
    comparison = replace(
        comparison, cells=(*comparison.cells, *(c for cell in gone for c in gates.missing(cell, ended.state.metrics)))
    )
    notes = [gates.summary(ended.state)]
    if ended.spent:
        notes.append(f"the budget of {budget} was spent: cells not yet decided are inconclusive")
    comparison = replace(comparison, notes=(*comparison.notes, *filter(None, notes)))
    kept = tuple(of[0].run_id for of in (ended.base, ended.current) if of)
    labels = Labels(
        called(ready[0].says, ended.base),
        called(ready[1].says, ended.current),
        (kept[0], kept[1]) if len(kept) == 2 and out == OUT.absolute() else None,
    )
    comparison = comparable(comparison, labels, may_differ, retry_command(context))
    present(comparison, labels, format_, output)
    raise typer.Exit(exit_code(comparison, strict))


def _gone(
    scenario: str | None,
    chosen: Selection,
    device: str,
    base: Build,
    plan: Plan,
    say: Callable[[str], None],
) -> tuple[Cell, ...]:
    """The cells that base's own scenario has and current's has not: nobody would miss them otherwise."""
    from tcbench.cli.run import make_plan

    try:
        with contextlib.chdir(base.folder):
            before = make_plan(scenario, chosen, device)
    except TcbenchError as error:
        say(f"note: whether cells are missing is not known: base's scenario cannot be read here: {error}")
        return ()
    here = {planned.cell.name for planned in plan.cells}
    return tuple(p.cell for p in before.cells if p.cell.name not in here)


def parse_interims(text: str, rule: Rule) -> tuple[Interim, ...]:
    """Read --looks. Raises SelectionError."""
    from tcbench.analysis import verdict

    shown = text if len(text) < 30 else f"{text[:27]}..."
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 7 for word in words):
        raise SelectionError(f"--looks {shown!a}: expected numbers of trials, such as 3,4,6,8")
    try:
        return verdict.interims([int(word) for word in words], rule)
    except ValueError as error:
        raise SelectionError(f"--looks {shown}: {error}, such as 3,4,6,8") from None


def _settled(
    plan: Plan,
    launcher: Launcher,
    ready: tuple[Build, Build],
    interims: Sequence[Interim],
    metrics: Sequence[str],
    out: Path,
    budget_s: float | None,
    say: Callable[[str], None],
    quiet: bool,
) -> Ended:
    """Run the trials that the gate asks for, keeping records as they come, until every cell is over or the budget is
    spent. Ends the command with exit code 130 when interrupted."""
    from tcbench.analysis.eta import estimate
    from tcbench.cli.run import generate_input, probe
    from tcbench.core import store
    from tcbench.run import turns
    from tcbench.run.gate import start
    from tcbench.show import console
    from tcbench.show.progress import RunProgress

    paths = _new_paths(out, plan.device.machine)
    named = [str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path) for path in paths.values()]
    state = start(len(plan.cells), interims, metrics)
    stderr = console.make_console(stderr=True)
    try:
        probe(launcher, [planned.cell for planned in plan.cells if planned.skip_reason is None])
        with contextlib.ExitStack() as stack:
            stores = {side: stack.enter_context(store.Store(path)) for side, path in paths.items()}
            generate_input(plan, stderr, quiet)
            say(console.plan_line(plan))
            progress = stack.enter_context(RunProgress(stderr, estimate(()), 0, quiet))
            ended = turns.measure(state, plan, ready, launcher, stores, progress, budget_s)
    except KeyboardInterrupt:
        stored = len(store.read(path for path in paths.values() if path.exists()).records)
        where = (
            f"{stored} records are kept: tcbench compare {shlex.join(named)}" if stored else "nothing was measured yet"
        )
        typer.echo(f"\ninterrupted; {where}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        for path in paths.values():
            store.remove_empty(path)
    say(f"Records: {' and '.join(named)}")
    return ended


def _new_paths(out: Path, machine: str) -> dict[Role, Path]:
    """Files of a new gate's records. Who made current's has the name: both are this gate's alone."""
    from tcbench.core.store import new_path

    current = new_path(out, machine, "gate", "-current")
    return {"base": current.with_name(current.name.replace("-current", "-base")), "current": current}
