"""`tcbench gate --bisect`: the commit that made a cell slower."""

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
class Bisecting:
    """What is asked of a bisection: its looks, rule and budget, where its record goes, and who is told."""

    interims: Sequence[Interim]
    rule: Rule
    budget_s: float | None
    out: Path
    say: Say
    quiet: bool


def bisect(
    commits: str, make_plan: Callable[[], tuple[Plan, Launcher]], setup: str | None, asked: Bisecting, *, json: bool
) -> NoReturn:
    """Settle whether BAD of GOOD..BAD is slower than GOOD, then name the commit that made it so. `make_plan` is called
    in BAD's folder. Ends with 1 where a commit is named, 0 where BAD is not slower, 4 where nothing is sure. Raises
    BuildError or NotComparableError where GOOD or BAD cannot be measured."""
    from tcbench.commands.gate import builds, revisions
    from tcbench.commands.gate.bisect.search import Bisection, Built
    from tcbench.run.gate import BASE, CURRENT

    say = asked.say
    good_name, bad_name = parse(commits)
    project = revisions.project(Path.cwd())
    good = revisions.commit(project, "--bisect", good_name)
    listed = revisions.between(project, good, revisions.commit(project, "--bisect", bad_name))
    bad = [*listed][-1]
    say(f"{len(listed)} commits after {good[:12]} up to {bad[:12]}")
    with builds.workshop(setup, say) as make:
        ready, built = {}, []
        for name, commit in ((good_name, good), (bad_name, bad)):
            started = time.monotonic()
            ready[commit] = replace(make(name, commit), name=BASE if commit == good else CURRENT)
            built.append(Built(commit=commit, seconds=time.monotonic() - started))
        with contextlib.chdir(ready[bad].folder):
            plan, launcher = make_plan()
        for build in ready.values():
            build.check_reads(planned.cell for planned in plan.cells)
        begun = Bisection(
            good=good,
            bad=bad,
            commits=tuple(listed),
            subjects=tuple(listed.values()),
            cells=tuple(planned.cell.key for planned in plan.cells),
            threshold=asked.rule.threshold,
            built=tuple(built),
        )
        with interruptible(lambda: "; the same command goes on from the last round"):
            ended, path = _searched(begun, plan, launcher, ready, make, asked)
    if json:
        typer.echo(path.read_text("utf-8"), nl=False)
    else:
        from tcbench.commands.gate.bisect.table import verdict

        typer.echo("\n".join([*verdict(ended), f"wrote {path}", *_next_lines(ended, path)]))
    raise typer.Exit({"named": REGRESSION, "no loss": 0}.get(ended.state, INCONCLUSIVE))


def parse(commits: str) -> tuple[str, str]:
    """GOOD and BAD of --bisect GOOD..BAD. Raises SelectionError."""
    match = re.fullmatch(r"(.+?)\.\.(.+)", commits)
    if match is None or match[2].startswith("."):
        shown = commits if len(commits) < 60 else f"{commits[:57]}..."
        raise SelectionError(f"--bisect {shown!a}: expected GOOD..BAD, two revisions, such as v1.0..main")
    return match[1], match[2]


def _searched(
    begun: Bisection,
    plan: Plan,
    launcher: Launcher,
    ready: dict[str, Build],
    make: Callable[[str, str], Build],
    asked: Bisecting,
) -> tuple[Bisection, Path]:
    """The bisection at its end, and its record's file."""
    from tcbench.commands.gate.bisect.search import Bench, read, steps, unfinished, write
    from tcbench.commands.gate.bisect.table import outlook, step
    from tcbench.core import store
    from tcbench.run.runner import Runner

    bisection, path, earlier_s = begun, unfinished(asked.out / plan.device.machine, begun), 0.0
    if path is not None:
        bisection = read(path)
        earlier_s = bisection.seconds  # the budget is that of this call
        asked.say(f"goes on with {path} ({len(bisection.rounds)} rounds); remove that file to begin anew")
    else:
        first = store.new_path(asked.out, plan.device.machine, "bisect")
        path = first.with_suffix(".json")
        first.unlink()
        bisection = _ends(bisection, plan, launcher, ready, path, asked)
        write(bisection, path)
    if bisection.state == "searching":
        (planned,) = (planned for planned in plan.cells if planned.cell.key == bisection.cell_key)

        runner = partial(Runner, timeout_s=plan.timeout_s, launcher=launcher)
        bench = Bench(path, planned, lambda commit: make(commit[:12], commit), runner, ready)
        asked.say(outlook(bisection, bench.ready))
        left_s = None if asked.budget_s is None else asked.budget_s - (bisection.seconds - earlier_s)
        for now in steps(bisection, bench, left_s):
            for line in step(bisection, now, bench.ready):
                asked.say(line)
            bisection = now
    return bisection, path


def _ends(
    bisection: Bisection, plan: Plan, launcher: Launcher, ready: dict[str, Build], path: Path, asked: Bisecting
) -> Bisection:
    """With GOOD and BAD measured in turns, until it is settled which cells became slower; the one that lost most is
    searched for. Raises NotComparableError where either was not measured."""
    import msgspec

    from tcbench.commands.gate import turns
    from tcbench.commands.gate.bisect.search import begun, lost_at_the_median
    from tcbench.core.store import SUFFIX, Store
    from tcbench.run import gate
    from tcbench.run.eta import estimate
    from tcbench.show.progress import RunProgress

    fewest, most = asked.interims[0].trials, asked.interims[-1].trials
    asked.say(f"is {bisection.bad[:12]} slower at all? {2 * fewest} to {2 * most} trials a cell")
    files = [path.with_name(f"{path.stem}-{commit[:12]}{SUFFIX}") for commit in (bisection.good, bisection.bad)]
    pair = (ready[bisection.good], ready[bisection.bad])
    state = gate.start(len(plan.cells), asked.interims)
    started = time.monotonic()
    with Store(files[0]) as base, Store(files[1]) as current:
        progress = RunProgress(make_console(stderr=True, quiet=asked.quiet), estimate(()), 0)
        stores = {gate.BASE: base, gate.CURRENT: current}
        with progress:
            ended = turns.measure(state, plan, pair, launcher, stores, progress, asked.budget_s)
    cells = [planned.cell for planned in plan.cells]
    verdicts = ended.state.verdicts(cells, "the budget was spent")
    comparison = gate.comparison(verdicts, cells, ended.base, ended.current, asked.interims[-1])
    trials, spent_s = len(ended.base) + len(ended.current), time.monotonic() - started
    bisection = msgspec.structs.replace(bisection, trials=trials, seconds=spent_s)
    lost = {c.cell.key: c.ratio.value for c in comparison.cells if c.verdict == "regression" and c.ratio is not None}
    lost = lost or lost_at_the_median(cells, ended.base, ended.current, asked.rule)
    if not lost:
        return msgspec.structs.replace(bisection, state=_not_slower(comparison, asked.say))
    most_lost = min(lost, key=lambda key: lost[key])
    planned = next(planned for planned in plan.cells if planned.cell.key == most_lost)
    culprit = next((c.culprit for c in comparison.cells if c.cell.key == most_lost), None)
    phase = culprit.name if culprit is not None and culprit.decision == "slower" else None
    return begun(bisection, planned, ended.base, ended.current, phase)


def _not_slower(comparison: Comparison, say: Say) -> State:
    """The state of a bisection whose BAD is not surely slower, after saying why. Raises NotComparableError where cells
    were not measured on both ends: a commit that broke one is git bisect's to find."""
    from tcbench.commands.compare.cell_report import comparison_report, reasons

    for line in reasons(comparison_report(comparison).cells):
        say(line)
    broken = [cell for cell in comparison.cells if not cell.measured and cell.verdict != "inconclusive"]
    if broken:
        why = "; ".join(f"{cell.cell.label}: {cell.why}" for cell in broken[:3])
        raise NotComparableError(f"not measured on both ends, so there is no loss to look for: {why}")
    return "not settled" if comparison.inconclusive else "no loss"


def _next_lines(bisection: Bisection, path: Path) -> list[str]:
    """The command that goes on from a commit that was named."""
    from tcbench.core.store import SUFFIX

    if bisection.named is None:
        return []
    before = bisection.commit(bisection.place(bisection.named) - 1)
    files = [path.with_name(f"{path.stem}-{commit[:12]}{SUFFIX}") for commit in (before, bisection.named)]
    if not all(file.exists() for file in files):
        return []
    return next_lines([NextStep(("diff", *map(short_path, files)))], 0)
