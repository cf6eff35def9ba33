"""The search for the commit that caused a loss: its record on disk, and the trials that it runs.

A commit that cannot be built, or whose trials fail, is skipped, as with `git bisect skip`. The record is written after
each round and holds everything that decides, so that an interrupted search continues from it. Prints nothing."""

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
"""Version of the record. 1: first form."""

State = Literal["measuring ends", "searching", "named", "narrowed down", "not settled", "no loss"]
"""Stages of a bisection and its possible ends.

`measuring ends`: it is not known yet whether BAD is slower; `searching`: it is slower, and the commit is searched for.
Ends: `named`: one commit is certain; `narrowed down`: several commits cannot be told apart; `not settled`: nothing is
certain; `no loss`: BAD is not slower."""

_TRIES = 2
"""Trials of a commit that may fail by accident before it is skipped."""


def _median_step(record: Record) -> float | None:
    """Return a record's images/s at the median step."""
    measured = record.measurement
    return None if measured is None else record.images_per_step / statistics.median(measured.counted_times_s)


FIGURES: Mapping[str, Callable[[Record], float | None]] = {
    "throughput": THROUGHPUT.read,
    "throughput at the median step": _median_step,
}
"""Figures that rounds may compare: images/s over total time, and at the median step, which short stalls affect less."""

_SPEED_PREFIX = "speed of "


def figure_function(name: str) -> Callable[[Record], float | None]:
    """Return a function that computes a figure of a record: one of FIGURES, or a phase's speed. `speed of update` is 1
    / (median seconds of the phase `update`)."""
    if name in FIGURES:
        return FIGURES[name]

    def speed(record: Record) -> float | None:
        phases = () if record.measurement is None else record.measurement.phases
        times_s = next((p.device_s or p.host_s for p in phases if p.name == name.removeprefix(_SPEED_PREFIX)), ())
        return 1 / statistics.median(times_s) if times_s else None

    return speed


class MeasuredRound(msgspec.Struct, frozen=True, kw_only=True):
    """A round: log(the commit's figure / GOOD's figure), and the seconds that its two trials took."""

    commit: str
    log_ratio: float
    seconds: float


class SkippedCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that cannot be measured, and the reason."""

    commit: str
    reason: str


class BuiltCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that was built, and the seconds that the build took."""

    commit: str
    seconds: float


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Commits that no measurement can tell apart, and the probability that one of them caused the loss."""

    commits: tuple[str, ...]
    probability: float


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio to GOOD's throughput from the slow commit on, with its 95% interval over rounds."""

    ratio: float
    low: float
    high: float


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a bisection, as stored on disk.

    `commits` are those after `good` up to `bad`, oldest first. `cell` (its label), `cell_key` and `figure` (what rounds
    compare) are set when the search begins. `candidates` are sorted by probability, likeliest first. The trials of each
    commit are stored beside this file, under its name and the commit's id. Times are in seconds."""

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
    rounds: tuple[MeasuredRound, ...] = ()
    skipped: tuple[SkippedCommit, ...] = ()
    built: tuple[BuiltCommit, ...] = ()
    named: str | None = None
    candidates: tuple[Candidate, ...] = ()
    loss: Loss | None = None
    trials: int = 0
    seconds: float = 0.0

    def place(self, commit: str) -> int:
        """Return a commit's number. GOOD is 0."""
        return 0 if commit == self.good else self.commits.index(commit) + 1

    def commit(self, place: int) -> str:
        """Return the id of the commit with this number."""
        return self.commits[place - 1] if place else self.good

    def search(self, ready: Iterable[str] = ()) -> CommitSearch:
        """Return the state of the search as numbers. `ready` are the commits that are built."""
        return CommitSearch(
            len(self.commits),
            tuple(Round(self.place(round_.commit), round_.log_ratio) for round_ in self.rounds),
            frozenset(self.place(skipped.commit) for skipped in self.skipped),
            frozenset(self.place(commit) for commit in ready if commit != self.good),
        )

    @property
    def costs(self) -> RoundCosts:
        """The mean cost of a round and of a build so far."""
        rounds = [round_.seconds for round_ in self.rounds] or [1.0]
        builds = [built.seconds for built in self.built] or [0.0]
        return RoundCosts(max(1e-3, sum(rounds) / len(rounds)), sum(builds) / len(builds))


def write(bisection: Bisection, path: Path) -> None:
    """Write the record of a bisection. Raises StoreError."""
    text = msgspec.json.format(msgspec.json.encode(bisection), indent=1) + b"\n"
    files.write(path, text, "name another folder with --out")


def read(path: Path) -> Bisection:
    """Read the record of a bisection. Raises StoreError for any other file."""
    try:
        return msgspec.json.decode(files.read(path), type=Bisection)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(f"{path}: not a record of a bisection ({error})") from None


def unfinished(folder: Path, like: Bisection) -> Path | None:
    """Return the newest record of an unfinished bisection with the commits, cells and threshold of `like`, or None."""
    for path in sorted(folder.glob("bisect-*.json"), reverse=True):
        with contextlib.suppress(StoreError):
            stored, question = read(path), ("good", "bad", "commits", "cells", "threshold")
            if stored.state == "searching" and all(getattr(stored, name) == getattr(like, name) for name in question):
                return path
    return None


# -- measuring -----------------------------------------------------------------------------------------------------


class CommitRunner:
    """Builds commits and runs their trials, which are stored in a file per commit beside the record at `path`.

    `ready` has the builds that exist already, by commit id."""

    def __init__(
        self,
        path: Path,
        planned: PlannedCell,
        make_build: Callable[[str], Build],
        make_runner: Callable[..., Runner],
        ready: dict[str, Build],
    ) -> None:
        self.path, self._planned, self._make_build, self._make_runner = path, planned, make_build, make_runner
        self.ready = ready
        self._alone: set[frozenset[str]] = set()  # pairs of commits whose trials failed when they ran in turns

    def prepare(self, commit: str) -> float:
        """Build a commit, if it is not ready, and return the seconds that this took. Raises BuildError."""
        started = time.monotonic()
        if commit not in self.ready:
            build = self._make_build(commit)
            build.check_cells([self._planned.cell])
            self.ready[commit] = build
        return time.monotonic() - started

    def run(self, *commits: str) -> dict[str, Record]:
        """Run and store a trial of one commit, or of two commits in turns. Returns {} if the two cannot take turns, or
        if one of their trials fails."""
        builds = [self.ready[commit] for commit in commits]
        if len(builds) > 1 and (frozenset(commits) in self._alone or not turns.can_take_turns(self._planned, builds)):
            return {}
        paths = [self.path.with_name(f"{self.path.stem}-{commit[:12]}{store.SUFFIX}") for commit in commits]
        numbers = [len(store.read([path]).records) if path.exists() else 0 for path in paths]
        runners = [
            self._make_runner(path.stem, launch=build.launch_as_side())
            for path, build in zip(paths, builds, strict=True)
        ]
        records = dict(turns.run_trials(runners, self._planned, numbers))
        if len(builds) > 1 and not turns.all_ok(records.values()):
            self._alone.add(frozenset(commits))
            return {}
        for index, record in records.items():
            with Store(paths[index]) as trials:
                trials.append(record)
        return {commits[index]: record for index, record in records.items()}


def run_search(bisection: Bisection, runner: CommitRunner, budget_s: float | None = None) -> Iterator[Bisection]:
    """Run rounds until a commit is certain, nothing more can be learnt, or they have taken `budget_s`.

    Yields the record after each round and each skipped commit, and at the end; each one is on disk before it is
    yielded. Raises NotComparableError if GOOD no longer runs."""
    spent_s = 0.0
    while budget_s is None or spent_s < budget_s:
        place = bisection.search(runner.ready).next(bisection.costs)
        if place is None:
            break
        started = time.monotonic()
        bisection = _with_round(bisection, runner, bisection.commit(place))
        spent_s += time.monotonic() - started
        bisection = _with_estimates(bisection, time.monotonic() - started)
        write(bisection, runner.path)
        yield bisection
    bisection = _with_verdict(bisection)
    write(bisection, runner.path)
    yield bisection


def _with_round(bisection: Bisection, runner: CommitRunner, commit: str) -> Bisection:
    """Run a trial of a commit and one of GOOD, in an order that alternates, and return the record with this round. If
    the commit does not run, return it with the commit skipped. Raises NotComparableError if GOOD does not run."""
    if commit not in runner.ready:
        try:
            build_s = runner.prepare(commit)
        except BuildError as error:
            return _with_skipped(bisection, commit, str(error))
        built = BuiltCommit(commit=commit, seconds=build_s)
        bisection = msgspec.structs.replace(bisection, built=(*bisection.built, built))
    started = time.monotonic()
    order = (bisection.good, commit) if len(bisection.rounds) % 2 == 0 else (commit, bisection.good)
    figures: dict[str, float] = {}
    ran = runner.run(*order)
    bisection = msgspec.structs.replace(bisection, trials=bisection.trials + len(ran))
    for side in order:
        for _ in range(_TRIES):
            if side in ran:
                record = ran.pop(side)
            else:
                record = runner.run(side)[side]
                bisection = msgspec.structs.replace(bisection, trials=bisection.trials + 1)
            figure = figure_function(bisection.figure)(record) if record.status == "ok" else None
            if figure or record.status not in ACCIDENTS:  # only an accident is worth a second try
                break
        if not figure:
            reason = f"{record.status}: {record.reason}"
            if side == bisection.good:
                raise NotComparableError(f"GOOD ({side[:12]}) no longer runs: {reason}")
            return _with_skipped(bisection, commit, reason)
        figures[side] = figure
    ratio = math.log(figures[commit] / figures[bisection.good])
    measured = MeasuredRound(commit=commit, log_ratio=ratio, seconds=time.monotonic() - started)
    return msgspec.structs.replace(bisection, rounds=(*bisection.rounds, measured))


def _with_skipped(bisection: Bisection, commit: str, reason: str) -> Bisection:
    """Return the record with a commit skipped and its rounds removed."""
    rounds = tuple(round_ for round_ in bisection.rounds if round_.commit != commit)
    skipped = SkippedCommit(commit=commit, reason=reason)
    return msgspec.structs.replace(bisection, rounds=rounds, skipped=(*bisection.skipped, skipped))


def _with_estimates(bisection: Bisection, seconds: float = 0.0) -> Bisection:
    """Return the record with candidates and loss estimated from all rounds, and `seconds` more spent."""
    search = bisection.search()
    ordered = sorted(zip(search.probabilities, search.groups, strict=True), reverse=True)
    loss = search.loss
    return msgspec.structs.replace(
        bisection,
        seconds=bisection.seconds + seconds,
        candidates=tuple(Candidate(commits=tuple(map(bisection.commit, group)), probability=p) for p, group in ordered),
        loss=None if loss is None else Loss(ratio=loss.value, low=loss.low, high=loss.high),
    )


def _with_verdict(bisection: Bisection) -> Bisection:
    """Return the record with the verdict. It stays `searching` if only the budget ended the search."""
    bisection = _with_estimates(bisection)
    search = bisection.search()
    if search.next(bisection.costs) is not None:
        return bisection
    if not search.certain:
        return msgspec.structs.replace(bisection, state="not settled")
    commits = bisection.candidates[0].commits
    if len(commits) > 1:
        return msgspec.structs.replace(bisection, state="narrowed down")
    return msgspec.structs.replace(bisection, state="named", named=commits[0])


def median_step_losses(
    cells: Iterable[Cell], base: Sequence[Record], current: Sequence[Record], rule: Rule
) -> dict[str, float]:
    """Return the ratios at the median step, by cell key, of cells that are slower by that measure.

    Used if total time was inconclusive: stalls of the machine affect the median less. Because it is a second test of
    the same trials, it runs at half the significance level."""
    half = replace(rule, level=rule.level / 2, change_level=rule.change_level / 2)
    losses = {}
    for cell in cells:
        before, after = ([_median_step(record) for record in _ok(records, cell)] for records in (base, current))
        if min(len(before), len(after)) >= LEAST_TRIALS:
            ratio = estimate([rate for rate in after if rate], [rate for rate in before if rate]).ratio
            if half.judge(ratio) == "regression":
                losses[cell.key] = ratio.value
    return losses


def _ok(records: Iterable[Record], cell: Cell) -> list[Record]:
    """Return the successful trials of a cell."""
    return [record for record in records if record.cell.key == cell.key and record.status == "ok"]


def begin_search(
    bisection: Bisection,
    planned: PlannedCell,
    base: Sequence[Record],
    current: Sequence[Record],
    phase: str | None = None,
) -> Bisection:
    """Return the record at the start of the search, with the trials of GOOD and BAD as its first rounds.

    The search compares the figure that separates GOOD and BAD most clearly. `phase` is a phase that is significantly
    slower; its speed is one of the figures."""
    before, after = _ok(base, planned.cell), _ok(current, planned.cell)
    figures = {name: figure_function(name) for name in (*FIGURES, *([] if phase is None else [_SPEED_PREFIX + phase]))}
    rounds = {
        name: [
            MeasuredRound(
                commit=bisection.bad,
                log_ratio=math.log(figure(bad) or 1.0) - math.log(figure(good) or 1.0),
                seconds=good.duration_s + bad.duration_s,
            )
            for good, bad in zip(before, after, strict=False)
        ]
        for name, figure in figures.items()
    }
    clearest = max(figures, key=lambda name: _clarity([round_.log_ratio for round_ in rounds[name]]))
    bisection = msgspec.structs.replace(
        bisection,
        state="searching",
        cell=planned.cell.label,
        cell_key=planned.cell.key,
        figure=clearest,
        rounds=(*bisection.rounds, *rounds[clearest]),
    )
    return _with_estimates(bisection)


def _clarity(log_ratios: Sequence[float]) -> float:
    """Return how many standard deviations the mean of the rounds' log ratios lies below 0."""
    return -statistics.fmean(log_ratios) / (statistics.stdev(log_ratios) + _LEAST_SCATTER)


_LEAST_SCATTER = 1e-3
"""Added to the scatter, so that two or three rounds that agree by chance do not decide which figure is clearest."""
