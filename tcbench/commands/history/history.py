"""The history of a cell: its trials at each commit, and the changes between commits, judged as in any comparison. Pure
functions."""

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


class CodeVersion(NamedTuple):
    """A state of the code: the commit of the user's project, and tcbench's commit or version.

    `run` is set if the commits do not identify the code, because there is none or files were changed."""

    project: str | None
    tcbench: str | None
    run: str | None


@dataclass(frozen=True)
class Revision:
    """A measured state of the code.

    `name` is the commit of the user's project if records have it, else tcbench's commit, else tcbench's version and the
    run. `tcbench_commit` is set if the project's commit was measured with several commits of tcbench. `began_at` is the
    start of its first trial: UTC, ISO 8601."""

    code: CodeVersion
    name: str
    tcbench_commit: str | None
    began_at: str

    @property
    def short(self) -> str:
        """The name with commits cut to 7 characters, keeping a `+`. A run's name is not cut."""
        if self.code.project is None and self.code.run is not None and not self.name.endswith("+"):
            return self.name
        shortened = self.name[:7] + ("+" if self.name.endswith("+") else "")
        return f"{shortened} ({self.tcbench_commit[:7]})" if self.tcbench_commit else shortened

    @property
    def date(self) -> str:
        """The date of the first trial: `2026-11-29`."""
        return self.began_at[:10]


@dataclass(frozen=True)
class HistoryPoint:
    """A cell's trials at one revision, and the change since the point before.

    `side` has the trials with their images/s. `change` is measured from the point at revision `since`; both are None
    for the first point of a line. `broken_by` lists what differs from the point before, if the two cannot be compared:
    a new line begins here."""

    revision: Revision
    side: Side
    change: CellComparison | None = None
    since: Revision | None = None
    broken_by: tuple[Difference, ...] = ()

    @property
    def images_per_s(self) -> float | None:
        """The geometric mean over trials; None if no trial succeeded."""
        return self.side.figure

    @property
    def interval(self) -> Interval | None:
        """The 95% interval over trials, by Student's t on logarithms (see `welch`); None for one trial."""
        figures = self.side.figures
        return SampleStats.from_figures(figures).geometric_mean.interval() if len(figures) >= LEAST_TRIALS else None

    @property
    def regressed(self) -> bool:
        """Whether this point regressed, or the cell no longer runs."""
        return self.change is not None and self.change.failing


@dataclass(frozen=True)
class CellHistory:
    """One cell on one machine over revisions, oldest first.

    `environment` is the newest one recorded. `beneath` names what distinguishes the software stack, if a revision of
    the cell was measured on several stacks."""

    cell: Cell
    machine: str | None
    environment: Environment | None
    points: tuple[HistoryPoint, ...]
    beneath: tuple[str, ...] = ()


@dataclass(frozen=True)
class History:
    """All cells over all revisions, oldest first: by ancestry if git knows it, else by their first trials."""

    revisions: tuple[Revision, ...]
    cells: tuple[CellHistory, ...]
    rule: Rule

    @property
    def regressions(self) -> int:
        """The number of regressions in all cells."""
        return sum(point.regressed for cell in self.cells for point in cell.points)


def build_history(
    records: Iterable[Record],
    rule: Rule | None = None,
    allow: Collection[str] = (),
    places: Mapping[str, int] | None = None,
) -> History:
    """Return the history of each cell, in the order of first appearance.

    `records` are those of `store.current`. `places` has each commit's position in its repository (`core.git.ancestry`).
    A successful point is compared with the last successful one before it in its line, any other point with the last
    one. Two points are not compared, and a new line begins, if they differ in a facet (machine, driver, libraries,
    settings) that `allow` does not name. If one commit was measured on several stacks, each stack is a cell of its
    own."""
    rule = rule or Rule()
    records = tuple(records)
    codes = _codes(records)
    revisions = _revisions(records, codes, places or {})
    beneath = comparability.stack_differences(records, allow)
    cells = []
    for (machine, cell), cell_records in group_by_cell(records).items():
        for stack, group in _by_stack(cell_records, codes, beneath).items():
            by_code = grouped((codes[id(record)], record) for record in group)
            described = [record for record in reversed(group) if record.environment is not None]
            newest = max(described, key=lambda record: record.started_at, default=None)
            trials = [(r, Trials(by_code[r.code], machine)) for r in revisions if r.code in by_code]
            points = _points(trials, rule, allow)
            environment = newest.environment if newest else None
            cells.append(CellHistory(cell, machine, environment, points, stack))
    return History(revisions, tuple(cells), rule)


def _by_stack(
    records: Sequence[Record], codes: Mapping[int, CodeVersion], beneath: Mapping[str, tuple[str, ...]]
) -> dict[tuple[str, ...], list[Record]]:
    """Return a cell's records by software stack if any revision was measured on several stacks; else all under ().
    `codes` has the code of each record by its id(), and `beneath` the stack of each run."""
    stacks = grouped((beneath.get(record.run_id, ()), record) for record in records)
    pairs = {(codes[id(record)], stack) for stack, group in stacks.items() for record in group}
    return stacks if len(pairs) > len({code for code, _ in pairs}) else {(): list(records)}


def _codes(records: Sequence[Record]) -> dict[int, CodeVersion]:
    """Return each record's code by the record's id(). A trial without an environment belongs to the code that its run
    reported before."""
    codes: dict[int, CodeVersion] = {}
    last = environments(records)
    for record in sorted(records, key=lambda record: record.started_at):
        environment = record.environment or last.get(record.run_id)
        if environment is None:
            codes[id(record)] = CodeVersion(None, None, record.run_id)
            continue
        last[record.run_id] = environment
        commits = [c for c in (environment.project_commit, environment.commit) if c]
        exact = bool(commits) and not any(commit.endswith("+") for commit in commits)
        tcbench = environment.commit or environment.tcbench
        codes[id(record)] = CodeVersion(environment.project_commit, tcbench, None if exact else record.run_id)
    return codes


def _revisions(
    records: Sequence[Record], codes: dict[int, CodeVersion], places: Mapping[str, int]
) -> tuple[Revision, ...]:
    """Return the revisions of all records, oldest first (`_by_ancestry`)."""
    starts = grouped((codes[id(record)], record.started_at) for record in records)
    began = {code: min(started_at) for code, started_at in starts.items()}
    tcbench_of_project = grouped((code.project, code.tcbench) for code in began)
    versions = {r.environment.tcbench for r in records if r.environment is not None}

    def revision(code: CodeVersion) -> Revision:
        """Return the revision with the shortest name that distinguishes its code from all others."""
        if code.project:
            several = len(set(tcbench_of_project[code.project])) > 1
            return Revision(code, code.project, code.tcbench if several else None, began[code])
        name = code.tcbench or str(code.run)
        return Revision(code, f"{name} {code.run}" if code.tcbench in versions else name, None, began[code])

    by_time = sorted(began, key=lambda code: (began[code], tuple(map(str, code))))
    return tuple(map(revision, _by_ancestry(by_time, places)))


def _by_ancestry(codes: Sequence[CodeVersion], places: Mapping[str, int]) -> list[CodeVersion]:
    """Return codes with the commits that git knows in order of ancestry.

    The known commits swap places among themselves, and unknown ones stay where they are. Commits of a project and of
    tcbench are ordered separately."""

    def place(code: CodeVersion) -> tuple[int, bool]:
        """Return a sort key: the commit's place, or -1 if git does not know it. Changed files come after it."""
        commit = code.project or code.tcbench or ""
        return places.get(commit.removesuffix("+"), -1), commit.endswith("+")

    ordered = list(codes)
    for of_project in (True, False):
        indices = [n for n, code in enumerate(codes) if bool(code.project) == of_project and place(code)[0] >= 0]
        for slot, n in zip(indices, sorted(indices, key=lambda n: place(codes[n])), strict=True):
            ordered[slot] = codes[n]
    return ordered


def _points(groups: Sequence[tuple[Revision, Trials]], rule: Rule, allow: Collection[str]) -> tuple[HistoryPoint, ...]:
    """Return a point per revision with its change since the point before, or what differs if the two points cannot be
    compared. `groups` has the trials of each revision, oldest first."""
    points = []
    last: tuple[Revision, Trials] | None = None
    last_ok: tuple[Revision, Trials] | None = None
    for revision, trials in groups:
        ok = trials.side.status == "ok"
        previous = last_ok if ok and last_ok else last
        point = HistoryPoint(revision, trials.side_by_metric(THROUGHPUT))
        if previous is not None:
            differences = comparability.differences(previous[1].facts, trials.facts)
            broken_by = tuple(difference for difference in differences if difference.facet not in allow)
            if broken_by:
                point, last_ok = replace(point, broken_by=broken_by), None
            else:
                change = compare.compare_cell(previous[1], trials, THROUGHPUT, rule)
                point = replace(point, change=change, since=previous[0])
        points.append(point)
        last = revision, trials
        last_ok = last if ok else last_ok
    return tuple(points)
