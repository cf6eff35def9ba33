"""A loss bisected over commits: its record, and the trials that `analysis.bisection` asks for.

A commit that cannot be built, or whose trials fail, is skipped, as `git bisect skip` does. Everything that decides
stands in the record, which is written anew after each round: whoever is interrupted goes on from it. Prints nothing.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from tcbench.analysis.compare import ACCIDENTS, THROUGHPUT
from tcbench.analysis.rounds import estimate
from tcbench.analysis.verdict import Rule
from tcbench.analysis.welch import LEAST_TRIALS
from tcbench.commands.gate import turns
from tcbench.commands.gate.bisect.bisection import CommitSearch, Round, RoundCosts
from tcbench.commands.gate.builds import Build
from tcbench.core import files, store
from tcbench.core.errors import BuildError, NotComparableError, StoreError
from tcbench.core.record import Cell, Record
from tcbench.core.store import Store
from tcbench.run.plan import PlannedCell
from tcbench.run.runner import Runner

SCHEMA = "tcbench-bisection"
SCHEMA_VERSION = 1
"""Of the record. History: 1, first form."""

State = Literal["measuring ends", "searching", "named", "narrowed down", "not settled", "no loss"]
"""Before it is known whether BAD is slower; while it is searched for; at the end: a commit is named, several cannot be
told apart, nothing is sure, or BAD is not slower."""

_TRIES = 2
"""Trials of a commit that may end by an accident, before it is skipped."""


def _median_step(record: Record) -> float | None:
    measured = record.measurement
    return None if measured is None else record.cell.images_per_step / statistics.median(measured.counted_times_s)


FIGURES: Mapping[str, Callable[[Record], float | None]] = {
    "throughput": THROUGHPUT.of,
    "throughput at the median step": _median_step,
}
"""Figures that rounds may compare: images/s over total time, and at the median step, which short stops disturb less."""

_SPEED_OF = "speed of "


def figure_of(name: str) -> Callable[[Record], float | None]:
    """One of FIGURES, or of a phase how often a second holds it: `speed of update`."""
    if name in FIGURES:
        return FIGURES[name]

    def speed(record: Record) -> float | None:
        phases = () if record.measurement is None else record.measurement.phases
        times_s = next((p.device_s or p.host_s for p in phases if p.name == name.removeprefix(_SPEED_OF)), ())
        return 1 / statistics.median(times_s) if times_s else None

    return speed


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A round: log(the commit's figure / GOOD's), and the seconds that its two trials took."""

    commit: str
    log_ratio: float
    seconds: float


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that cannot be measured, and why."""

    commit: str
    reason: str


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that was made ready, and the seconds that this took."""

    commit: str
    seconds: float


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Commits that no measurement tells apart, and the probability that it is one of them."""

    commits: tuple[str, ...]
    probability: float


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio of throughput from the commit on over GOOD, with its 95% interval over rounds."""

    ratio: float
    low: float
    high: float


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """The record. `commits` are those after `good` up to `bad`, oldest first; `cell` is named once it is known which
    became slower, by its label and its key, and then what rounds compare (of FIGURES). `candidates`: the likeliest
    first. A commit's trials lie beside this file, under its name and the commit's. Times in seconds."""

    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION
    state: State = "measuring ends"
    good: str
    bad: str
    commits: tuple[str, ...]
    subjects: tuple[str, ...]
    cells: tuple[str, ...]
    threshold: float
    cell: str | None = None
    cell_key: str | None = None
    figure: str = "throughput"
    rounds: tuple[Measured, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    built: tuple[Built, ...] = ()
    named: str | None = None
    candidates: tuple[Candidate, ...] = ()
    loss: Loss | None = None
    trials: int = 0
    seconds: float = 0.0

    def place(self, commit: str) -> int:
        """A commit's number: GOOD is 0."""
        return 0 if commit == self.good else self.commits.index(commit) + 1

    def commit(self, place: int) -> str:
        return self.commits[place - 1] if place else self.good

    def search(self, ready: Iterable[str] = ()) -> CommitSearch:
        """All that is known, as numbers; `ready` are the commits that need not be made ready."""
        return CommitSearch(
            len(self.commits),
            tuple(Round(self.place(one.commit), one.log_ratio) for one in self.rounds),
            frozenset(self.place(one.commit) for one in self.skipped),
            frozenset(self.place(commit) for commit in ready if commit != self.good),
        )

    @property
    def costs(self) -> RoundCosts:
        rounds = [one.seconds for one in self.rounds] or [1.0]
        builds = [one.seconds for one in self.built] or [0.0]
        return RoundCosts(max(1e-3, sum(rounds) / len(rounds)), sum(builds) / len(builds))


def write(of: Bisection, path: Path) -> None:
    """Raises StoreError."""
    files.write(path, msgspec.json.format(msgspec.json.encode(of), indent=1) + b"\n", "name another folder with --out")


def read(path: Path) -> Bisection:
    """Raises StoreError for what is none."""
    try:
        return msgspec.json.decode(files.read(path), type=Bisection)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(f"{path}: not a record of a bisection ({error})") from None


def unfinished(folder: Path, like: Bisection) -> Path | None:
    """The newest record of a bisection of the same commits and cells that was not brought to its end."""
    for path in sorted(folder.glob("bisect-*.json"), reverse=True):
        with contextlib.suppress(StoreError):
            there, asked = read(path), ("good", "bad", "commits", "cells", "threshold")
            if there.state == "searching" and all(getattr(there, name) == getattr(like, name) for name in asked):
                return path
    return None


# -- measuring -----------------------------------------------------------------------------------------------------

Make = Callable[[str], Build]
"""Makes a commit ready. Raises BuildError."""


class Bench:
    """The commits that are ready, and their trials, each kept in a file of its commit's beside the record. `runner`
    makes one of a run's id and a launch."""

    def __init__(
        self, path: Path, planned: PlannedCell, make: Make, runner: Callable[..., Runner], ready: dict[str, Build]
    ) -> None:
        self.path, self._planned, self._make, self._runner = path, planned, make, runner
        self.ready = ready
        self._alone: set[frozenset[str]] = set()  # pairs of which one did not end well

    def prepare(self, commit: str) -> float:
        """Make a commit ready; the seconds that took. Raises BuildError."""
        started = time.monotonic()
        if commit not in self.ready:
            build = self._make(commit)
            build.check_reads([self._planned.cell])
            self.ready[commit] = build
        return time.monotonic() - started

    def run(self, *commits: str) -> dict[str, Record]:
        """Run and keep a trial of a commit, or of two in turns; nothing of two that cannot."""
        builds = [self.ready[commit] for commit in commits]
        if len(builds) > 1 and (frozenset(commits) in self._alone or not turns.can_take_turns(self._planned, builds)):
            return {}
        paths = [self.path.with_name(f"{self.path.stem}-{commit[:12]}{store.SUFFIX}") for commit in commits]
        numbers = [len(store.read([path]).records) if path.exists() else 0 for path in paths]
        each = zip(paths, builds, strict=True)
        runners = [self._runner(path.stem, launch=build.launch_as_side()) for path, build in each]
        records = dict(turns.run(runners, self._planned, numbers))
        if len(builds) > 1 and not turns.all_ok(records.values()):
            self._alone.add(frozenset(commits))
            return {}
        for place, record in records.items():
            with Store(paths[place]) as kept:
                kept.append(record)
        return {commits[place]: record for place, record in records.items()}


def steps(of: Bisection, bench: Bench, budget_s: float | None = None) -> Iterator[Bisection]:
    """The record after each round and each commit that is skipped, until a commit is named, nothing more is to be
    learnt, or trials and builds have taken `budget_s`. Each is written before it is given. Raises NotComparableError
    where GOOD does not run any more."""
    spent_s = 0.0
    while budget_s is None or spent_s < budget_s:
        place = of.search(bench.ready).next(of.costs)
        if place is None:
            break
        started = time.monotonic()
        of = _measured(of, bench, of.commit(place))
        spent_s += time.monotonic() - started
        of = _concluded(of, time.monotonic() - started)
        write(of, bench.path)
        yield of
    of = _ended(of)
    write(of, bench.path)
    yield of


def _measured(of: Bisection, bench: Bench, commit: str) -> Bisection:
    """With one more round of a commit, or without that commit."""
    if commit not in bench.ready:
        try:
            took_s = bench.prepare(commit)
        except BuildError as error:
            return _without(of, commit, str(error))
        of = msgspec.structs.replace(of, built=(*of.built, Built(commit=commit, seconds=took_s)))
    started = time.monotonic()
    order = (of.good, commit) if len(of.rounds) % 2 == 0 else (commit, of.good)
    figures: dict[str, float] = {}
    ran = bench.run(*order)
    of = msgspec.structs.replace(of, trials=of.trials + len(ran))
    for one in order:
        for _ in range(_TRIES):
            if one in ran:
                record = ran.pop(one)
            else:
                record = bench.run(one)[one]
                of = msgspec.structs.replace(of, trials=of.trials + 1)
            figure = figure_of(of.figure)(record) if record.status == "ok" else None
            if figure or record.status not in ACCIDENTS:
                break
        if not figure:
            reason = f"{record.status}: {record.reason}"
            if one == of.good:
                raise NotComparableError(f"GOOD ({one[:12]}) does not run any more: {reason}")
            return _without(of, commit, reason)
        figures[one] = figure
    ratio = math.log(figures[commit] / figures[of.good])
    measured = Measured(commit=commit, log_ratio=ratio, seconds=time.monotonic() - started)
    return msgspec.structs.replace(of, rounds=(*of.rounds, measured))


def _without(of: Bisection, commit: str, reason: str) -> Bisection:
    rounds = tuple(one for one in of.rounds if one.commit != commit)
    return msgspec.structs.replace(of, rounds=rounds, skipped=(*of.skipped, Skipped(commit=commit, reason=reason)))


def _concluded(of: Bisection, seconds: float) -> Bisection:
    search = of.search()
    ordered = sorted(zip(search.probabilities, search.groups, strict=True), reverse=True)
    loss = search.loss
    return msgspec.structs.replace(
        of,
        seconds=of.seconds + seconds,
        candidates=tuple(Candidate(commits=tuple(map(of.commit, group)), probability=p) for p, group in ordered),
        loss=None if loss is None else Loss(ratio=loss.value, low=loss.low, high=loss.high),
    )


def _ended(of: Bisection) -> Bisection:
    """With the verdict, where there is one; a search that its budget ended can go on."""
    of = _concluded(of, 0.0)
    search = of.search()
    if search.next(of.costs) is not None:
        return of
    if not search.certain:
        return msgspec.structs.replace(of, state="not settled")
    commits = of.candidates[0].commits
    if len(commits) > 1:
        return msgspec.structs.replace(of, state="narrowed down")
    return msgspec.structs.replace(of, state="named", named=commits[0])


def lost_at_the_median(
    cells: Iterable[Cell], base: Sequence[Record], current: Sequence[Record], rule: Rule
) -> dict[str, float]:
    """The ratio of each cell, by its key, that surely became slower at the median step, which a machine that stops now
    and then disturbs less, where total time did not settle it. A second test of the same trials: at half the level."""
    half = replace(rule, level=rule.level / 2, change_level=rule.change_level / 2)
    lost = {}
    for cell in cells:
        before, after = ([_median_step(r) for r in _ok(records, cell)] for records in (base, current))
        if min(len(before), len(after)) >= LEAST_TRIALS:
            ratio = estimate([f for f in after if f], [f for f in before if f]).ratio
            if half.judge(ratio) == "regression":
                lost[cell.key] = ratio.value
    return lost


def _ok(records: Iterable[Record], cell: Cell) -> list[Record]:
    return [record for record in records if record.cell.key == cell.key and record.status == "ok"]


def begun(
    of: Bisection, cell: PlannedCell, base: Sequence[Record], current: Sequence[Record], phase: str | None = None
) -> Bisection:
    """The search for the commit that made a cell slower, from the trials of GOOD and of BAD in turns. It compares that
    figure of trials by which these two lie apart most clearly; the speed of the phase that surely lost is one too."""
    before, after = _ok(base, cell.cell), _ok(current, cell.cell)
    figures = {name: figure_of(name) for name in (*FIGURES, *([] if phase is None else [_SPEED_OF + phase]))}
    rounds = {
        name: [
            Measured(
                commit=of.bad,
                log_ratio=math.log(figure(theirs) or 1.0) - math.log(figure(ours) or 1.0),
                seconds=ours.duration_s + theirs.duration_s,
            )
            for ours, theirs in zip(before, after, strict=False)
        ]
        for name, figure in figures.items()
    }
    clearest = max(figures, key=lambda name: _clear([one.log_ratio for one in rounds[name]]))
    of = msgspec.structs.replace(
        of,
        state="searching",
        cell=cell.cell.label,
        cell_key=cell.cell.key,
        figure=clearest,
        rounds=(*of.rounds, *rounds[clearest]),
    )
    return _concluded(of, 0.0)


def _clear(log_ratios: Sequence[float]) -> float:
    """The standard deviations by which rounds lie below 0 on average."""
    return -statistics.fmean(log_ratios) / (statistics.stdev(log_ratios) + _LEAST_SCATTER)


_LEAST_SCATTER = 1e-3
"""So that two or three rounds that agree by chance do not decide it."""
