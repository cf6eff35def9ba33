"""Scaling over ranks as a table, with notes, and as JSON."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tcbench.analysis.stats import Interval
from tcbench.commands.run.scaling import AllReduce, Curve, Imbalance, Point
from tcbench.core.record import Cell
from tcbench.show.document import fields
from tcbench.show.format import duration, limits, number, percent
from tcbench.show.naming import rate_unit
from tcbench.show.tables import COUNT, FACTOR, NUMBER, RATE, SECONDS, SHARE, Column, Kind, Table, config_in_ladder


@dataclass(frozen=True)
class CurveRow:
    """A cell on a scaling curve. `batch` and `config` are filled in the first row of a curve only."""

    curve: Curve
    point: Point
    batch: str = ""
    config: str = ""


def rows(curves: Sequence[Curve]) -> Iterator[CurveRow | None]:
    """Yield a row per cell, curve by curve, and None between batch sizes."""
    above: Curve | None = None
    for curve in curves:
        new = above is None or batch_words(above) != batch_words(curve)
        if new and above is not None:
            yield None
        config = config_in_ladder(_cell(curve), _cell(above) if above and not new else None)
        first, *rest = curve.points
        yield CurveRow(curve, first, batch_words(curve) if new else "", config)
        yield from (CurveRow(curve, point) for point in rest)
        above = curve


def columns(curves: Sequence[Curve]) -> tuple[Column[CurveRow], ...]:
    """Return the columns of the table of scaling.

    Columns of throughput and speed-up are on the page only, because the console's table of results has them."""
    unit = rate_unit(map(_cell, curves))

    def allreduce(heading: str, figure: Callable[[AllReduce], object], kind: Kind, mark: str = "") -> Column[CurveRow]:
        """Return a column with a figure of the all-reduce; rows whose all-reduce overlaps other phases get the mark."""

        def overlap_mark(row: CurveRow) -> str:
            return mark if row.point.allreduce and row.point.allreduce.overlaps else ""

        return Column(heading, lambda row: row.point.allreduce and figure(row.point.allreduce), kind, mark=overlap_mark)

    def imbalance(heading: str, words: Callable[[Imbalance], str]) -> Column[CurveRow]:
        return Column(heading, lambda row: row.point.imbalance and words(row.point.imbalance), on="page")

    def slowest(row: CurveRow) -> str:
        return f" ({row.point.imbalance.slowest})" if row.point.imbalance else ""

    return (
        Column("ranks", lambda row: row.point.ranks, COUNT),
        Column(unit, lambda row: row.point.images_per_s or row.point.summary.status, RATE, on="page"),
        Column(f"{unit}\nper rank", lambda row: row.point.images_per_s_per_rank or row.point.summary.status, NUMBER),
        Column("speed-up", lambda row: row.point.speedup, FACTOR, on="page"),
        Column("efficiency", lambda row: row.point.efficiency, EFFICIENCY),
        Column("95% interval", lambda row: efficiency_limits(row.point.efficiency), on="page"),
        Column("90 epochs\nof ImageNet", lambda row: row.point.time_to_train_s, Kind(duration), on="page"),
        allreduce("all-\nreduce", lambda exchange: exchange.time_s, SECONDS, " left"),
        allreduce("algo\nGB/s", lambda exchange: exchange.algorithm_bytes_s, _GIGABYTES),
        allreduce("bus\nGB/s", lambda exchange: exchange.bus_bytes_s, _GIGABYTES),
        Column(
            "imbalance\n(slowest)", lambda row: row.point.imbalance and row.point.imbalance.share, SHARE, mark=slowest
        ),
        imbalance("slowest in", lambda ranks: f"{ranks.slowest_in} of {len(ranks.steps)} steps"),
        imbalance("fastest rank", lambda ranks: str(ranks.fastest)),
        Column("cores\nper rank", lambda row: ", ".join(map(str, row.point.cores)), COUNT),
    )


def table(curves: Sequence[Curve]) -> Table[CurveRow]:
    """Return the console's table of scaling, with a row per cell."""
    names = (
        Column[CurveRow]("batch", lambda row: row.batch, wraps=False),
        Column[CurveRow]("config", lambda row: row.config, width=8),
    )
    return Table((*names, *columns(curves)), [*rows(curves)], gap=1)


def batch_words(curve: Curve) -> str:
    """Return the batch size of a curve: "8" for each rank, or "16 in all"."""
    return f"{curve.images}" if curve.kind == "weak" else f"{curve.images} in all"


def _cell(curve: Curve) -> Cell:
    return curve.points[0].summary.cell


def efficiency_limits(interval: Interval | None) -> str:
    """Format the limits of an efficiency: "90.8% to 93.4%"; empty for the base, whose efficiency is exactly 1."""
    return "" if interval is None or interval.low == interval.high else limits(interval, percent)


def _efficiency_ends(efficiency: Interval) -> str:
    """Format an efficiency's ends: "(91 to 93)" in percent, "(any)" from 1000% up; empty for the base (exactly 1)."""
    if efficiency.low == efficiency.high:
        return ""
    return f"({100 * efficiency.low:.0f} to {100 * efficiency.high:.0f})" if efficiency.high < 10 else "(any)"


EFFICIENCY = Kind(percent, write_ends=_efficiency_ends)
"""The format of an efficiency: 92.1% (91 to 93)."""
_GIGABYTES = Kind(lambda bytes_s: number(bytes_s / 1e9))
"""The format of a bandwidth in units of 10^9 bytes/s, as in nccl-tests: 1.36."""


def notes(curves: Sequence[Curve]) -> list[str]:
    """Return notes on how to read the table of scaling."""
    points = [point for curve in curves for point in curve.points]
    lines = ["efficiency: throughput / (throughput of one rank × ranks); docs/ranks.md defines all figures."]
    lines += [
        f"{curve.config}, batch size {batch_words(curve)}: over {curve.base.cell.ranks} ranks, the fewest measured."
        for curve in curves
        if curve.base is not None and curve.base.cell.ranks > 1
    ]
    if any(point.allreduce for point in points):
        lines.append(
            "all-reduce: time per step on the last rank to arrive, which does not wait; bandwidths as in nccl-tests."
        )
    if any(point.allreduce and point.allreduce.overlaps for point in points):
        lines.append("left: the part of the all-reduce that does not overlap other phases; its bandwidth is unknown.")
    if any(point.imbalance for point in points):
        lines.append(
            "imbalance: slowest rank's time before the all-reduce / mean - 1, and the rank that is most often slowest."
        )
    engines = {s.environment.ranks for s in (p.summary for p in points) if s.environment and s.environment.ranks}
    lines += sorted({"ranks: " + "; ".join(filter(None, (ranks.engine, ranks.binding))) for ranks in engines})
    return lines


def to_json(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return the curves for the JSON of `tcbench run`."""
    return [
        {
            **fields(curve, "kind config images base_ranks=base.cell.ranks"),
            "cells": [
                {
                    **fields(point, "key=summary.cell.key ranks images_per_s images_per_s_per_rank time_to_train_s"),
                    **fields(point, "cores_per_rank=cores speedup efficiency allreduce_s=allreduce.time_s"),
                    **fields(point, "allreduce_overlaps=allreduce.overlaps allreduce_bytes=allreduce.bytes"),
                    **fields(point, "algorithm_bandwidth_bytes_s=allreduce.algorithm_bytes_s"),
                    **fields(point, "bus_bandwidth_bytes_s=allreduce.bus_bytes_s imbalance=imbalance.share"),
                    **fields(point, "slowest_rank=imbalance.slowest fastest_rank=imbalance.fastest"),
                    "steps": point.imbalance.steps if point.imbalance else [],
                }
                for point in curve.points
            ],
        }
        for curve in curves
    ]
