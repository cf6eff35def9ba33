"""The output of `tcbench baseline`: a table of baselines, the facts of one, and the JSON."""

from collections import Counter
from collections.abc import Sequence

from tcbench.analysis.summary import group_by_cell
from tcbench.analysis.welch import LEAST_TRIALS
from tcbench.core.record import TAKE_ENOUGH, Record
from tcbench.run.baseline import Baseline, Broken
from tcbench.show.document import document, fields
from tcbench.show.format import counted
from tcbench.show.tables import COUNT, Column, Table

_MANY = 3


def kept(baseline: Baseline) -> str:
    """Name the baseline that was just kept, in one line."""
    return f"baseline '{baseline.name}': {_extent(baseline)} of {_origin(baseline)} in {baseline.path}"


def doubts(records: Sequence[Record]) -> list[str]:
    """List the reasons why records are a weak base to compare with."""
    lines = []
    trials = Counter({key: sum(r.status == "ok" for r in group) for key, group in group_by_cell(records).items()})
    few = sum(0 < n < LEAST_TRIALS for n in trials.values())
    if few:
        which = "every cell has" if few == len(trials) else f"{few} of {len(trials)} cells have"
        lines.append(f"{which} one trial only, with which every comparison is inconclusive; {TAKE_ENOUGH}")
    commits = {r.environment.project_commit or r.environment.commit for r in records if r.environment} - {None}
    if len(commits) > 1:
        listed = ", ".join(sorted(map(str, commits)))
        lines.append(f"these are results of {len(commits)} commits: {listed}")
    return lines


def table(baselines: Sequence[Baseline]) -> Table[Baseline]:
    """One row per baseline."""
    columns: list[Column[Baseline]] = [
        Column("name", lambda baseline: baseline.name),
        Column("machine", lambda baseline: _some(baseline.machines)),
        Column("scenario", lambda baseline: _some(baseline.scenarios)),
        Column("cells", lambda baseline: baseline.cells, COUNT),
        Column("trials", lambda baseline: baseline.trials, COUNT),
        Column("commit", lambda baseline: _some(baseline.commits)),
        Column("date", lambda baseline: baseline.began_at[:10], wraps=False),
    ]
    return Table(columns, baselines)


def facts(baseline: Baseline) -> str:
    """The runs, commits and machine of a baseline."""
    return f"{baseline.name}: {_extent(baseline)} of {_origin(baseline)}, {baseline.began_at[:10]}"


def to_json(baselines: Sequence[Baseline | Broken]) -> str:
    """The list as JSON; a baseline that cannot be read has an `error` in place of its facts."""
    known = {Baseline: "machines scenarios cells trials commits began_at", Broken: "error=reason"}
    described = [{"name": of.name, "path": str(of.path), **fields(of, known[type(of)])} for of in baselines]
    return document("tcbench-baselines", baselines=described)


def _extent(baseline: Baseline) -> str:
    return f"{counted(baseline.cells, 'cell')}, {counted(baseline.trials, 'trial')}"


def _origin(baseline: Baseline) -> str:
    machines = _some(baseline.machines) or "an unknown machine"
    commits = f" at {_some(baseline.commits)}" if baseline.commits else ""
    return f"{_some(baseline.scenarios)} on {machines}{commits}"


def _some(values: Sequence[str]) -> str:
    more = len(values) - _MANY
    return ", ".join(values[:_MANY]) + (f" and {more} more" if more > 0 else "")
