"""Throughput by batch size: the chart that `tcbench plot` draws of each setting, and the table behind it."""

import functools
from collections.abc import Mapping

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellKey, base_config, best
from tcbench.present import cells
from tcbench.present.cells import Row
from tcbench.present.page import drawings
from tcbench.present.page.drawings import Swatches
from tcbench.present.page.page import AnyBlock, Section
from tcbench.present.page.settings import SettingCells, Settings
from tcbench.present.tables import COUNT, Column, Table
from tcbench.present.verdicts import STATUS_BADGES
from tcbench.views.throughput.chart import throughput_chart
from tcbench.views.throughput.table import footnotes

Speedups = Mapping[CellKey, Interval | None]
"""Each cell's images/s over the base's."""


def section(settings: Settings, over_base: Speedups, swatches: Swatches) -> Section:
    """Setting by setting."""
    return Section("throughput", "Throughput", settings.blocks(lambda part: _figure(part, over_base, swatches)))


def _figure(part: SettingCells, over_base: Speedups, swatches: Swatches) -> AnyBlock:
    title = part.titled(f"{part.unit.capitalize()} per second")
    notes = [*part.left_out, *footnotes(part.summaries)]
    if any(len(group) > 1 and best(group) for group in part.by_batch_size.values()):
        base = base_config(part.summaries)
        notes.append(
            f"Bold in the table: the fastest at its batch size. Factors are over {base} at the same batch size."
        )
    chart = functools.partial(throughput_chart, part.drawn, title=f"{part.unit.capitalize()} per second")
    return drawings.of_setting(part, chart, title, "throughput", _table(title, part, over_base, swatches), notes)


def _table(title: str, part: SettingCells, over_base: Speedups, swatches: Swatches) -> Table[Row]:
    best_of = {id(best(group)) for group in part.by_batch_size.values() if len(group) > 1}
    heads = (
        Column[Row]("batch", lambda row: row.summary.cell.batch_size, COUNT),
        Column[Row]("config", lambda row: swatches.config(row.summary.cell.config, strong=id(row.summary) in best_of)),
        Column[Row]("status", lambda row: STATUS_BADGES[row.summary.status]),
    )
    rows = [Row(summary, over_base[summary.key]) for group in part.by_batch_size.values() for summary in group]
    return Table((*heads, *cells.columns(part.summaries)), rows, title)
