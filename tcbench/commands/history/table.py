"""The text output of `tcbench history`: a table per cell, notes, and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.text import Text

from tcbench.commands.history.history import History, HistoryPoint
from tcbench.core.record import TAKE_ENOUGH
from tcbench.show.document import document, fields
from tcbench.show.format import changes, counted, plural, threshold
from tcbench.show.naming import distinguishing_settings, is_simulated, rate_unit
from tcbench.show.notes import Caution
from tcbench.show.tables import COUNT, RATE, Column, Table
from tcbench.show.verdicts import FORMS, STYLES, signed, tone

_BLOCKS = "▁▂▃▄▅▆▇█"


def blocks(history: History) -> Iterable[tuple[str, Table[HistoryPoint]] | tuple[str, Table[_NamedPoint]]]:
    """Yield a heading and a table per cell.

    Cells are ordered by machine, scenario and network, batch size, ranks and config, as first seen. If every cell has
    one point, all of them share one table."""
    # Columns have the same width in every table, and are left out of all tables or of none.
    cells = history.cells
    points = [point for cell in cells for point in cell.points]
    *first, last = _columns("")
    widths = [max((len(column.text(point)) for point in points), default=0) for column in first]
    widths.append(last.least_width(points))
    wheres = distinguishing_settings([(cell.machine, cell.cell) for cell in cells], [cell.beneath for cell in cells])
    settings = [(cell.machine, cell.cell.scenario, cell.cell.model) for cell in cells]
    configs = [cell.cell.config for cell in cells]
    rows = [
        ((settings.index(setting), cell.cell.batch_size, cell.cell.ranks, configs.index(config)), cell, where)
        for setting, cell, config, where in zip(settings, cells, configs, wheres, strict=True)
    ]
    ordered = sorted(rows, key=lambda row: row[0])
    labelled = [(cell.cell.label + (f" ({where})" if where else ""), cell) for _, cell, where in ordered]
    if len(points) == len(labelled):
        unit = rate_unit(cell.cell for _, cell in labelled).removesuffix("/s")
        columns = [Column[_NamedPoint]("cell", lambda row: row[0])]
        columns += [_for_named_point(column) for column in _columns(unit) if column.heading != "change"]
        yield "", Table(columns, [(name, cell.points[0]) for name, cell in labelled])
        return
    for name, cell in labelled:
        line = sparkline(cell.points) if len(cell.points) > 1 else ""
        yield f"{name}  {line}".rstrip(), Table(_columns(cell.cell.unit, widths), cell.points, header="dim")


_NamedPoint = tuple[str, HistoryPoint]
"""The name of a cell, and a point of it."""


def _for_named_point(column: Column[HistoryPoint]) -> Column[_NamedPoint]:
    """Return a column of points as a column of named points."""
    return Column(column.heading, lambda row: column.value(row[1]), column.kind, wraps=column.wraps, spare=column.spare)


def sparkline(points: Sequence[HistoryPoint]) -> str:
    """Return the throughput of a cell as block characters, one per point.

    A cross stands for a point without throughput, and a bar marks the start of a new curve. The range is at least 10%,
    so that noise looks like noise."""
    rates = [point.images_per_s for point in points if point.images_per_s is not None]
    low = min(rates, default=1.0)
    span = math.log(max(max(rates, default=1.0) / low, 1.1))
    words = ""
    for point in points:
        words += "|" if point.broken_by else ""
        if point.images_per_s is None:
            words += "✗"
        else:
            words += _BLOCKS[min(int(math.log(point.images_per_s / low) / span * len(_BLOCKS)), len(_BLOCKS) - 1)]
    return words


def notes(history: History) -> list[str]:
    """Return notes on how to read the tables."""
    lines = [
        f"{rate_unit(cell.cell for cell in history.cells)}: geometric mean over trials; ±: 95% interval of the cell "
        "alone (`run`: of all); one trial has none.",
        "change: from the previous commit that ran, with its 95% interval; a regression is a confirmed loss of more "
        f"than {threshold(history.rule.threshold)}.",
    ]
    points = [point for cell in history.cells for point in cell.points]
    if any(point.change and point.change.verdict == "inconclusive" for point in points):
        lines.append(Caution(f"inconclusive: such a loss is neither confirmed nor ruled out; {TAKE_ENOUGH}."))
    if any(point.broken_by for point in points):
        lines.append(
            "new line: machine, libraries or settings differ from the previous commit; --allow compares them anyway."
        )
    if any(point.revision.name.endswith("+") for point in points):
        lines.append("+: tracked files differed from the commit; each such run has its own row.")
    return lines


def verdict(history: History) -> str:
    """Return a line with the numbers of cells, commits, regressions and comparisons."""
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
    """Return the whole history as JSON. An open end of an interval is null. In version 1, images/s were at the
    median step."""
    facts = "name project_commit=code.project tcbench=code.tcbench run=code.run began_at"
    cells = [
        {
            **fields(cell.cell, "config batch_size ranks scenario"),
            "machine": cell.machine,
            "stack": ", ".join(cell.beneath) or None,
            "simulated": is_simulated(cell.environment),
            "key": cell.cell.key,
            "points": list(map(_point, cell.points)),
        }
        for cell in history.cells
    ]
    commits = [fields(revision, facts) for revision in history.revisions]
    return document("tcbench-history", 2, threshold=history.rule.threshold, commits=commits, cells=cells)


def reason(point: HistoryPoint) -> str:
    """Return why a point has no change to show: its environment differs from the previous one's, or it has no figure.
    Empty for a point with a change."""
    if point.broken_by:
        return "new line: " + "; ".join(difference.says for difference in point.broken_by)
    if point.images_per_s is None:
        status, why = point.side.status, point.side.reason
        return f"{FORMS['changed status'].sign} {status}: {why}" if why else status
    return ""


def _columns(unit: str, widths: Sequence[int] = (0,) * 6) -> tuple[Column[HistoryPoint], ...]:
    """Return the columns of a cell's table. `widths` are their minimum widths."""

    def trials(point: HistoryPoint) -> str:
        ok, trials = point.side.trials_ok, point.side.trials
        return f"{ok}" if ok == trials else f"{ok} of {trials}"

    return (
        Column("commit", lambda point: point.revision.short, wraps=False, width=widths[0]),
        Column("measured", lambda point: point.revision.date, wraps=False, width=widths[1], spare=True),
        Column(
            f"{unit}/s", lambda point: point.interval or point.images_per_s or point.side.status, RATE, width=widths[2]
        ),
        Column("trials", trials, COUNT, width=widths[3], spare=True),
        Column("change", _change, COUNT, width=widths[4]),
        Column("verdict", _verdict, width=widths[5]),
    )


def _change(point: HistoryPoint) -> str | None:
    """Return the change since the point before, with its interval."""
    return changes(point.change.ratio) if point.change and point.change.ratio else None


def _verdict(point: HistoryPoint) -> Text:
    """Return the verdict on a point, or the reason why there is none."""
    instead = reason(point)
    if point.change is None:
        return Text(instead, "" if point.images_per_s is not None else "yellow")
    if instead and point.change.verdict in ("changed status", "not measured"):
        return Text(instead, STYLES["bad" if point.regressed else "warn"])
    return Text(signed(point.change), STYLES[tone(point.change)])


def _point(point: HistoryPoint) -> dict[str, Any]:
    """Return a point as JSON."""
    return {
        **fields(point, "commit=revision.name began_at=revision.began_at"),
        **fields(point.side, "status reason trials trials_ok"),
        **fields(point, "images_per_s interval since=since.name"),
        **fields(point, "ratio=change.ratio verdict=change.verdict failing=regressed"),
        **fields(point, "why=change.why more_trials=change.more_trials phase=change.culprit.name new_line=broken_by"),
    }
