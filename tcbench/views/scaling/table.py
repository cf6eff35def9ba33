"""Scaling over ranks in words: a table of its figures, how to read it, and the JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tcbench.analysis.scaling import Curve, Imbalance, Point
from tcbench.analysis.stats import Interval
from tcbench.core.record import Cell
from tcbench.present.format import milliseconds, number, percent, rate
from tcbench.present.naming import rate_unit
from tcbench.present.tables import config_in_ladder, open_table


def table(curves: Sequence[Curve]) -> Table:
    """A row per cell, curve by curve: what the table of results, which has the images/s of all ranks, does not say."""
    table = open_table(gap=1)
    table.add_column("batch", no_wrap=True)
    table.add_column("config", overflow="fold", min_width=8)
    headings = (
        "ranks",
        f"{rate_unit(map(_cell, curves))}\nper rank",
        "efficiency",
        "all-\nreduce",
        "algo\nGB/s",
        "bus\nGB/s",
        "imbalance\n(slowest)",
        "cores\nper rank",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    above: Curve | None = None
    for curve in curves:
        new = above is None or head(above) != head(curve)
        if new and above is not None:
            table.add_row()
        cell = _cell(curve)
        config = config_in_ladder(cell, _cell(above) if above and not new else None)
        for place, point in enumerate(curve.points):
            names = (head(curve) if new else "", config) if place == 0 else ("", "")
            table.add_row(*map(Text, names), *map(Text, _figures(point)))
        above = curve
    return table


def head(curve: Curve) -> str:
    """The batch size that a curve's cells share: "8", each rank's, or "16 in all"."""
    return f"{curve.images}" if curve.kind == "weak" else f"{curve.images} in all"


def _cell(curve: Curve) -> Cell:
    return curve.points[0].summary.cell


def _figures(point: Point) -> Iterator[str]:
    yield str(point.ranks)
    rates, exchange = point.images_per_s, point.allreduce
    if rates is None:
        yield point.summary.status
        return
    yield rate(rates.value / point.ranks)
    yield efficiency(point.efficiency)
    yield "" if exchange is None else milliseconds(exchange.time_s.value) + (" left" if exchange.overlaps else "")
    for bandwidth in (exchange.algorithm_bytes_s, exchange.bus_bytes_s) if exchange else (None, None):
        yield "" if bandwidth is None else gigabytes(bandwidth.value)
    yield imbalance(point.imbalance)
    yield cores(point)


def efficiency(interval: Interval | None) -> str:
    """ "92.1% (91 to 93)"; without its interval where that is of no width, as of a base over itself."""
    if interval is None:
        return ""
    within = f"{100 * interval.low:.0f} to {100 * interval.high:.0f}" if interval.high < 10 else "any"
    return percent(interval.value) + ("" if interval.low == interval.high else f" ({within})")


def efficiency_limits(interval: Interval | None) -> str:
    """ "90.8% to 93.4%"; an open end says so, and a base over itself has none."""
    if interval is None or interval.low == interval.high:
        return ""
    return f"{percent(interval.low)} to {percent(interval.high) if math.isfinite(interval.high) else 'no limit'}"


def gigabytes(bytes_s: float) -> str:
    """Of 10^9 bytes, as nccl-tests write them: 1.36."""
    return number(bytes_s / 1e9)


def cores(point: Point) -> str:
    """ "2", or "2, 4" where ranks were bound to different numbers; empty where they were not."""
    return ", ".join(map(str, point.cores))


def imbalance(of: Imbalance | None) -> str:
    """ "3.2% (1)": how much longer the slowest rank works than the mean, and which that is in most steps."""
    return "" if of is None else f"{percent(of.share)} ({of.slowest})"


def notes(curves: Sequence[Curve]) -> list[str]:
    """Notes on how to read the table."""
    points = [point for curve in curves for point in curve.points]
    lines = ["efficiency: throughput over that of one rank times the ranks; docs/ranks.md defines every figure."]
    lines += [
        f"{curve.config}, batch size {head(curve)}: over {curve.base.cell.ranks} ranks, the fewest measured."
        for curve in curves
        if curve.base is not None and curve.base.cell.ranks > 1
    ]
    if any(point.allreduce for point in points):
        lines.append(
            "all-reduce: per step, of the rank that comes to it last and waits for nobody; bandwidths as nccl-tests "
            "define them."
        )
    if any(point.allreduce and point.allreduce.overlaps for point in points):
        lines.append("left: the exchange runs beside other phases; what is left of it tells no bandwidth.")
    if any(point.imbalance for point in points):
        lines.append(
            "imbalance: work of the slowest rank before the all-reduce over the mean of all, less 1; and which it is "
            "in most steps."
        )
    engines = {s.environment.ranks for s in (p.summary for p in points) if s.environment and s.environment.ranks}
    lines += sorted({"ranks: " + "; ".join(filter(None, (ranks.engine, ranks.binding))) for ranks in engines})
    return lines


def point_json(point: Point) -> dict[str, Any]:
    """The figures of a cell, with units in the names."""
    exchange, uneven = point.allreduce, point.imbalance
    return {
        "images_per_s_per_rank": point.images_per_s_per_rank,
        "cores_per_rank": point.cores,
        "speedup": point.speedup,
        "efficiency": point.efficiency,
        "allreduce_s": exchange and exchange.time_s,
        "allreduce_overlaps": exchange and exchange.overlaps,
        "allreduce_bytes": exchange and exchange.bytes,
        "algorithm_bandwidth_bytes_s": exchange and exchange.algorithm_bytes_s,
        "bus_bandwidth_bytes_s": exchange and exchange.bus_bytes_s,
        "imbalance": uneven and uneven.share,
        "slowest_rank": uneven and uneven.slowest,
        "fastest_rank": uneven and uneven.fastest,
        "steps": [dataclasses.asdict(step) for step in uneven.steps] if uneven else [],
    }


def to_json(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Curves, for the JSON of `tcbench run`."""
    return [
        {
            "kind": curve.kind,
            "config": curve.config,
            "images": curve.images,
            "base_ranks": curve.base and curve.base.cell.ranks,
            "cells": [
                {"key": p.summary.cell.key, "ranks": p.ranks, "images_per_s": p.images_per_s, **point_json(p)}
                for p in curve.points
            ],
        }
        for curve in curves
    ]
