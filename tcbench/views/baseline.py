"""The output of `tcbench baseline`: a table of baselines, the facts of one, and the JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tcbench.analysis.summary import by_cell
from tcbench.analysis.welch import LEAST_TRIALS
from tcbench.core.record import TAKE_ENOUGH, Record
from tcbench.present.document import encoded
from tcbench.present.tables import open_table
from tcbench.run.baseline import Baseline, Broken

SCHEMA = "tcbench-baselines"
SCHEMA_VERSION = 1
"""Of the JSON. History: 1, first form."""

_MANY = 3


def kept(baseline: Baseline) -> str:
    """Name the baseline that was just kept, in one line."""
    return f"baseline '{baseline.name}': {_extent(baseline)} of {_origin(baseline)} in {baseline.path}"


def doubts(records: Sequence[Record]) -> list[str]:
    """List the reasons why records are a weak base to compare with."""
    lines = []
    trials = Counter({key: sum(r.status == "ok" for r in group) for key, group in by_cell(records).items()})
    few = sum(0 < n < LEAST_TRIALS for n in trials.values())
    if few:
        which = "every cell has" if few == len(trials) else f"{few} of {len(trials)} cells have"
        lines.append(f"{which} one trial only, with which every comparison is inconclusive; {TAKE_ENOUGH}")
    commits = {r.environment.project_commit or r.environment.commit for r in records if r.environment} - {None}
    if len(commits) > 1:
        listed = ", ".join(sorted(map(str, commits)))
        lines.append(f"these are results of {len(commits)} commits: {listed}")
    return lines


def table(baselines: Sequence[Baseline]) -> Table:
    """One row per baseline."""
    table = open_table()
    for heading in ("name", "machine", "scenario"):
        table.add_column(heading, overflow="fold")
    table.add_column("cells", justify="right", no_wrap=True)
    table.add_column("trials", justify="right", no_wrap=True)
    table.add_column("commit", overflow="fold")
    table.add_column("date", no_wrap=True)
    for one in baselines:
        lists = [Text(_some(values)) for values in (one.machines, one.scenarios)]
        counts = (str(one.cells), str(one.trials))
        table.add_row(Text(one.name), *lists, *counts, Text(_some(one.commits)), Text(one.began_at[:10]))
    return table


def facts(baseline: Baseline) -> Text:
    """The runs, commits and machine of a baseline."""
    return Text(f"{baseline.name}: {_extent(baseline)} of {_origin(baseline)}, {baseline.began_at[:10]}")


def to_json(baselines: Sequence[Baseline | Broken]) -> str:
    """The list as JSON; a baseline that cannot be read has an `error` in place of its facts."""
    value = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "baselines": list(map(_one, baselines))}
    return encoded(value)


def _one(baseline: Baseline | Broken) -> dict[str, Any]:
    if isinstance(baseline, Broken):
        return {"name": baseline.name, "path": str(baseline.path), "error": baseline.reason}
    return {
        "name": baseline.name,
        "path": str(baseline.path),
        "machines": list(baseline.machines),
        "scenarios": list(baseline.scenarios),
        "cells": baseline.cells,
        "trials": baseline.trials,
        "commits": list(baseline.commits),
        "began_at": baseline.began_at,
    }


def _extent(baseline: Baseline) -> str:
    return f"{_count(baseline.cells, 'cell')}, {_count(baseline.trials, 'trial')}"


def _origin(baseline: Baseline) -> str:
    machines = _some(baseline.machines) or "an unknown machine"
    commits = f" at {_some(baseline.commits)}" if baseline.commits else ""
    return f"{_some(baseline.scenarios)} on {machines}{commits}"


def _some(values: Sequence[str]) -> str:
    more = len(values) - _MANY
    return ", ".join(values[:_MANY]) + (f" and {more} more" if more > 0 else "")


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
