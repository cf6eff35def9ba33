"""A comparison on a terminal, a table per metric with the evidence for the verdicts; and as JSON."""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tcbench.commands.compare.cell_report import CellReport, ComparisonReport, figure_unit, metric_heading, reason_lines
from tcbench.show.console import PLAIN_WIDTH
from tcbench.show.document import document, fields
from tcbench.show.format import change, ratio
from tcbench.show.notes import Caution
from tcbench.show.tables import NUMBER, Column, ConfigTable, Field, Screen
from tcbench.show.verdicts import STYLES, tone


def as_text(report: ComparisonReport) -> str:
    """Return everything that `show` prints, without colours."""
    console = Screen(details=True, file=io.StringIO(), width=PLAIN_WIDTH, color_system=None, force_terminal=False)
    show(report, console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def show(report: ComparisonReport, console: Screen) -> None:
    """Print the tables of all metrics, then reasons, means, remarks, the count of verdicts, and next steps."""
    console.say(f"base {report.labels.base}, current {report.labels.current}")
    for cells in report.by_metric.values():
        console.print()
        console.say(metric_heading(cells), style="bold")
        console.print(_table(cells, narrow=console.width < 100))
        if unexplained := reason_lines(cell for cell in cells if not cell.needs_no_sentence):
            console.print()
            console.say(*unexplained)
    console.print()
    console.say(*report.mean_lines, *report.power_lines, *report.machine_lines)
    console.notes(_remarks(report))
    worst = "bold red" if report.failing else "yellow" if report.inconclusive else "bold"
    console.say(report.headline, style=worst)
    console.offer(report.next_steps)


def _remarks(report: ComparisonReport) -> list[str]:
    """Return the remarks below the tables, only those that apply, such as what a ratio is and what is doubtful."""
    remarks = []
    if any(cell.ratio for cell in report.cells):
        remarks.append("ratio: current over base with its 95% interval over trials; each trial is a separate process.")
    remarks += map(Caution, report.one_sided_lines)
    remarks += report.drift_lines
    if any(cell.median_step for cell in report.cells):
        remarks.append(
            "median step: the ratio at the median step, shown if slow steps (spikes: over 2 x the median) change it."
        )
    remarks += map(Caution, report.notes)
    remarks += [Caution(f"allowed to differ: {line}") for line in report.allowed()]
    return [*remarks, *map(Caution, report.doubts(2, " (--format json lists them)"))]


def figure_columns(unit: str = "") -> tuple[Column[CellReport], ...]:
    """Return the columns for both sides' figures, their ratio and the change, as in every format. `unit` is appended to
    the headings of the figures."""

    def side(name: str) -> Column[CellReport]:
        return Column(f"{name}{unit}", lambda cell: Field(*cell.side_figure(name)), NUMBER)

    def ratios(cell: CellReport) -> Field:
        return Field(ratio(cell.ratio), cell.ratio.value if cell.ratio else None)

    changes = Column[CellReport]("change", lambda cell: cell.ratio and change(cell.ratio.value), NUMBER)
    return side("base"), side("current"), Column("ratio (95% interval)", ratios, NUMBER), changes


def _table(cells: Sequence[CellReport], *, narrow: bool) -> ConfigTable[CellReport]:
    """Return the table of one metric.

    `narrow` is for terminals with little room: headings take two lines, and the change is left out, because the ratio
    says the same."""
    gap = "\n" if narrow else " "
    unit = "" if cells[0].metric.unit == "bytes" else gap + figure_unit(cells)
    columns = [*figure_columns(unit)[: -1 if narrow else None]]
    verdict = Column[CellReport](
        "verdict", lambda cell: f",{gap}".join(filter(None, [cell.verdict, cell.missing_trials])), wraps=False
    )
    columns.append(replace(verdict, style=lambda cell: STYLES[tone(cell)]))
    if any(cell.where_in_table for cell in cells):
        columns.insert(0, Column("where", lambda cell: cell.where_in_table, width=8))
    if not narrow and any(cell.median_step for cell in cells):
        columns.insert(-1, Column("median step", lambda cell: cell.median_step))
    return ConfigTable(columns, cells, cell=lambda cell: cell.cell, min_width=16, gap=1 if narrow else 2)


def to_json(report: ComparisonReport) -> str:
    """Return the comparison as a line of JSON. A limit that is not finite is null.

    In version 1, `figure`, `figures` and `ratio` of throughput were at the median step, which is
    `median_step_images_per_s` now."""
    text = document(
        "tcbench-comparison",
        2,
        **fields(report.labels, "base current"),
        **fields(report, "threshold=rule.threshold level=rule.level failing inconclusive unsettled unstable"),
        power=fields(report, "slowdown=rule.slowdown seen=power seen_in_a_phase=phase_power"),
        paired_cells=report.paired,
        verdicts=report.verdicts,
        geometric_means=[fields(mean, "metric=metric.name cells ratio") for mean in report.means],
        **fields(report, "machine_check differences notes"),
        cells=[_cell_json(cell) for cell in report.cells],
    )
    return text + "\n"


def _cell_json(cell: CellReport) -> dict[str, Any]:
    """Return a cell's comparison as JSON."""
    metric = cell.metric
    return {
        "name": cell.name,
        **fields(cell.cell, "config backend scenario batch_size ranks"),
        "image_size": None if cell.cell.is_own else cell.cell.image_size,
        "device": cell.cell.device,
        "input": fields(cell.cell.input, "kind path"),
        "metric": {"name": metric.name, "unit": figure_unit([cell]), "more_is_better": metric.more_is_better},
        **fields(cell, "verdict by_figures failing why"),
        "says": cell.sentence,
        **fields(cell, "ratio ratio_by_round=by_round held_back more_trials_a_side=more_trials phases_clock=clock"),
        **fields(cell, "phases culprit=culprit.name moved differences"),
        "base": cell.base and fields(cell.base, _SIDE_FIELDS),
        "current": cell.current and fields(cell.current, _SIDE_FIELDS),
    }


_SIDE_FIELDS = (
    "machine cell_key=cell.key status reason trials trials_ok figure figures total_time_images_per_s=images_per_s "
    "median_step_images_per_s=median_images_per_s spike_share=spikes notes"
)
