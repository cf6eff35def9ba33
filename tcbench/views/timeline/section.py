"""Timelines under each other on one time scale, as `tcbench timeline` draws them, and their phases as a table."""

from collections.abc import Sequence

from tcbench.analysis.bottleneck import Bottleneck, PhaseCost, summarise
from tcbench.analysis.summary import CellSummary
from tcbench.core.timeline import Timeline
from tcbench.present.page import drawings
from tcbench.present.page.page import Section
from tcbench.present.session import apart
from tcbench.present.tables import SECONDS, Column, Table
from tcbench.views.timeline.chart import timeline_chart


def section(timelines: Sequence[Timeline], summaries: Sequence[CellSummary] = ()) -> Section | None:
    """None without a timeline that has a step. Notes tell those that were taken in another session than the cells
    beside them."""
    shown = [timeline for timeline in timelines if timeline.steps]
    if not shown:
        return None
    bottlenecks = list(map(summarise, shown))
    rows = [(cell, phase) for cell in bottlenecks for phase in cell.phases]
    notes: list[str] = []
    for timeline, bottleneck in zip(shown, bottlenecks, strict=True):
        runs = [
            run
            for run in summaries
            if (run.cell.label, run.cell.device) == (timeline.label, timeline.device)
            and timeline.device_name.startswith(run.environment.device_name if run.environment else "")
        ]
        taken_at = timeline.record.started_at if timeline.record else None
        notes += filter(None, [apart(taken_at, bottleneck.step_s, run) for run in runs])
    block = drawings.figure(
        lambda: timeline_chart(shown), "Timelines", "timelines", Table(_COLUMNS, rows, "Phases of the timelines"), notes
    )
    return Section("timelines", "Timelines", (block,))


_COLUMNS: tuple[Column[tuple[Bottleneck, PhaseCost]], ...] = (
    Column("timeline", lambda row: row[0].label),
    Column("phase", lambda row: row[1].name),
    Column("host per step", lambda row: row[1].host_s, SECONDS),
    Column("GPU per step", lambda row: row[1].device_s, SECONDS),
)
