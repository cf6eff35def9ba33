"""The section on scaling over ranks: the chart that `tcbench plot --kind scaling` draws, and the table behind it."""

from __future__ import annotations

from collections.abc import Sequence

from tcbench.analysis.scaling import Curve, Point
from tcbench.present.format import counted, factor, milliseconds, percent
from tcbench.present.naming import rate_unit
from tcbench.present.page import drawings
from tcbench.present.page.drawings import Swatches
from tcbench.present.page.page import Field, Paragraph, Section, Table, say, strong
from tcbench.present.page.settings import Settings
from tcbench.present.page.wording import columns, figure, middle, spaced
from tcbench.views.scaling.chart import scaling_chart
from tcbench.views.scaling.table import cores, efficiency, efficiency_limits, gigabytes, head, notes

_NAMES = (
    *("#per rank", "#speed-up", "#efficiency", "95% interval"),
    *("#all-reduce", "#algorithm GB/s", "#bus GB/s", "#imbalance", "slowest rank", "fastest rank", "cores per rank"),
)


def section(curves: Sequence[Curve], settings: Settings, swatches: Swatches) -> Section | None:
    """All curves; None where no cell has several ranks."""
    if not curves:
        return None
    unit = rate_unit(point.summary.cell for curve in curves for point in curve.points)
    title = "Throughput and efficiency against ranks"
    machines = {machine for here in settings.here for machine in [here.setting[0]]}
    where = ("machine",) if len(machines) > 1 else ()
    table = Table(
        caption="Every cell on a curve of scaling",
        columns=columns(*where, "batch", "config", "#ranks", f"#{unit}", *_NAMES),
        rows=tuple(
            ((Field(point.summary.machine or ""),) if where else ()) + _fields(curve, point, swatches)
            for curve in curves
            for point in curve.points
        ),
    )
    remarks = notes(curves)
    chart = drawings.figure(lambda: scaling_chart(curves, title=""), title, "scaling", table, remarks)
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
        strong(efficiency(point.efficiency)),
        f"{exchange}.",
    )


def _fields(curve: Curve, point: Point, swatches: Swatches) -> tuple[Field, ...]:
    exchange, uneven = point.allreduce, point.imbalance
    bandwidths = (exchange.algorithm_bytes_s, exchange.bus_bytes_s) if exchange else (None, None)
    per_rank = point.images_per_s_per_rank
    return (
        Field(head(curve), curve.images),
        Field(curve.config, swatch=swatches.paint(curve.config)),
        figure(point.ranks, str(point.ranks)),
        middle(point.images_per_s) if point.images_per_s else Field(point.summary.status),
        middle(per_rank),
        middle(point.speedup, factor),
        middle(point.efficiency, percent),
        Field(efficiency_limits(point.efficiency)),
        middle(exchange.time_s, milliseconds) if exchange else Field(),
        *(middle(bandwidth, gigabytes) for bandwidth in bandwidths),
        figure(uneven.share, percent(uneven.share)) if uneven else Field(),
        Field("" if uneven is None else f"{uneven.slowest} ({uneven.slowest_in} of {len(uneven.steps)} steps)"),
        Field("" if uneven is None else str(uneven.fastest)),
        Field(cores(point)),
    )
