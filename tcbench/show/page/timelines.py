"""Timelines under each other on one time scale, as `tcbench timeline` draws them, and their phases as a table."""

from __future__ import annotations

from collections.abc import Sequence

from tcbench.analysis.bottleneck import Bottleneck, PhaseCost, summarise
from tcbench.core.timeline import Timeline
from tcbench.show.charts import MAX_PANELS
from tcbench.show.charts.timeline import timeline_chart
from tcbench.show.format import counted, milliseconds
from tcbench.show.page import drawings
from tcbench.show.page.page import Field, Section, Table
from tcbench.show.page.wording import columns, figure


def section(timelines: Sequence[Timeline]) -> Section | None:
    """The first MAX_PANELS timelines; None without one that has a step."""
    shown = [timeline for timeline in timelines if timeline.steps][:MAX_PANELS]
    if not shown:
        return None
    table = Table(
        "Phases of the timelines",
        columns("timeline", "phase", "#host per step", "#GPU per step"),
        tuple(_fields(cell, phase) for cell in map(summarise, shown) for phase in cell.phases),
    )
    left_out = len(timelines) - MAX_PANELS
    notes = [f"Not shown: {counted(left_out, 'more timeline')}; name those to show."] if left_out > 0 else []
    block = drawings.figure(lambda: timeline_chart(shown), "Timelines", "timelines", table, notes)
    return Section("timelines", "Timelines", (block,))


def _fields(cell: Bottleneck, phase: PhaseCost) -> tuple[Field, ...]:
    device = figure(phase.device_s, None if phase.device_s is None else milliseconds(phase.device_s))
    return (
        Field(cell.label),
        Field(phase.name),
        figure(phase.host_s, milliseconds(phase.host_s)),
        device,
    )
