"""The comparison on a terminal: a table for each metric, and what the verdicts rest on."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tcbench.analysis.compare import CellComparison, Comparison, Metric
from tcbench.present import sides
from tcbench.present.format import change, counted, ratio
from tcbench.present.sides import UNNAMED, Labels
from tcbench.present.tables import add_by_batch, ladder_table
from tcbench.present.verdicts import STYLES, tone
from tcbench.views.comparison import wording

_WIDTH = 132
"""Columns in a file."""

_MOST_DOUBTS = 8
"""So many lines on doubtful trials are read; more are counted."""


def table(comparison: Comparison, labels: Labels = UNNAMED) -> str:
    """Everything that `show` prints, without colours."""
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_terminal=False, markup=False)
    show(comparison, console, labels)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def show(comparison: Comparison, console: Console, labels: Labels = UNNAMED) -> None:
    """Print the tables of all metrics, then reasons, means, doubts and the count of verdicts."""

    def lines(*texts: str, style: str = "") -> None:
        for text in texts:
            console.print(text, style=style, soft_wrap=True)

    lines(f"base {labels.base}, current {labels.current}")
    for metric, cells in wording.by_metric(comparison).items():
        console.print()
        lines(wording.heading(metric, [cell.cell for cell in cells]), style="bold")
        console.print(_table(metric, cells))
        reasons = _reasons(cells)
        if reasons:
            console.print()
            lines(*reasons)
    go_on = wording.go_on(comparison, labels)
    if go_on:
        lines(f"why: {go_on}")
    console.print()
    lines(*(wording.mean(one) for one in comparison.means), *filter(None, [wording.power(comparison)]))
    lines(*_remarks(comparison), style="dim")
    worst = "bold red" if comparison.failing else "yellow" if comparison.inconclusive else "bold"
    lines(wording.headline(comparison), style=worst)


def _reasons(cells: Sequence[CellComparison]) -> list[str]:
    """The reasons that the table does not show already."""
    pairs = [
        (cell, name)
        for cell, name in zip(cells, wording.names(cells), strict=True)
        if cell.verdict != "improved" and (cell.held_back or not _more(cell))
    ]
    return wording.reasons([cell for cell, _ in pairs], [name for _, name in pairs])


def _more(cell: CellComparison) -> str:
    """The number of trials that an inconclusive cell lacks, in short."""
    if cell.verdict != "inconclusive" or cell.ratio is None or cell.more_trials is None:
        return ""
    return f", +{counted(cell.more_trials, 'trial')}"


def _remarks(comparison: Comparison) -> list[str]:
    remarks = []
    if any(cell.ratio for cell in comparison.cells):
        remarks.append("ratio: current over base with its 95% interval over trials, each a process of its own.")
    remarks += filter(None, [wording.drift(comparison)])
    if any(map(wording.median_step, comparison.cells)):
        remarks.append(
            "median step: the ratio at the median step, where slow steps (spikes: over 2 x the median) tell it apart."
        )
    remarks += [f"allowed to differ: {line}" for line in sides.allowed(comparison.differences)]
    remarks += comparison.notes
    doubts = wording.doubts(comparison)
    if len(doubts) > _MOST_DOUBTS:
        doubts = [f"{line} (--format json names them)" for line in wording.doubts_in_short(comparison)]
    return remarks + doubts


def _table(metric: Metric, cells: Sequence[CellComparison]) -> Table:
    # Models have a column of their own.
    wheres = [
        ", ".join(fact for fact in where.split(", ") if fact != f"model {cell.cell.model}")
        for cell, where in zip(cells, wording.wheres(cells), strict=True)
    ]
    medians = [wording.median_step(cell) for cell in cells]
    grid = ladder_table([cell.cell for cell in cells], min_width=16)
    if any(wheres):
        grid.add_column("where", overflow="fold", min_width=8)
    unit = "" if metric.unit == "bytes" else f" {wording.unit(metric, [cell.cell for cell in cells])}"
    for title in (f"base{unit}", f"current{unit}", "ratio (95% interval)", "change"):
        grid.add_column(title, justify="right", no_wrap=True)
    if any(medians):
        grid.add_column("median step", overflow="fold")
    grid.add_column("verdict", no_wrap=True)

    def figures(cell: CellComparison, where: str, median: str) -> tuple[Text, ...]:
        return (
            *([Text(where)] if any(wheres) else []),
            *(Text(wording.figure(metric, side)) for side in (cell.base, cell.current)),
            Text(ratio(cell.ratio)),
            Text("" if cell.ratio is None else change(cell.ratio.value)),
            *([Text(median)] if any(medians) else []),
            Text(cell.verdict + _more(cell), style=STYLES[tone(cell)]),
        )

    rows = zip(cells, wheres, medians, strict=True)
    add_by_batch(grid, ((cell.cell, figures(cell, where, median)) for cell, where, median in rows))
    return grid
