"""The output of `tcbench baseline`: a table of baselines, the facts of one, and JSON."""

from collections import Counter
from collections.abc import Sequence

from tcbench.analysis.summary import group_by_cell
from tcbench.analysis.welch import LEAST_TRIALS
from tcbench.core.record import TAKE_ENOUGH, Record
from tcbench.run.baseline import Baseline, BrokenBaseline
from tcbench.show.document import document, fields
from tcbench.show.format import counted
from tcbench.show.tables import COUNT, Column, Table

_MANY = 3


def confirmation(baseline: Baseline) -> str:
    """Return the line that confirms a new baseline."""
    return f"baseline '{baseline.name}': {_extent(baseline)} of {_origin(baseline)} in {baseline.path}"


def doubts(records: Sequence[Record]) -> list[str]:
    """Return the reasons why records are a weak base to compare with."""
    lines = []
    trials = Counter({key: sum(r.status == "ok" for r in group) for key, group in group_by_cell(records).items()})
    few = sum(0 < n < LEAST_TRIALS for n in trials.values())
    if few:
        cells = "every cell has" if few == len(trials) else f"{few} of {len(trials)} cells have"
        lines.append(f"{cells} only one trial, so comparisons are inconclusive; {TAKE_ENOUGH}")
    commits = {r.environment.project_commit or r.environment.commit for r in records if r.environment} - {None}
    if len(commits) > 1:
        listed = ", ".join(sorted(map(str, commits)))
        lines.append(f"these are results of {len(commits)} commits: {listed}")
    return lines


def table(baselines: Sequence[Baseline]) -> Table[Baseline]:
    """Return a table with one row per baseline."""
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
    """Return a line with the extent and origin of a baseline."""
    return f"{baseline.name}: {_extent(baseline)} of {_origin(baseline)}, {baseline.began_at[:10]}"


def to_json(baselines: Sequence[Baseline | BrokenBaseline]) -> str:
    """Return the list as JSON. A baseline that cannot be read has an `error` instead of its facts."""
    facts = {Baseline: "machines scenarios cells trials commits began_at", BrokenBaseline: "error=reason"}
    rows = [{"name": each.name, "path": str(each.path), **fields(each, facts[type(each)])} for each in baselines]
    return document("tcbench-baselines", baselines=rows)


def _extent(baseline: Baseline) -> str:
    """Return the number of cells and trials."""
    return f"{counted(baseline.cells, 'cell')}, {counted(baseline.trials, 'trial')}"


def _origin(baseline: Baseline) -> str:
    """Return the scenario, machine and commit of a baseline's runs."""
    machines = _some(baseline.machines) or "an unknown machine"
    commits = f" at {_some(baseline.commits)}" if baseline.commits else ""
    return f"{_some(baseline.scenarios)} on {machines}{commits}"


def _some(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - _MANY
    return ", ".join(names[:_MANY]) + (f" and {more} more" if more > 0 else "")
