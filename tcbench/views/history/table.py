"""The texts of `tcbench history` beside its chart: a table per cell, how to read it, and the JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tcbench.analysis.history import CellHistory, History, Point
from tcbench.core.record import TAKE_ENOUGH
from tcbench.present.document import encoded
from tcbench.present.format import changes, counted, plural, rate, threshold
from tcbench.present.naming import apart, rate_unit
from tcbench.present.simulated import is_simulated
from tcbench.present.tables import open_table
from tcbench.present.verdicts import FORMS, STYLES, signed, tone

SCHEMA = "tcbench-history"
SCHEMA_VERSION = 2
"""Of the JSON. History: 1, first form, images/s at the median step; 2, images/s over total time."""

_BLOCKS = "▁▂▃▄▅▆▇█"

LEAST_SPAN = 1.1
"""A sparkline is as high as this factor at least, so that noise looks like noise."""


def blocks(history: History) -> Iterable[tuple[Text, Table]]:
    """A heading and a table for each cell, by batch size and ranks."""
    widths = _widths(history)
    wheres = apart([(cell.machine, cell.cell) for cell in history.cells], [cell.beneath for cell in history.cells])
    sizes = [(cell.cell.batch_size, cell.cell.ranks) for cell in history.cells]
    for _, cell, where in sorted(zip(sizes, history.cells, wheres, strict=True), key=lambda row: row[0]):
        words = cell.cell.label + (f" ({where})" if where else "")
        line = sparkline(cell.points) if len(cell.points) > 1 else ""
        yield Text(f"{words}  {line}".rstrip(), style="bold"), _table(cell, widths)


def sparkline(points: Sequence[Point]) -> str:
    """Throughput as blocks, a cross where there is none, a bar where a new line begins."""
    rates = [point.images_per_s for point in points if point.images_per_s is not None]
    low = min(rates, default=1.0)
    span = math.log(max(max(rates, default=1.0) / low, LEAST_SPAN))
    words = ""
    for point in points:
        words += "|" if point.broken_by else ""
        if point.images_per_s is None:
            words += "✗"
        else:
            words += _BLOCKS[min(int(math.log(point.images_per_s / low) / span * len(_BLOCKS)), len(_BLOCKS) - 1)]
    return words


def notes(history: History) -> list[str]:
    """Hints on reading the tables."""
    lines = [
        f"{rate_unit(cell.cell for cell in history.cells)}: over total time, geometric mean over trials; ±: 95% "
        "interval over trials; one trial has none.",
        "change: from the commit before that ran, with its 95% interval; a regression is a certain loss of more than "
        f"{threshold(history.rule.threshold)}.",
    ]
    points = [point for cell in history.cells for point in cell.points]
    if any(point.change and point.change.verdict == "inconclusive" for point in points):
        lines.append(f"inconclusive: such a loss is neither certain nor ruled out; {TAKE_ENOUGH}.")
    if any(point.broken_by for point in points):
        lines.append(
            "new line: machine, libraries or settings differ from the commit before: not compared; --allow does it."
        )
    if any(point.revision.name.endswith("+") for point in points):
        lines.append("+: tracked files differed from the commit; each such run has a row of its own.")
    return lines


def verdict(history: History) -> str:
    """The whole in one line."""
    cells, commits = len(history.cells), len(history.revisions)
    over = f"{counted(cells, 'cell')} over {counted(commits, 'commit')}"
    verdicts = [point.change.verdict for cell in history.cells for point in cell.points if point.change]
    if not verdicts:
        return f"{over}: nothing to compare yet"
    regressions = f"{history.regressions or 'no'} {plural(history.regressions or 1, 'regression')}"
    unsure = verdicts.count("inconclusive")
    among = f"in {counted(len(verdicts), 'comparison')}"
    return f"{over}: {regressions} {among}" + (f", {unsure} inconclusive" if unsure else "")


def to_json(history: History) -> str:
    """Everything; an open end of an interval is null."""
    value = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "threshold": history.rule.threshold,
        "commits": [_revision(revision) for revision in history.revisions],
        "cells": [
            {
                "config": cell.cell.config,
                "batch_size": cell.cell.batch_size,
                "ranks": cell.cell.ranks,
                "scenario": cell.cell.scenario,
                "machine": cell.machine,
                "stack": ", ".join(cell.beneath) or None,
                "simulated": is_simulated(cell.environment),
                "key": cell.cell.key,
                "points": list(map(_point, cell.points)),
            }
            for cell in history.cells
        ],
    }
    return encoded(value)


def reason(point: Point) -> str:
    """The words in place of a change: why a line begins, or why there is no figure."""
    if point.broken_by:
        return "new line: " + "; ".join(difference.says for difference in point.broken_by)
    if point.images_per_s is None:
        return f"{FORMS['changed status'].sign} {point.status}: {point.reason}" if point.reason else point.status
    return ""


def _table(cell: CellHistory, widths: Sequence[int]) -> Table:
    table = open_table(header_style="dim")
    headings = ("commit", "measured", f"{cell.cell.unit}/s", "trials", "change", "verdict")
    for place, (heading, width) in enumerate(zip(headings, (*widths, 0), strict=True)):
        right = 2 <= place <= 4
        last = place == len(headings) - 1
        table.add_column(
            heading, justify="right" if right else "left", min_width=width, no_wrap=not last, overflow="fold"
        )
    for point in cell.points:
        words, style = _verdict(point)
        table.add_row(*map(Text, _figures(point)), Text(words, style=style))
    return table


def _widths(history: History) -> list[int]:
    """Columns that line up from table to table."""
    rows = [_figures(point) for cell in history.cells for point in cell.points]
    return [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else [0] * 5


def _figures(point: Point) -> tuple[str, ...]:
    trials = f"{point.trials_ok}" if point.trials_ok == point.trials else f"{point.trials_ok} of {point.trials}"
    if point.images_per_s is None:
        rated: str = point.status
    else:
        rated = rate(point.interval or point.images_per_s)
    ratio = point.change.ratio if point.change else None
    return point.revision.short, point.revision.date, rated, trials, changes(ratio) if ratio else ""


def _verdict(point: Point) -> tuple[str, str]:
    """Words and their style."""
    instead = reason(point)
    if point.change is None:
        return instead, "" if point.images_per_s is not None else "yellow"
    if instead and point.change.verdict in ("changed status", "not measured"):
        return instead, STYLES["bad" if point.regressed else "warn"]
    return signed(point.change), STYLES[tone(point.change)]


def _point(point: Point) -> dict[str, Any]:
    step = point.change
    return {
        "commit": point.revision.name,
        "began_at": point.revision.began_at,
        "status": point.status,
        "reason": point.reason,
        "trials": point.trials,
        "trials_ok": point.trials_ok,
        "images_per_s": point.images_per_s,
        "interval": point.interval,
        "since": point.since.name if point.since else None,
        "ratio": step.ratio if step else None,
        "verdict": step.verdict if step else None,
        "failing": point.regressed,
        "why": step.why if step else None,
        "more_trials": step.more_trials if step else None,
        "phase": step.culprit.name if step and step.culprit else None,
        "new_line": point.broken_by,
    }


def _revision(revision: Any) -> dict[str, Any]:
    code = revision.code
    return {
        "name": revision.name,
        "project_commit": code.project,
        "tcbench": code.tcbench,
        "run": code.run,
        "began_at": revision.began_at,
    }
