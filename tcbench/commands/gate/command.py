"""`tcbench gate`: runs base and current in turns until it is settled whether something became slower."""

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
    from tcbench.commands.gate.need import Need
    from tcbench.commands.gate.turns import EndedGate
    from tcbench.core.record import Cell, Selection
    from tcbench.run.eta import TimeLeft
    from tcbench.run.gate_file import GateFile, GateQuestion
    from tcbench.run.launcher import Launcher
    from tcbench.run.plan import Plan
    from tcbench.show.tables import Screen

BUILDS = options.Group("What is compared")
_INTERIMS, _BISECT_INTERIMS = "3,4,6,8", "3,6,12,24"
"""Looks of a gate and of a bisection.

A bisection asks one question about one pair of revisions and cannot continue until that is settled, so it may take more
trials. The significance levels are the same, so more trials do not make a wrong verdict more likely."""


@command("Run two versions alternately until it is settled whether one is slower.")
@options.selects(without="quick trials budget_s host_speed")
def gate(
    *,
    context: typer.Context,
    base: str | None = BUILDS.option(
        "--base REVISION",
        "The git revision to compare with. Default: where this branch left the main branch, else the last commit.",
        takes="a revision of the git repository of the current folder",
    ),
    current: str | None = BUILDS.option(
        "--current REVISION",
        "The git revision to judge. Default: the working tree.",
        takes="a revision of the git repository of the current folder",
    ),
    base_python: str | None = BUILDS.option(
        "--base-python PYTHON",
        "In place of --base: the interpreter to compare with.",
        takes="an interpreter in which tcbench is installed",
    ),
    current_python: str | None = BUILDS.option(
        "--current-python PYTHON",
        "The interpreter to judge. Default: the one that runs this command.",
        takes="an interpreter in which tcbench is installed",
    ),
    bisect: str | None = BUILDS.option(
        "--bisect GOOD..BAD",
        "In place of --base: find the commit after GOOD, up to BAD, that made a cell slower.",
        takes="two revisions; the first is an ancestor of the second",
    ),
    setup: str | None = BUILDS.option(
        "--setup COMMAND",
        "Creates a revision's environment (.venv) in its worktree, every time; '' for none. "
        "Default: 'uv sync --quiet' if the revision has a pyproject.toml.",
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
        "Start no new trial once trials have taken this long, e.g. 30m or 1800 (seconds). Default: none.",
        takes=options.TIMES,
        read=functools.partial(options.seconds, "--budget"),
    ),
    chosen: Selection,
    metric: list[str] | None = outcome.METRIC,
    threshold_: str = outcome.THRESHOLD,
    allow: list[str] | None = outcome.ALLOW,
    strict: bool = outcome.STRICT,
    lenient: bool = outcome.JUDGE.option("--lenient", "Exit code 0 even if nothing was settled."),
    format_: outcome.Format = outcome.FORMAT,
    output: Path | None = outcome.OUTPUT,
    out: Path = options.OUT_FOLDER,
    resume: bool = options.OUTPUT.option(
        "--resume", "Continue the newest gate that was interrupted or spent its budget."
    ),
    dry_run: bool = options.OUTPUT.option("--dry-run", "Show what would run and how long it would take, then stop."),
    details: bool = options.DETAILS,
    quiet: bool = options.QUIET,
) -> None:
    """Run base and current alternately, each trial in its own process, and judge all cells together. A decided cell
    stops; an inconclusive one gets more trials. Libraries and Python may differ. Exit codes: 0 no regression; 1 a
    regression, or a cell that no longer runs; 2 a mistake, or a side that cannot be prepared; 4 nothing was settled
    (--lenient: 0), the machine was unstable, or something is inconclusive with --strict; 5 not comparable, or nothing
    was measured on both sides; 130 interrupted.

    Examples:
    tcbench gate                                       the working tree against the commit where its branch began
    tcbench gate --base main                           ...against a revision, with its own environment
    tcbench gate ./my_step.toml --base HEAD            your own step, before a commit
    tcbench gate --base v1.0 --current v1.1 --bs 8 --budget 30m --format github
    tcbench gate --base-python old/bin/python          the same code with other libraries
    tcbench gate ./my_step.toml --bisect v1.0..main    the commit that made it slower"""
    from tcbench.analysis.verdict import Rule
    from tcbench.commands.gate import builds, turns
    from tcbench.commands.gate.need import next_step
    from tcbench.run import gate_file, images
    from tcbench.run.launcher import find_for
    from tcbench.run.plan import plan_of

    def gate_plan(*, remote: bool = False) -> Plan:
        """Return the plan with a gate's timing, after a check of the user's images."""
        plan = turns.with_gate_timing(plan_of(chosen, remote=remote), longer=not chosen.max_time_s)
        with stages(quiet) as advance:
            images.check_folder(plan, advance)
        return plan

    if bisect is not None:
        bisect_options = _OF_BISECT | ({"format_"} if format_ in ("table", "json") else set())
        if refused := given_words(context, without=bisect_options):
            raise SelectionError(
                "--bisect GOOD..BAD compares the throughput of two revisions, prints text or JSON, resumes by itself: "
                f"leave out {shlex.join(refused)}"
            )
    outcome.check_output(output)
    if strict and lenient:
        raise SelectionError("--strict and --lenient: expected one of them")
    metrics, rule = outcome.metrics(metric), Rule(outcome.threshold(threshold_))
    may_differ = outcome.allowed_facets(allow) | outcome.COMPARED
    interims = parse_interims(looks or (_INTERIMS if bisect is None else _BISECT_INTERIMS), rule)
    budget_s = options.seconds("--budget", budget)
    options.export_tuning_options(chosen)
    stderr = make_console(stderr=True, quiet=quiet)
    say = stderr.say
    if bisect is not None:
        from tcbench.commands.gate.bisect import command as bisecting

        def make_plan() -> tuple[Plan, Launcher]:
            return find_for(gate_plan(), chosen.launcher, explicit=chosen.ranks is not None)

        request = bisecting.BisectRequest(interims, rule, budget_s, out.absolute(), say, quiet)
        bisecting.bisect(bisect, make_plan, setup, request, json=format_ == "json")
    setup = "" if dry_run and base_python is None else setup
    out = out.absolute()
    with builds.prepare_builds(builds.BuildRequest(base, current, base_python, current_python, setup), say) as ready:
        # The scenario and its step are the current side's.
        with contextlib.chdir(ready[1].folder):
            plan = gate_plan(remote=current_python is not None)
        for build in ready:
            build.check_cells(planned.cell for planned in plan.cells)
        plan, launcher = find_for(plan, chosen.launcher, explicit=chosen.ranks is not None)
        question = gate_file.GateQuestion(
            base=ready[0].code,
            current=ready[1].code,
            scenario=plan.scenario.name,
            cells=tuple(planned.cell for planned in plan.cells),
            metrics=metrics,
            threshold=rule.threshold,
            trials=tuple(interim.trials for interim in interims),
        )
        if dry_run:
            _show_plan(plan, ready, question, out, budget_s, format_ == "json")
            return
        path = _gate_to_resume(out / plan.device.machine, question, say) if resume else None
        gone = _cells_only_in_base(chosen, ready[0], plan, say) if base_python is None else ()
        names = ready[0].label, ready[1].label
        notes: tuple[str, ...] = ()
        if ready[0].code == ready[1].code:
            notes = (f"base and current are the same code ({names[1]}): any difference comes from the machine",)
            say(f"note: {notes[0]}")
        content = gate_file.GateFile(question=question, names=names, gone=gone, notes=notes)
        path = path or _new_path(out, plan.device.machine)
        content, need = _run_gate(path, content, plan, launcher, ready, budget_s, stderr)
    base_records, current_records = gate_file.stored_trials(path).values()
    comparison = gate_file.comparison(content, base_records, current_records)
    gate_file.write(path, gate_file.shown(content, comparison.cells))
    inputs = _record_paths(path)
    if base_records and current_records and out == OUT.absolute():
        inputs = base_records[0].run_id, current_records[0].run_id
    labels = Labels(outcome.side_name(names[0], base_records), outcome.side_name(names[1], current_records), inputs)
    try:
        comparison = outcome.with_allowed(comparison, labels, may_differ, outcome.retry_command(context))
    except NotComparableError as error:
        if base_python is None and setup is None and "No module named" in str(error):
            hint = "to install more in a revision's environment: --setup 'uv sync --extra NAME'"
            raise NotComparableError(f"{error}; {hint}") from None
        raise
    outcome.present(comparison, labels, format_, output, details)
    if comparison.inconclusive and (step := next_step(need, content)):
        if need.undecided:
            stderr.say(need.says)
        stderr.offer([step])
    raise typer.Exit(outcome.exit_code(comparison, strict or (comparison.unsettled and not lenient)))


_OF_BISECT = {"bisect", "setup", "looks", "budget", "threshold_", "out", "quiet", *options.SELECTION}
"""Parameters of `gate` that may be combined with `--bisect`."""


def _gate_to_resume(folder: Path, question: GateQuestion, say: Callable[[str], None]) -> Path | None:
    """Return the newest unfinished gate on this machine, or None.

    Raises SelectionError if it was started with another question: its trials would be of other code or other cells."""
    from tcbench.run import gate_file

    path = gate_file.unfinished(folder, question)
    if path is None:
        say("nothing to resume: starting a new gate")
        return None
    differing = gate_file.read(path).question.differs(question)
    if differing is not None:
        raise SelectionError(
            f"--resume: {path.name} was started with other options ({differing} changed); repeat the command that "
            "started it, or leave out --resume to start a new gate"
        )
    return path


def _expected(plan: Plan, question: GateQuestion, out: Path, budget_s: float | None) -> tuple[str, TimeLeft]:
    """Return the number of trials and the duration that a gate may need, in words, and the estimate behind them. The
    estimate uses the newest run on this machine, or else a guess."""
    from tcbench.hardware import load
    from tcbench.run.eta import estimate
    from tcbench.show.format import counted, duration

    newest, earlier = recent_trials(out / plan.device.machine, (planned.cell.model for planned in plan.cells))
    expected = estimate((), (), load.slowdown(), earlier=earlier)
    cells = [planned.cell for planned in plan.cells if planned.skip_reason is None]
    round_s = 2 * sum(map(expected.trial_s, cells))
    least, *_, most = question.trials if len(question.trials) > 1 else question.trials * 2  # one look is both
    ends = dict.fromkeys((least, most))
    trials = " to ".join(str(2 * number * len(cells)) for number in ends)
    words = f"{counted(len(cells), 'cell')}, {trials} trials, about "
    words += " to ".join(duration(number * round_s) for number in ends)
    source = f"from {newest.stem}" if newest else "a guess: no run on this machine yet"
    words += f" ({source}); judged after {', '.join(map(str, question.trials))} trials a side"
    return words + (f"; --budget stops it after {duration(budget_s)}" if budget_s is not None else ""), expected


def _show_plan(
    plan: Plan, ready: tuple[Build, Build], question: GateQuestion, out: Path, budget_s: float | None, json: bool
) -> None:
    """Print the cells that a gate would run and how long it would take."""
    from tcbench.commands.gate.plan import gate_plan_json
    from tcbench.commands.run.planning import plan_line

    words, expected = _expected(plan, question, out, budget_s)
    if json:
        typer.echo(gate_plan_json(plan, ready, question, budget_s, expected))
        return
    stdout = make_console()
    stdout.say(f"base {ready[0].label}, current {ready[1].label}")
    stdout.say(plan_line(plan))
    stdout.say(words)
    for planned in plan.cells:
        stdout.say(f"  {planned.cell.label}" + (f": skipped: {planned.skip_reason}" if planned.skip_reason else ""))


def _cells_only_in_base(chosen: Selection, base: Build, plan: Plan, say: Callable[[str], None]) -> tuple[Cell, ...]:
    """Return the cells of base's scenario that current's scenario lacks, which are then reported as missing."""
    from tcbench.run.plan import plan_of

    try:
        with contextlib.chdir(base.folder):
            base_plan = plan_of(chosen)
    except TcbenchError as error:
        say(f"note: cannot tell whether cells are missing: base's scenario cannot be read: {error}")
        return ()
    names = {planned.cell.name for planned in plan.cells}
    return tuple(planned.cell for planned in base_plan.cells if planned.cell.name not in names)


def parse_interims(text: str, rule: Rule) -> tuple[Interim, ...]:
    """Return the interim looks that --looks asks for. Raises SelectionError."""
    from tcbench.analysis import verdict

    shown = text if len(text) < 30 else f"{text[:27]}..."
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 7 for word in words):
        raise SelectionError(f"--looks {shown!a}: expected numbers of trials, such as 3,4,6,8")
    try:
        return verdict.interims([int(word) for word in words], rule)
    except ValueError as error:
        raise SelectionError(f"--looks {shown}: {error}, such as 3,4,6,8") from None


def _run_gate(
    path: Path,
    content: GateFile,
    plan: Plan,
    launcher: Launcher,
    ready: tuple[Build, Build],
    budget_s: float | None,
    stderr: Screen,
) -> tuple[GateFile, Need]:
    """Run the trials that the gate asks for. Return its file's content with the decisions, and what is still needed.

    Each trial is stored as it ends. Trials that the gate's files already hold are not repeated. Exits with 130 when
    interrupted."""
    from tcbench.commands.gate import turns
    from tcbench.commands.gate.need import need_of
    from tcbench.commands.run.planning import plan_line
    from tcbench.core import store
    from tcbench.run import gate_file, images
    from tcbench.run.gate import start
    from tcbench.run.ranks import probe_largest
    from tcbench.show.format import counted, duration
    from tcbench.show.progress import RunProgress

    paths, out, question = gate_file.record_files(path), path.parents[1], content.question
    record_paths = _record_paths(path)
    earlier_records = gate_file.stored_trials(path)
    spent_gate = gate_file.read(path) if path.exists() else content
    decided = spent_gate.verdicts if spent_gate.spent is True else ()
    # A gate that spent its budget continues with a new one.
    earlier_s = sum(record.duration_s for records in earlier_records.values() for record in records)
    whole_budget_s = budget_s if budget_s is None or not decided else budget_s + earlier_s
    say = stderr.say

    def say_need(so_far: EndedGate) -> None:
        """Print how long the gate still needs, after a look that left cells undecided."""
        need = need_of(so_far.state, content, so_far.base, so_far.current)
        say(f"look {so_far.state.looks_taken} of {len(question.interims)}: {need.says}")

    try:
        probe_largest(launcher, [planned.cell for planned in plan.cells if planned.skip_reason is None])
        with contextlib.ExitStack() as stack:
            stores = {side: stack.enter_context(store.Store(file)) for side, file in paths.items()}
            if not decided:
                gate_file.write(path, content)
            with stages(stderr.quiet) as advance:
                images.generate(plan, advance)
            words, expected = _expected(plan, question, out, budget_s)
            say(plan_line(plan))
            say(words)
            if n := sum(map(len, earlier_records.values())):
                say(f"resuming {path.name}: {counted(n, 'record')} stored")
            state = start(len(question.cells), question.interims, question.metrics)
            progress = stack.enter_context(RunProgress(stderr, expected, 0))
            ended = turns.measure(
                state, plan, ready, launcher, stores, progress, whole_budget_s, earlier_records, decided, say_need
            )
    except KeyboardInterrupt:
        stored = len(store.read(file for file in paths.values() if file.exists()).records)
        compare = f"compare what was stored: tcbench compare {shlex.join(record_paths)}"
        where = f"{counted(stored, 'record')} kept; continue with: {command_again(resume=True)}; {compare}"
        typer.echo(f"\ninterrupted; {where if stored else 'nothing was measured yet'}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        for file in paths.values():
            store.remove_empty(file)
        if not any(file.exists() for file in paths.values()):
            path.unlink(missing_ok=True)
            store.remove_empty(path)
    say(f"Records: {' and '.join(record_paths)}")
    spent = f"the budget of {duration(budget_s or 0)} was spent: cells not yet decided are inconclusive"
    judged = gate_file.judged(content, ended.state, spent if ended.spent else None)
    return judged, need_of(ended.state, content, ended.base, ended.current)


def _record_paths(path: Path) -> tuple[str, str]:
    """Return the paths of the gate's two record files as arguments of a command."""
    from tcbench.run import gate_file

    base, current = map(short_path, gate_file.record_files(path).values())
    return base, current


def _new_path(out: Path, machine: str) -> Path:
    """Return the path of a new gate's verdicts, which reserves the names of all its files."""
    from tcbench.core.store import new_path
    from tcbench.run import gate_file

    path = gate_file.verdicts_path(new_path(out, machine, "gate", "-current"))
    assert path is not None
    return path
