"""Throughput by batch size: the chart that `tcbench plot` draws of each setting, and the table behind it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, Key, base_config, best
from tcbench.present.format import factor, limits, milliseconds, size
from tcbench.present.page import drawings
from tcbench.present.page.drawings import Swatches
from tcbench.present.page.page import AnyBlock, Field, Heading, Section, Table
from tcbench.present.page.settings import Here, Settings
from tcbench.present.page.wording import STATUS_BADGES, badge, columns, figure, middle
from tcbench.views.throughput.chart import throughput_chart
from tcbench.views.throughput.table import footnotes

Speedups = Mapping[Key, Interval | None]
"""Each cell's images/s over the base's."""


def section(settings: Settings, over_base: Speedups, swatches: Swatches) -> Section:
    """Setting by setting."""
    blocks: list[AnyBlock] = []
    for here in settings.here:
        if here.name:
            blocks.append(Heading(here.name))
        blocks.append(_figure(here, over_base, swatches))
    return Section("throughput", "Throughput", tuple(blocks))


def _figure(here: Here, over_base: Speedups, swatches: Swatches) -> AnyBlock:
    title = f"{here.unit.capitalize()} per second" + (f", {here.name}" if here.name else "")
    notes = [*here.left_out, *footnotes(here.summaries)]
    if any(len(cells) > 1 and best(cells) for cells in here.by_batch_size.values()):
        base = base_config(here.summaries)
        notes.append(
            f"Bold in the table: the fastest at its batch size. Factors are over {base} at the same batch size."
        )
    table = _table(title, here, over_base, swatches)
    chart = functools.partial(throughput_chart, here.drawn, title=f"{here.unit.capitalize()} per second")
    return drawings.of_setting(here, chart, title, "throughput", table, notes)


def _table(title: str, here: Here, over_base: Speedups, swatches: Swatches) -> Table:
    names = (
        "#batch",
        "config",
        "status",
        f"#{here.unit}/s",
        "95% interval",
        f"#vs {base_config(here.summaries)}",
        "#step",
        "#peak memory",
        "#trials",
    )
    return Table(
        caption=title,
        columns=columns(*names),
        rows=tuple(
            _fields(summary, over_base[summary.key], swatches, summary is fastest and len(cells) > 1)
            for cells in here.by_batch_size.values()
            for fastest in [best(cells)]
            for summary in cells
        ),
    )


def _fields(summary: CellSummary, speedup: Interval | None, swatches: Swatches, is_fastest: bool) -> tuple[Field, ...]:
    rate, step, memory = summary.images_per_s, summary.step_time_s, summary.peak_memory_bytes
    return (
        figure(summary.cell.batch_size, str(summary.cell.batch_size)),
        Field(summary.cell.config, swatch=swatches.paint(summary.cell.config), strong=is_fastest),
        badge(STATUS_BADGES[summary.status]),
        middle(rate),
        Field(limits(rate) if rate else ""),
        middle(speedup, factor),
        middle(step, milliseconds),
        figure(memory, "" if memory is None else size(memory)),
        figure(summary.trials_ok, f"{summary.trials_ok} of {summary.trials}"),
    )
