"""Timelines under each other on one time scale, as `tcbench timeline` draws them, and their phases as a table."""

from __future__ import annotations

from collections.abc import Sequence

from tcbench.analysis.bottleneck import Bottleneck, PhaseCost, summarise
from tcbench.analysis.summary import CellSummary
from tcbench.core.timeline import Timeline
from tcbench.present.format import milliseconds
from tcbench.present.page import drawings
from tcbench.present.page.page import Field, Section, Table
from tcbench.present.page.wording import columns, figure
from tcbench.present.session import apart
from tcbench.views.timeline.chart import timeline_chart


def section(timelines: Sequence[Timeline], summaries: Sequence[CellSummary] = ()) -> Section | None:
    """None without a timeline that has a step. Notes tell those that were taken in another session than the cells
    beside them."""
    shown = [timeline for timeline in timelines if timeline.steps]
    if not shown:
        return None
    bottlenecks = list(map(summarise, shown))
    table = Table(
        "Phases of the timelines",
        columns("timeline", "phase", "#host per step", "#GPU per step"),
        tuple(_fields(cell, phase) for cell in bottlenecks for phase in cell.phases),
    )
    notes: list[str] = []
    for timeline, bottleneck in zip(shown, bottlenecks, strict=True):
        runs = [
            run
            for run in summaries
            if (run.cell.label, run.cell.device) == (timeline.label, timeline.device)
            and timeline.device_name.startswith(run.environment.device_name if run.environment else "")
        ]
        notes += filter(None, [apart(timeline.taken_at, bottleneck.step_s, run) for run in runs])
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
