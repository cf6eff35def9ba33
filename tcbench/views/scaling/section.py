"""The section on scaling over ranks: the chart that `tcbench plot --kind scaling` draws, and the table behind it."""

from collections.abc import Sequence

from tcbench.analysis.scaling import Curve
from tcbench.present.format import counted, factor, milliseconds
from tcbench.present.page import drawings
from tcbench.present.page.drawings import Swatches
from tcbench.present.page.page import Paragraph, Section, say, strong
from tcbench.present.page.settings import Settings
from tcbench.present.page.wording import spaced
from tcbench.present.tables import Column, Field, Table
from tcbench.views.scaling.chart import scaling_chart
from tcbench.views.scaling.table import EFFICIENCY, Row, columns, head, notes, rows


def section(curves: Sequence[Curve], settings: Settings, swatches: Swatches) -> Section | None:
    """All curves; None where no cell has several ranks."""
    if not curves:
        return None
    title = "Throughput and efficiency against ranks"
    several = len({part.setting[0] for part in settings.parts}) > 1
    heads = (
        *([Column[Row]("machine", lambda row: row.point.summary.machine)] if several else []),
        Column[Row]("batch", lambda row: Field(head(row.curve), row.curve.images)),
        Column[Row]("config", lambda row: swatches.config(row.curve.config)),
    )
    every_cell = Table((*heads, *columns(curves)), [*rows(curves)], "Every cell on a curve of scaling")
    remarks = notes(curves)
    chart = drawings.figure(lambda: scaling_chart(curves, title=""), title, "scaling", every_cell, remarks)
    return Section("scaling", "Scaling over ranks", (chart,))


def sentence(curves: Sequence[Curve]) -> Paragraph | None:
    """The cell with the highest throughput of all on several ranks: how many times as fast as its base it is, its
    efficiency, and its all-reduce. None where no cell of several ranks was measured."""
    points = [
        (point.images_per_s.value, curve, point)
        for curve in curves
        for point in curve.points
        if curve.kind == "weak" and point.images_per_s and point.summary is not curve.base and curve.base
    ]
    if not points:
        return None
    _, curve, point = max(points, key=lambda entry: entry[0])
    assert curve.base is not None and point.speedup is not None and point.efficiency is not None
    exchange = "" if point.allreduce is None else f"; {milliseconds(point.allreduce.time_s.value)} of a step "
    if point.allreduce is not None:
        exchange += "are what is left of the all-reduce" if point.allreduce.overlaps else "are the all-reduce"
    return say(
        strong(spaced(point.summary.cell.label)),
        f" trains {factor(point.speedup.value)} as fast as on {counted(curve.base.cell.ranks, 'rank')}, with ",
        "an efficiency of ",
        strong(EFFICIENCY.interval(point.efficiency)),
        f"{exchange}.",
    )
