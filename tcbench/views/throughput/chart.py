"""The talk's chart of all cells, by batch size, and the section of the page with the table behind it."""

import functools
from collections.abc import Iterator, Mapping, Sequence

from matplotlib.figure import Figure

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellKey, CellSummary, base_config, best
from tcbench.present import cells
from tcbench.present.cells import Row
from tcbench.present.charts.bars import Bar, BarGroup, Panel, batch_sizes_of, cell_at, panel_chart
from tcbench.present.charts.palette import legend_rows
from tcbench.present.charts.provenance import by_setting, provenance_of
from tcbench.present.page import drawings
from tcbench.present.page.drawings import Swatches
from tcbench.present.page.page import AnyBlock, Section
from tcbench.present.page.settings import SettingCells, Settings, left_out
from tcbench.present.tables import COUNT, Column, Table
from tcbench.present.verdicts import STATUS_BADGES
from tcbench.views.throughput.table import footnotes


def throughput_chart(summaries: Sequence[CellSummary], *, title: str = "", subtitle: str = "") -> Figure:
    """A panel per setting: images/s by batch size, a colour per config. Without a title it has that of whole runs.
    Raises SelectionError for nothing to draw."""
    configs = list(dict.fromkeys(summary.cell.config for summary in summaries))
    settings = by_setting(summaries)
    provenance = provenance_of(settings)

    def groups(here: Sequence[CellSummary]) -> Iterator[BarGroup]:
        for n in batch_sizes_of(here):
            yield BarGroup(str(n), tuple(Bar(config, cell_at(here, config, n)) for config in configs))

    panels = [Panel(provenance.names[setting], tuple(groups(here))) for setting, here in settings.items()]
    if not title:
        scenarios = dict.fromkeys(summary.cell.scenario for summary in summaries)
        title, subtitle = "Training throughput", f"Scenario {', '.join(scenarios)}"
    return panel_chart(panels, legend_rows(configs), provenance.common, title, subtitle)


Speedups = Mapping[CellKey, Interval | None]
"""Each cell's images/s over the base's."""


def section(settings: Settings, over_base: Speedups, swatches: Swatches) -> Section:
    """Setting by setting."""

    def figure(part: SettingCells) -> AnyBlock:
        per_second = f"{part.unit.capitalize()} per second"
        title, groups = part.titled(per_second), [*part.by_batch_size.values()]
        notes = [*left_out({"configs": len(part.configs), "batch sizes": len(groups)}), *footnotes(part.summaries)]
        if any(len(group) > 1 and best(group) for group in groups):
            base = base_config(part.summaries)
            notes.append(
                f"Bold in the table: the fastest at its batch size. Factors are over {base} at the same batch size."
            )
        best_of = {id(best(group)) for group in groups if len(group) > 1}
        heads = (
            Column[Row]("batch", lambda row: row.summary.cell.batch_size, COUNT),
            Column[Row](
                "config", lambda row: swatches.config(row.summary.cell.config, strong=id(row.summary) in best_of)
            ),
            Column[Row]("status", lambda row: STATUS_BADGES[row.summary.status]),
        )
        rows = [Row(summary, over_base[summary.key]) for group in groups for summary in group]
        table = Table((*heads, *cells.columns(part.summaries)), rows, title)
        chart = functools.partial(throughput_chart, part.drawn, title=per_second)
        return drawings.of_setting(part, chart, title, "throughput", table, notes)

    return Section("throughput", "Throughput", settings.blocks(figure))
