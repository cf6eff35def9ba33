"""`tcbench gate`: base and current in turns on this machine, until it is settled whether something got slower."""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tcbench.commands.compare import outcome
from tcbench.core.errors import NotComparableError, SelectionError, TcbenchError
from tcbench.run.inputs import recent_trials
from tcbench.show import options
from tcbench.show.app import INTERRUPTED, OUT, command, command_again, given_words
from tcbench.show.console import make_console, stages
from tcbench.show.next_steps import short_path
from tcbench.show.sides import Labels

if TYPE_CHECKING:
    from tcbench.analysis.verdict import Interim, Rule
    from tcbench.commands.gate.builds import Build
    from tcbench.core.record import Cell, Selection
    from tcbench.run.eta import TimeLeft
    from tcbench.run.gate_file import GateFile, GateQuestion
    from tcbench.run.launcher import Launcher
    from tcbench.run.plan import Plan
    from tcbench.show.tables import Screen

BUILDS = options.Group("What is compared")
_INTERIMS, _BISECT_INTERIMS = "3,4,6,8", "3,6,12,24"
"""A bisection ends where its first question stays open, which is of one pair of revisions: it may take more trials, at
the same levels, so that no name becomes likelier to be wrong."""


@command("Run two versions in turns until it is settled whether one is slower.")
@options.selects(without="quick trials budget_s host_speed")
def gate(
    *,
    context: typer.Context,
    base: str | None = BUILDS.option(
        "--base REVISION",
        "The git revision to judge against. Default: where this branch left the main one, else the last commit.",
        takes="a revision of the repository here",
    ),
    current: str | None = BUILDS.option(
        "--current REVISION",
        "The git revision to judge. Default: the working tree.",
        takes="a revision of the repository here",
    ),
    base_python: str | None = BUILDS.option(
        "--base-python PYTHON",
        "In place of --base: the interpreter to judge against.",
        takes="an interpreter in which tcbench is installed",
    ),
    current_python: str | None = BUILDS.option(
        "--current-python PYTHON",
        "The interpreter to judge. Default: that of this command.",
        takes="an interpreter in which tcbench is installed",
    ),
    bisect: str | None = BUILDS.option(
        "--bisect GOOD..BAD",
        "In place of --base: name the commit after GOOD, up to BAD, that made a cell slower.",
        takes="two revisions, of which the first is an ancestor of the second",
    ),
    setup: str | None = BUILDS.option(
        "--setup COMMAND",
        "Makes the environment (.venv) of a revision in its worktree, each time; '' for none. "
        "Default: 'uv sync --quiet' where the revision has a pyproject.toml.",
        takes="a command line, or nothing",
    ),
    looks: str | None = options.MEASURING.option(
        "--looks N,N,...",
        "Trials a side after which a cell is judged: one to four numbers, ascending. Default: 3,4,6,8; with "
        "--bisect 3,6,12,24.",
        takes="one to four whole numbers from 2 up, ascending",
    ),
    budget: str | None = options.MEASURING.option(
        "--budget TIME",
        "Begin no trial after trials have taken so long, e.g. 30m or 1800 (seconds). Default: none.",
        takes=options.TIMES,
        read=functools.partial(options.seconds, "--budget"),
    ),
    chosen: Selection,
    metric: list[str] | None = outcome.METRIC,
    threshold_: str = outcome.THRESHOLD,
    allow: list[str] | None = outcome.ALLOW,
    strict: bool = outcome.STRICT,
    lenient: bool = outcome.JUDGE.option("--lenient", "Exit code 0 also where nothing at all was settled."),
    format_: outcome.Format = outcome.FORMAT,
    output: Path | None = outcome.OUTPUT,
    out: Path = options.OUT_FOLDER,
    resume: bool = options.OUTPUT.option("--resume", "Go on with the newest gate that did not end."),
    dry_run: bool = options.OUTPUT.option("--dry-run", "Show what would run and how long, and stop."),
    details: bool = options.DETAILS,
    quiet: bool = options.QUIET,
) -> None:
    """Run base and current in turns, each trial in a process of its own, and judge all cells together. A cell that is
    decided stops; one that is inconclusive gets more trials. Libraries and Python may differ. Exit codes: 0 no
    regression; 1 a regression, or a cell that does not run any more; 2 a mistake, or a side that cannot be prepared; 4
    nothing at all was settled (--lenient: 0), or something is inconclusive and --strict; 5 not comparable, or nothing
    was measured on both sides; 130 interrupted.

    Examples:
    tcbench gate                                       the working tree against where its branch left the main one
    tcbench gate --base main                           ...against a revision, with its own environment
    tcbench gate ./my_step.toml --base HEAD            before a commit: a step of your own
    tcbench gate --base v1.0 --current v1.1 --bs 8 --budget 30m --format github
    tcbench gate --base-python old/bin/python          the same code on other libraries
    tcbench gate ./my_step.toml --bisect v1.0..main    the commit that made it slower
    """
    from tcbench.analysis.verdict import Rule
    from tcbench.commands.gate import builds, turns
    from tcbench.run import gate_file, images
    from tcbench.run.launcher import find_for
    from tcbench.run.plan import plan_of

    def made(*, remote: bool = False) -> Plan:
        plan = turns.of_gate(plan_of(chosen, remote=remote), longer=not chosen.max_time_s)
        with stages(quiet) as advance:
            images.check_folder(plan, advance)
        return plan

    if bisect is not None:
        taken = _OF_BISECT | ({"format_"} if format_ in ("table", "json") else set())
        if refused := given_words(context, without=taken):
            raise SelectionError(
                "--bisect GOOD..BAD looks for lost throughput between two revisions, prints words or JSON and goes on "
                f"by itself: leave out {shlex.join(refused)}"
            )
    outcome.check_output(output)
    if strict and lenient:
        raise SelectionError("--strict and --lenient: expected one of them")
    names, rule = outcome.metrics(metric), Rule(outcome.threshold(threshold_))
    may_differ = outcome.allowed(allow) | outcome.COMPARED
    interims = parse_interims(looks or (_INTERIMS if bisect is None else _BISECT_INTERIMS), rule)
    budget_s = options.seconds("--budget", budget)
    options.tune(chosen)
    stderr = make_console(stderr=True, quiet=quiet)
    say = stderr.say
    if bisect is not None:
        from tcbench.commands.gate.bisect import command as bisecting

        def make_plan() -> tuple[Plan, Launcher]:
            return find_for(made(), chosen.launcher, asked=chosen.ranks is not None)

        asked_of = bisecting.Bisecting(interims, rule, budget_s, out.absolute(), say, quiet)
        bisecting.bisect(bisect, make_plan, setup, asked_of, json=format_ == "json")
    setup = "" if dry_run and base_python is None else setup
    wanted = builds.Requested(base, current, base_python, current_python, setup)
    out = out.absolute()
    with builds.prepared(wanted, say) as ready:
        # The scenario and its step are the current side's.
        with contextlib.chdir(ready[1].folder):
            plan = made(remote=current_python is not None)
        for build in ready:
            build.check_reads(planned.cell for planned in plan.cells)
        plan, starter = find_for(plan, chosen.launcher, asked=chosen.ranks is not None)
        asked = gate_file.GateQuestion(
            base=ready[0].code,
            current=ready[1].code,
            scenario=plan.scenario.name,
            cells=tuple(planned.cell for planned in plan.cells),
            metrics=names,
            threshold=rule.threshold,
            trials=tuple(interim.trials for interim in interims),
        )
        same = ready[0].code == ready[1].code
        if dry_run:
            _show_plan(plan, ready, asked, out, budget_s, format_ == "json")
            return
        path = _to_resume(out / plan.device.machine, asked, say) if resume else None
        gone = _gone(chosen, ready[0], plan, say) if base_python is None else ()
        notes = (f"base and current are the same code ({ready[1].says}): any difference is the machine's",) * same
        content = gate_file.GateFile(asked=asked, names=(ready[0].says, ready[1].says), gone=gone, notes=notes)
        for note in notes:
            say(f"note: {note}")
        path = path or _new_path(out, plan.device.machine)
        content = _settled(path, content, plan, starter, ready, budget_s, stderr)
    before, after = gate_file.stored_trials(path).values()
    comparison = gate_file.comparison(content, before, after)
    gate_file.write(path, gate_file.shown(content, comparison.cells))
    runs = (before[0].run_id, after[0].run_id) if before and after and out == OUT.absolute() else _named(path)
    labels = Labels(outcome.called(ready[0].says, before), outcome.called(ready[1].says, after), runs)
    try:
        comparison = outcome.comparable(comparison, labels, may_differ, outcome.retry_command(context))
    except NotComparableError as error:
        if base_python is None and setup is None and "No module named" in str(error):
            hint = "more in a revision's environment: --setup 'uv sync --extra NAME'"
            raise NotComparableError(f"{error}; {hint}") from None
        raise
    outcome.present(comparison, labels, format_, output, details)
    raise typer.Exit(outcome.exit_code(comparison, strict or (comparison.unsettled and not lenient)))


_OF_BISECT = {"bisect", "setup", "looks", "budget", "threshold_", "out", "quiet", *options.SELECTION}
"""The parameters of `gate` that `--bisect` takes."""


def _to_resume(folder: Path, asked: GateQuestion, say: Callable[[str], None]) -> Path | None:
    """The newest gate on this machine that did not end, to be gone on with. Raises SelectionError where it was asked
    something else: its trials would not be of the same code or cells."""
    from tcbench.run import gate_file

    path = gate_file.unfinished(folder)
    if path is None:
        say("nothing to resume: a new gate")
        return None
    before = gate_file.read(path).asked
    differing = before.differs(asked)
    if differing is not None:
        raise SelectionError(
            f"--resume: {path.name} was asked another thing ({differing} is not what it was); give the command that "
            "began it, or leave --resume out for a new gate"
        )
    return path


def _expected(plan: Plan, asked: GateQuestion, out: Path, budget_s: float | None) -> tuple[str, TimeLeft]:
    """A gate's least and most trials and minutes, in words: by this machine's newest run, if there is any, or a
    guess."""
    from tcbench.hardware import load
    from tcbench.run.eta import estimate
    from tcbench.show.format import counted, duration

    newest, earlier = recent_trials(out / plan.device.machine, (planned.cell.model for planned in plan.cells))
    expected = estimate((), (), load.slowdown(), earlier=earlier)
    cells = [planned.cell for planned in plan.cells if planned.skip_reason is None]
    round_s = 2 * sum(map(expected.trial_s, cells))
    least, *_, most = asked.trials if len(asked.trials) > 1 else asked.trials * 2
    ends = dict.fromkeys((least, most))
    trials = " to ".join(str(2 * number * len(cells)) for number in ends)
    says = f"{counted(len(cells), 'cell')}, {trials} trials, about "
    says += " to ".join(duration(number * round_s) for number in ends)
    by = f"by {newest.stem}" if newest else "a guess: nothing was measured here yet"
    says += f" ({by}); judged after {', '.join(map(str, asked.trials))} trials a side"
    return says + (f"; --budget ends it after {duration(budget_s)}" if budget_s is not None else ""), expected


def _show_plan(
    plan: Plan, ready: tuple[Build, Build], asked: GateQuestion, out: Path, budget_s: float | None, json: bool
) -> None:
    """Print the cells that a gate would run, and how long that would take."""
    from tcbench.commands.gate.plan import gate_plan_json
    from tcbench.commands.run.planning import plan_line

    says, expected = _expected(plan, asked, out, budget_s)
    if json:
        typer.echo(gate_plan_json(plan, ready, asked, budget_s, expected))
        return
    stdout = make_console()
    stdout.say(f"base {ready[0].says}, current {ready[1].says}")
    stdout.say(plan_line(plan))
    stdout.say(says)
    for planned in plan.cells:
        stdout.say(f"  {planned.cell.label}" + (f": skipped: {planned.skip_reason}" if planned.skip_reason else ""))


def _gone(chosen: Selection, base: Build, plan: Plan, say: Callable[[str], None]) -> tuple[Cell, ...]:
    """The cells that base's own scenario has and current's has not: nobody would miss them otherwise."""
    from tcbench.run.plan import plan_of

    try:
        with contextlib.chdir(base.folder):
            before = plan_of(chosen)
    except TcbenchError as error:
        say(f"note: whether cells are missing is not known: base's scenario cannot be read here: {error}")
        return ()
    names = {planned.cell.name for planned in plan.cells}
    return tuple(p.cell for p in before.cells if p.cell.name not in names)


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
    path: Path,
    content: GateFile,
    plan: Plan,
    launcher: Launcher,
    ready: tuple[Build, Build],
    budget_s: float | None,
    stderr: Screen,
) -> GateFile:
    """Run the trials that the gate asks for, keeping records as they come, until every cell is over or the budget is
    spent; what its files hold is not run again. The answer has the decisions. Exits with 130 when interrupted."""
    from tcbench.commands.gate import turns
    from tcbench.commands.run.planning import plan_line
    from tcbench.core import store
    from tcbench.run import gate_file, images
    from tcbench.run.gate import start
    from tcbench.run.ranks import probe_largest
    from tcbench.show.format import counted, duration
    from tcbench.show.progress import RunProgress

    paths, out, asked = gate_file.record_files(path), path.parents[1], content.asked
    named = _named(path)
    before = gate_file.stored_trials(path)
    say = stderr.say
    try:
        probe_largest(launcher, [planned.cell for planned in plan.cells if planned.skip_reason is None])
        with contextlib.ExitStack() as stack:
            stores = {side: stack.enter_context(store.Store(file)) for side, file in paths.items()}
            gate_file.write(path, content)
            with stages(stderr.quiet) as advance:
                images.generate(plan, advance)
            says, expected = _expected(plan, asked, out, budget_s)
            say(plan_line(plan))
            say(says)
            if n := sum(map(len, before.values())):
                say(f"resuming {path.name}: {counted(n, 'record')} there")
            state = start(len(asked.cells), asked.interims, asked.metrics)
            progress = stack.enter_context(RunProgress(stderr, expected, 0))
            ended = turns.measure(state, plan, ready, launcher, stores, progress, budget_s, before)
    except KeyboardInterrupt:
        stored = len(store.read(file for file in paths.values() if file.exists()).records)
        compare = f"what is there: tcbench compare {shlex.join(named)}"
        where = f"{counted(stored, 'record')} kept; go on with: {command_again(resume=True)}; {compare}"
        typer.echo(f"\ninterrupted; {where if stored else 'nothing was measured yet'}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        for file in paths.values():
            store.remove_empty(file)
        if not any(file.exists() for file in paths.values()):
            path.unlink(missing_ok=True)
            store.remove_empty(path)
    say(f"Records: {' and '.join(named)}")
    after = f"the budget of {duration(budget_s or 0)} was spent: cells not yet decided are inconclusive"
    ended_by = after if ended.spent else None
    return gate_file.judged(content, ended.state, ended_by)


def _named(path: Path) -> tuple[str, str]:
    """The files of a gate's records, as a command names them."""
    from tcbench.run import gate_file

    base, current = map(short_path, gate_file.record_files(path).values())
    return base, current


def _new_path(out: Path, machine: str) -> Path:
    """The file of a new gate's verdicts. Who made current's records has the name: all files are this gate's alone."""
    from tcbench.core.store import new_path
    from tcbench.run import gate_file

    path = gate_file.beside(new_path(out, machine, "gate", "-current"))
    assert path is not None
    return path
