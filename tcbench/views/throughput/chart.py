"""The talk's chart of all cells, by batch size."""

from collections.abc import Iterable, Sequence

from matplotlib.figure import Figure

from tcbench.analysis.summary import CellSummary
from tcbench.present.charts.bars import Bar, Group, bar_chart, batch_sizes_of, cell_at
from tcbench.present.charts.legend import legend_rows
from tcbench.present.charts.provenance import by_setting


def throughput_chart(summaries: Sequence[CellSummary], *, title: str | None = None, subtitle: str = "") -> Figure:
    """The talk's chart: images/s in bars grouped by batch size, a colour per config, one panel per setting.

    A cell that gave no number says why in its place. Without a title, the scenario's name. Raises SelectionError when
    there is nothing to draw.
    """
    configs = list(dict.fromkeys(summary.cell.config for summary in summaries))
    settings = by_setting(summaries)

    def groups(here: Sequence[CellSummary]) -> Iterable[Group]:
        for batch_size in batch_sizes_of(here):
            yield Group(str(batch_size), tuple(Bar(c, cell_at(here, c, batch_size)) for c in configs))

    return bar_chart(settings, groups, legend_rows(configs), title or summaries[0].cell.scenario, subtitle)


def results_chart(summaries: Sequence[CellSummary]) -> Figure:
    """The chart of a run's or several runs' cells, with a title of its own."""
    scenarios = ", ".join(dict.fromkeys(summary.cell.scenario for summary in summaries))
    return throughput_chart(summaries, title="Training throughput", subtitle=f"Scenario {scenarios}")
