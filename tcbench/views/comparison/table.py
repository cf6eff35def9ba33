"""The comparison on a terminal: a table for each metric, and what the verdicts rest on; and all of it as JSON."""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tcbench.analysis.compare import CellComparison, Comparison, Metric, Side
from tcbench.present import sides
from tcbench.present.app import PLAIN_WIDTH
from tcbench.present.document import document, fields
from tcbench.present.format import change, counted, ratio
from tcbench.present.notes import Caution
from tcbench.present.sides import UNNAMED, Labels
from tcbench.present.tables import NUMBER, Column, ConfigTable, Field, Screen
from tcbench.present.verdicts import STYLES, tone
from tcbench.views.comparison import wording


def table(comparison: Comparison, labels: Labels = UNNAMED) -> str:
    """Everything that `show` prints, without colours."""
    console = Screen(details=True, file=io.StringIO(), width=PLAIN_WIDTH, color_system=None, force_terminal=False)
    show(comparison, console, labels)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def show(comparison: Comparison, console: Screen, labels: Labels = UNNAMED) -> None:
    """Print the tables of all metrics, then reasons, means, doubts, the count of verdicts and what to do next."""
    lines = console.say
    lines(f"base {labels.base}, current {labels.current}")
    for metric, cells in wording.by_metric(comparison).items():
        console.print()
        lines(wording.heading(metric, [cell.cell for cell in cells]), style="bold")
        console.print(_table(metric, cells, narrow=console.width < 100))
        # Those that the table does not show already.
        told = [
            (cell, name)
            for cell, name in zip(cells, wording.names(cells), strict=True)
            if cell.verdict != "improved"
            and (cell.held_back or cell.slower_at_median or cell.slower_phases or not _more(cell))
        ]
        if reasons := wording.reasons([cell for cell, _ in told], [name for _, name in told]):
            console.print()
            lines(*reasons)
    console.print()
    lines(*(wording.mean(one) for one in comparison.means), *filter(None, [wording.power(comparison)]))
    console.notes(_remarks(comparison))
    worst = "bold red" if comparison.failing else "yellow" if comparison.inconclusive else "bold"
    lines(wording.headline(comparison), style=worst)
    console.offer(wording.next_steps(comparison, labels))


def _more(cell: CellComparison) -> str:
    """The number of trials that an inconclusive cell lacks, in short."""
    if cell.verdict != "inconclusive" or cell.ratio is None or cell.more_trials is None:
        return ""
    return f", +{counted(cell.more_trials, 'trial')}"


def _remarks(comparison: Comparison) -> list[str]:
    remarks = []
    if any(cell.ratio for cell in comparison.cells):
        remarks.append("ratio: current over base with its 95% interval over trials, each a process of its own.")
    remarks += map(Caution, filter(None, [wording.one_sided(comparison)]))
    remarks += filter(None, [wording.drift(comparison)])
    if any(map(wording.median_step, comparison.cells)):
        remarks.append(
            "median step: the ratio at the median step, where slow steps (spikes: over 2 x the median) tell it apart."
        )
    remarks += map(Caution, comparison.notes)
    remarks += [Caution(f"allowed to differ: {line}") for line in sides.allowed(comparison.differences)]
    doubts = wording.doubts(comparison)
    if len(doubts) > 2:  # lines that are shown; more are counted
        doubts = [f"{line} (--format json names them)" for line in wording.doubts_in_short(comparison)]
    return [*remarks, *map(Caution, doubts)]


Row = tuple[CellComparison, str]
"""A cell, and what tells it from others of its config, batch size and ranks; mostly nothing."""


def rows(cells: Sequence[CellComparison]) -> list[Row]:
    """The cells as rows; models have a column of their own."""
    return [
        (cell, ", ".join(fact for fact in where.split(", ") if fact != f"model {cell.cell.model}"))
        for cell, where in zip(cells, wording.wheres(cells), strict=True)
    ]


def figures(unit: str = "") -> tuple[Column[Row], ...]:
    """What every renderer says of a cell: both sides' figures, and their ratio."""

    def figure(cell: CellComparison, side: Side | None) -> Field:
        return Field(wording.figure(cell.metric, side), side.figure if side else None)

    return (
        Column(f"base{unit}", lambda row: figure(row[0], row[0].base), NUMBER),
        Column(f"current{unit}", lambda row: figure(row[0], row[0].current), NUMBER),
        Column(
            "ratio (95% interval)",
            lambda row: Field(ratio(row[0].ratio), row[0].ratio.value if row[0].ratio else None),
            NUMBER,
        ),
        Column("change", lambda row: row[0].ratio and change(row[0].ratio.value), NUMBER),
    )


def _table(metric: Metric, cells: Sequence[CellComparison], *, narrow: bool) -> ConfigTable[Row]:
    """`narrow`, where there is no room for all of it: headings of two lines, no change, which the ratio says too."""
    named = rows(cells)
    of = "" if metric.unit == "bytes" else wording.unit(metric, [cell.cell for cell in cells])
    columns = [*figures(("\n" if narrow else " ") + of if of else "")[: -1 if narrow else None]]
    more = "\n+" if narrow else " +"
    verdict = Column[Row]("verdict", lambda row: row[0].verdict + _more(row[0]).replace(" +", more), wraps=False)
    columns.append(replace(verdict, style=lambda row: STYLES[tone(row[0])]))
    if any(where for _, where in named):
        columns.insert(0, Column("where", lambda row: row[1], width=8))
    if not narrow and any(map(wording.median_step, cells)):
        columns.insert(-1, Column("median step", lambda row: wording.median_step(row[0])))
    return ConfigTable(columns, named, cell=lambda row: row[0].cell, min_width=16, gap=1 if narrow else 2)


def to_json(comparison: Comparison, labels: Labels = UNNAMED) -> str:
    """One JSON object, with a line's end. A limit that is not finite is null. In form 1 `figure`, `figures` and `ratio`
    of throughput were at the median step, which `median_step_images_per_s` is."""
    called = wording.names(comparison.cells)
    text = document(
        "tcbench-comparison",
        2,
        **fields(labels, "base current"),
        **fields(comparison, "threshold=rule.threshold level=rule.level failing inconclusive unsettled"),
        power=fields(comparison, "slowdown=rule.slowdown seen=power seen_in_a_phase=phase_power"),
        paired_cells=comparison.paired,
        verdicts=dict(comparison.verdicts),
        geometric_means=[fields(mean, "metric=metric.name cells ratio") for mean in comparison.means],
        **fields(comparison, "differences notes"),
        cells=[_cell_json(cell, name) for cell, name in zip(comparison.cells, called, strict=True)],
    )
    return text + "\n"


def _cell_json(cell: CellComparison, name: str) -> dict[str, Any]:
    of, metric = cell.cell, cell.metric
    return {
        "name": name,
        **fields(of, "config backend scenario batch_size ranks"),
        "image_size": None if of.is_own else of.image_size,
        "device": of.device,
        "input": fields(of.input, "kind path"),
        "metric": {"name": metric.name, "unit": wording.unit(metric, [of]), "more_is_better": metric.more_is_better},
        **fields(cell, "verdict failing why"),
        "says": wording.sentence(cell),
        **fields(cell, "ratio ratio_by_round=by_round held_back more_trials_a_side=more_trials phases_clock=clock"),
        **fields(cell, "phases culprit=culprit.name moved differences"),
        "base": _side_json(cell.base),
        "current": _side_json(cell.current),
    }


def _side_json(side: Side | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        **fields(side, "machine cell_key=cell.key status reason trials trials_ok figure figures"),
        **fields(side, "total_time_images_per_s=images_per_s median_step_images_per_s=median_images_per_s"),
        **fields(side, "spike_share=spikes notes"),
    }
