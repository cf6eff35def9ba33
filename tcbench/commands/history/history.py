"""A cell over commits: what each commit's trials say, and what changed since the one before, judged as any comparison
is. Pure functions.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tcbench.analysis import comparability, compare
from tcbench.analysis.comparability import Difference
from tcbench.analysis.compare import THROUGHPUT, CellComparison, Side, Trials
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import environments, group_by_cell
from tcbench.analysis.verdict import Rule
from tcbench.analysis.welch import LEAST_TRIALS, SampleStats
from tcbench.core.groups import grouped
from tcbench.core.record import Cell, Environment, Record


class CodeAt(NamedTuple):
    """A state of the code: the commit of the user's project, that of tcbench or its version, and the run where no
    commit tells the code: there is none, or files differed from it."""

    project: str | None
    tcbench: str | None
    run: str | None


@dataclass(frozen=True)
class Revision:
    """A state of the code that was measured. `name` is the commit of the user's project where records tell it, else
    tcbench's own, else tcbench's version and the run. `beside` is tcbench's commit where `name` is a project's that
    several of tcbench were measured at. `began_at` is the start of its first trial: UTC, ISO 8601."""

    code: CodeAt
    name: str
    beside: str | None
    began_at: str

    @property
    def short(self) -> str:
        """At most 7 letters of each commit, with the `+`; a run's whole name."""
        if self.code.project is None and self.code.run is not None and not self.name.endswith("+"):
            return self.name
        shortened = self.name[:7] + ("+" if self.name.endswith("+") else "")
        return f"{shortened} ({self.beside[:7]})" if self.beside else shortened

    @property
    def date(self) -> str:
        return self.began_at[:10]


@dataclass(frozen=True)
class HistoryPoint:
    """One cell at one revision: its trials there, with their images/s (`side`), and the 95% interval over trials, None
    with one. `change` is the step from the point `since`; both are None where nothing comes before it in its line.
    `broken_by`: what differs from the point before, so that a new line begins here and no step is judged."""

    revision: Revision
    side: Side
    change: CellComparison | None = None
    since: Revision | None = None
    broken_by: tuple[Difference, ...] = ()

    @property
    def images_per_s(self) -> float | None:
        return self.side.figure

    @property
    def interval(self) -> Interval | None:
        """Student's t on the logarithms of the trials' figures, as in `welch`."""
        figures = self.side.figures
        return SampleStats.from_figures(figures).geometric_mean.interval() if len(figures) >= LEAST_TRIALS else None

    @property
    def regressed(self) -> bool:
        """Whether the step to here is a regression, or the cell does not run any more."""
        return self.change is not None and self.change.failing


@dataclass(frozen=True)
class CellHistory:
    """One cell on one machine over the revisions it was run at, oldest first. `environment` is the newest known.
    `beneath`: how its software stack differs from others that one of these revisions was measured on."""

    cell: Cell
    machine: str | None
    environment: Environment | None
    points: tuple[HistoryPoint, ...]
    beneath: tuple[str, ...] = ()


@dataclass(frozen=True)
class History:
    """All cells over all revisions, oldest first: by ancestry where git tells it, else by their first trials."""

    revisions: tuple[Revision, ...]
    cells: tuple[CellHistory, ...]
    rule: Rule

    @property
    def regressions(self) -> int:
        return sum(point.regressed for cell in self.cells for point in cell.points)


def history(
    records: Iterable[Record],
    rule: Rule | None = None,
    allow: Collection[str] = (),
    places: Mapping[str, int] | None = None,
) -> History:
    """From records as `store.current` leaves them, cells in the order of first appearance. `places`: the place of each
    commit in its repository's history (`core.git.ancestry`). A point that is ok is compared with the last one before it
    in its line that is, any other with the last of all. Where the two stand on unlike machines, drivers, libraries or
    settings (`comparability.differences`, of facets that `allow` does not name), they are not compared, and a new line
    begins; where one commit was measured on several such, each is a cell of its own."""
    rule = rule or Rule()
    records = tuple(records)
    codes = _codes(records)
    revisions = _revisions(records, codes, places or {})
    beneath = comparability.stack_differences(records, allow)
    cells = []
    for (machine, cell), of_cell in group_by_cell(records).items():
        for stack, group in _by_stack(of_cell, codes, beneath).items():
            at = grouped((codes[id(record)], record) for record in group)
            known = [r for r in group if r.environment is not None]
            newest = max(reversed(known), key=lambda r: r.started_at, default=None)
            groups = [(revision, Trials(at[revision.code], machine)) for revision in revisions if revision.code in at]
            environment = newest.environment if newest is not None else None
            cells.append(CellHistory(cell, machine, environment, _points(groups, rule, allow), stack))
    return History(revisions, tuple(cells), rule)


def _by_stack(
    records: Sequence[Record], codes: Mapping[int, CodeAt], beneath: Mapping[str, tuple[str, ...]]
) -> dict[tuple[str, ...], list[Record]]:
    """A cell's records by the stack of their runs, where one revision has several; else all together."""
    stacks = grouped((beneath.get(record.run_id, ()), record) for record in records)
    at = {(codes[id(record)], stack) for stack, group in stacks.items() for record in group}
    several = len(at) > len({code for code, _ in at})
    return stacks if several else {(): list(records)}


def _codes(records: Sequence[Record]) -> dict[int, CodeAt]:
    """Each record's code, by its id; a trial that could not tell belongs to what its run told last before it."""
    codes: dict[int, CodeAt] = {}
    last = environments(records)
    for record in sorted(records, key=lambda record: record.started_at):
        environment = record.environment or last.get(record.run_id)
        if environment is None:
            codes[id(record)] = CodeAt(None, None, record.run_id)
            continue
        last[record.run_id] = environment
        commits = [c for c in (environment.project_commit, environment.commit) if c]
        exact = bool(commits) and not any(commit.endswith("+") for commit in commits)
        tcbench = environment.commit or environment.tcbench
        codes[id(record)] = CodeAt(environment.project_commit, tcbench, None if exact else record.run_id)
    return codes


def _revisions(records: Sequence[Record], codes: dict[int, CodeAt], places: Mapping[str, int]) -> tuple[Revision, ...]:
    of_code = grouped((codes[id(record)], record.started_at) for record in records)
    began = {code: min(started_at) for code, started_at in of_code.items()}
    of_project = grouped((code.project, code.tcbench) for code in began)
    versions = {r.environment.tcbench for r in records if r.environment is not None}

    def named(code: CodeAt) -> str:
        if code.project:
            return code.project
        if code.tcbench is None:
            return str(code.run)
        return f"{code.tcbench} {code.run}" if code.tcbench in versions else code.tcbench

    def beside(code: CodeAt) -> str | None:
        return code.tcbench if code.project and len(set(of_project[code.project])) > 1 else None

    by_time = sorted(began, key=lambda code: (began[code], tuple(map(str, code))))
    return tuple(Revision(code, named(code), beside(code), began[code]) for code in _by_ancestry(by_time, places))


def _by_ancestry(codes: Sequence[CodeAt], places: Mapping[str, int]) -> list[CodeAt]:
    """Commits that have a place change places among themselves; all others stay where they are. A project's commits and
    tcbench's are of two repositories."""

    def place(code: CodeAt) -> tuple[int, bool]:
        """Changed files stand after their commit; -1 where git knows no place."""
        commit = code.project or code.tcbench or ""
        return places.get(commit.removesuffix("+"), -1), commit.endswith("+")

    ordered = list(codes)
    for of_project in (True, False):
        known = [n for n, code in enumerate(codes) if bool(code.project) == of_project and place(code)[0] >= 0]
        for slot, n in zip(known, sorted(known, key=lambda n: place(codes[n])), strict=True):
            ordered[slot] = codes[n]
    return ordered


def _points(groups: Sequence[tuple[Revision, Trials]], rule: Rule, allow: Collection[str]) -> tuple[HistoryPoint, ...]:
    points = []
    last: tuple[Revision, Trials] | None = None
    last_ok: tuple[Revision, Trials] | None = None
    for revision, trials in groups:
        ok = trials.side.status == "ok"
        before = last_ok if ok and last_ok else last
        point = HistoryPoint(revision, trials.side_by_metric(THROUGHPUT))
        if before is not None:
            differences = comparability.differences(before[1].facts, trials.facts)
            broken_by = tuple(difference for difference in differences if difference.facet not in allow)
            if broken_by:
                point, last_ok = replace(point, broken_by=broken_by), None
            else:
                change = compare.compare_cell(before[1], trials, THROUGHPUT, rule)
                point = replace(point, change=change, since=before[0])
        points.append(point)
        last = revision, trials
        last_ok = last if ok else last_ok
    return tuple(points)
