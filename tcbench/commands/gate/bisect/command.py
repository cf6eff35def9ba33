"""`tcbench gate --bisect`: finds the commit that made a cell slower."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from tcbench.commands.compare.outcome import INCONCLUSIVE, REGRESSION
from tcbench.core.errors import NotComparableError, SelectionError
from tcbench.show.app import interruptible
from tcbench.show.console import make_console
from tcbench.show.format import counted
from tcbench.show.next_steps import NextStep, next_lines, short_path

if TYPE_CHECKING:
    from tcbench.analysis.compare import Comparison
    from tcbench.analysis.verdict import Interim, Rule
    from tcbench.commands.gate.bisect.search import Bisection, State
    from tcbench.commands.gate.builds import Build
    from tcbench.run.launcher import Launcher
    from tcbench.run.plan import Plan

Say = Callable[[str], None]


@dataclass(frozen=True)
class BisectRequest:
    """The options of a bisection: its looks, rule and budget, the folder of its record, and where to report."""

    interims: Sequence[Interim]
    rule: Rule
    budget_s: float | None
    out: Path
    say: Say
    quiet: bool


def bisect(
    commits: str,
    make_plan: Callable[[], tuple[Plan, Launcher]],
    setup: str | None,
    request: BisectRequest,
    *,
    json: bool,
) -> NoReturn:
    """Settle whether BAD of GOOD..BAD is slower than GOOD, then find the commit that made it so.

    `make_plan` is called in BAD's folder. Exits with 1 if a commit is named, 0 if BAD is not slower, 4 if nothing is
    certain. Raises BuildError or NotComparableError if GOOD or BAD cannot be measured."""
    from tcbench.commands.gate import builds, revisions
    from tcbench.commands.gate.bisect.search import Bisection, BuiltCommit
    from tcbench.run.gate import BASE, CURRENT

    say = request.say
    good_name, bad_name = parse(commits)
    project = revisions.find_project(Path.cwd())
    good = revisions.resolve(project, "--bisect", good_name)
    subjects = revisions.commits_between(project, good, revisions.resolve(project, "--bisect", bad_name))
    bad = [*subjects][-1]
    say(f"{counted(len(subjects), 'commit')} after {good[:12]} up to {bad[:12]}")
    with builds.revision_builder(setup, say) as make:
        ready, built = {}, []
        for name, commit in ((good_name, good), (bad_name, bad)):
            started = time.monotonic()
            ready[commit] = replace(make(name, commit), name=BASE if commit == good else CURRENT)
            built.append(BuiltCommit(commit=commit, seconds=time.monotonic() - started))
        with contextlib.chdir(ready[bad].folder):
            plan, launcher = make_plan()
        for build in ready.values():
            build.check_cells(planned.cell for planned in plan.cells)
        bisection = Bisection(
            good=good,
            bad=bad,
            commits=tuple(subjects),
            subjects=tuple(subjects.values()),
            cells=tuple(planned.cell.key for planned in plan.cells),
            threshold=request.rule.threshold,
            built=tuple(built),
        )
        with interruptible(lambda: "; the same command continues from the last round"):
            bisection, path = _run_bisection(bisection, plan, launcher, ready, make, request)
    if json:
        typer.echo(path.read_text("utf-8"), nl=False)
    else:
        from tcbench.commands.gate.bisect.table import verdict

        typer.echo("\n".join([*verdict(bisection), f"wrote {path}", *_next_lines(bisection, path)]))
    raise typer.Exit({"named": REGRESSION, "no loss": 0}.get(bisection.state, INCONCLUSIVE))


def parse(commits: str) -> tuple[str, str]:
    """Return GOOD and BAD of --bisect GOOD..BAD. Raises SelectionError."""
    match = re.fullmatch(r"(.+?)\.\.(.+)", commits)
    if match is None or match[2].startswith("."):
        shown = commits if len(commits) < 60 else f"{commits[:57]}..."
        raise SelectionError(f"--bisect {shown!a}: expected GOOD..BAD, two revisions, such as v1.0..main")
    return match[1], match[2]


def _run_bisection(
    bisection: Bisection,
    plan: Plan,
    launcher: Launcher,
    ready: dict[str, Build],
    make: Callable[[str, str], Build],
    request: BisectRequest,
) -> tuple[Bisection, Path]:
    """Run a bisection, or continue an unfinished one. Returns its record and the path of the record."""
    from tcbench.commands.gate.bisect.search import CommitRunner, read, run_search, unfinished, write
    from tcbench.commands.gate.bisect.table import outlook, step_lines
    from tcbench.core import store
    from tcbench.run.runner import Runner

    path, earlier_s = unfinished(request.out / plan.device.machine, bisection), 0.0
    if path is not None:
        bisection = read(path)
        earlier_s = bisection.seconds  # the budget applies to this call alone
        request.say(f"continuing {path} ({counted(len(bisection.rounds), 'round')}); delete that file to start over")
    else:
        placeholder = store.new_path(request.out, plan.device.machine, "bisect")
        path = placeholder.with_suffix(".json")
        placeholder.unlink()  # it has the suffix of records, and this file is JSON
        bisection = _measure_ends(bisection, plan, launcher, ready, path, request)
        write(bisection, path)
    if bisection.state == "searching":
        (planned,) = (planned for planned in plan.cells if planned.cell.key == bisection.cell_key)
        make_runner = partial(Runner, timeout_s=plan.timeout_s, launcher=launcher)
        runner = CommitRunner(path, planned, lambda commit: make(commit[:12], commit), make_runner, ready)
        request.say(outlook(bisection, ready))
        left_s = None if request.budget_s is None else request.budget_s - (bisection.seconds - earlier_s)
        for latest in run_search(bisection, runner, left_s):
            for line in step_lines(bisection, latest, ready):
                request.say(line)
            bisection = latest
    return bisection, path


def _measure_ends(
    bisection: Bisection, plan: Plan, launcher: Launcher, ready: dict[str, Build], path: Path, request: BisectRequest
) -> Bisection:
    """Run GOOD and BAD in turns until it is settled which cells became slower, and return the record.

    If any did, the record is at the start of the search, for the cell that lost most. Raises NotComparableError if a
    side could not be measured."""
    import msgspec

    from tcbench.commands.gate import turns
    from tcbench.commands.gate.bisect.search import begin_search, median_step_losses
    from tcbench.core.store import SUFFIX, Store
    from tcbench.run import gate
    from tcbench.run.eta import estimate
    from tcbench.show.progress import RunProgress

    fewest, most = request.interims[0].trials, request.interims[-1].trials
    request.say(f"checking whether {bisection.bad[:12]} is slower: {2 * fewest} to {2 * most} trials a cell")
    files = [path.with_name(f"{path.stem}-{commit[:12]}{SUFFIX}") for commit in (bisection.good, bisection.bad)]
    pair = (ready[bisection.good], ready[bisection.bad])
    state = gate.start(len(plan.cells), request.interims)
    started = time.monotonic()
    with (
        Store(files[0]) as base,
        Store(files[1]) as current,
        RunProgress(make_console(stderr=True, quiet=request.quiet), estimate(()), 0) as progress,
    ):
        stores = {gate.BASE: base, gate.CURRENT: current}
        ended = turns.measure(state, plan, pair, launcher, stores, progress, request.budget_s)
    cells = [planned.cell for planned in plan.cells]
    verdicts = ended.state.verdicts(cells, "the budget was spent")
    comparison = gate.comparison(verdicts, cells, ended.base, ended.current, request.interims[-1])
    trials, spent_s = len(ended.base) + len(ended.current), time.monotonic() - started
    bisection = msgspec.structs.replace(bisection, trials=trials, seconds=spent_s)
    if ended.state.machine_check.unstable:
        request.say("not settled: the machine did not stay the same while GOOD and BAD were compared; try again")
        return msgspec.structs.replace(bisection, state="not settled")
    lost = {c.cell.key: c.ratio.value for c in comparison.cells if c.verdict == "regression" and c.ratio is not None}
    lost = lost or median_step_losses(cells, ended.base, ended.current, request.rule)
    if not lost:
        return msgspec.structs.replace(bisection, state=_state_without_loss(comparison, request.say))
    most_lost = min(lost, key=lambda key: lost[key])
    planned = next(planned for planned in plan.cells if planned.cell.key == most_lost)
    culprit = next((c.culprit for c in comparison.cells if c.cell.key == most_lost), None)
    phase = culprit.name if culprit is not None and culprit.decision == "slower" else None
    return begin_search(bisection, planned, ended.base, ended.current, phase)


def _state_without_loss(comparison: Comparison, say: Say) -> State:
    """Return the state of a bisection whose BAD is not significantly slower, after reporting the reasons.

    Raises NotComparableError if a cell was not measured on both ends: `git bisect` finds the commit that broke it."""
    from tcbench.commands.compare.cell_report import comparison_report, reason_lines

    for line in reason_lines(comparison_report(comparison).cells):
        say(line)
    broken = [cell for cell in comparison.cells if not cell.measured and cell.verdict != "inconclusive"]
    if broken:
        why = "; ".join(f"{cell.cell.label}: {cell.why}" for cell in broken[:3])
        raise NotComparableError(f"not measured at both GOOD and BAD, so there is no loss to search for: {why}")
    return "not settled" if comparison.inconclusive else "no loss"


def _next_lines(bisection: Bisection, path: Path) -> list[str]:
    """Return the lines that offer to compare the named commit with the one before."""
    from tcbench.core.store import SUFFIX

    if bisection.named is None:
        return []
    before = bisection.commit(bisection.place(bisection.named) - 1)
    files = [path.with_name(f"{path.stem}-{commit[:12]}{SUFFIX}") for commit in (before, bisection.named)]
    if not all(file.exists() for file in files):
        return []
    return next_lines([NextStep(("diff", *map(short_path, files)))], 0)
