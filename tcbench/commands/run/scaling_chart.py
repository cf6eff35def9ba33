"""The chart and the page's section on scaling: throughput and efficiency against the number of ranks, and the ideal."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary
from tcbench.commands.run.scaling import Curve, Point
from tcbench.commands.run.scaling_table import EFFICIENCY, CurveRow, batch_words, columns, notes, rows
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.show.charts.inline import tooltip
from tcbench.show.charts.labels import label, squares_around
from tcbench.show.charts.page import ChartPage, set_ticks
from tcbench.show.charts.palette import INK, PAPER, PEER_RAMPS, QUIET, RAMPS, family, fill, legend_rows
from tcbench.show.charts.provenance import MAX_PANELS, first_panels, provenance_of, small_print, titled
from tcbench.show.charts.text import DPI, LABEL, WORDS, drawable, shortened
from tcbench.show.format import counted, factor, limits, milliseconds, number
from tcbench.show.naming import rate_unit
from tcbench.show.page import drawings
from tcbench.show.page.drawings import Swatches
from tcbench.show.page.page import Paragraph, Section, say, strong
from tcbench.show.page.settings import Settings
from tcbench.show.page.wording import spaced
from tcbench.show.tables import Column, Field, Table
from tcbench.show.verdicts import why_missing

_HEIGHT = 2.7
_MARKERS = "osD^v<>pXP"
_MARKER_SIZE = 6.5  # points
_MOST_TICKS = 8
_SUBTITLES = {
    "weak": "Weak scaling: the same batch size on each rank",
    "strong": "Strong scaling: the same batch over all ranks",
}


def scaling_chart(curves: Sequence[Curve], *, title: str = "Scaling over ranks") -> Figure:
    """Draw throughput and efficiency against ranks, a row of two panels for each curve's batch size or global batch.

    Throughput has logarithmic axes and a dashed ideal line from each config's base. Raises SelectionError if there is
    no measured cell of several ranks."""
    if not curves:
        raise SelectionError(
            "no cell with several ranks in these results; measure some with `tcbench run scaling --ranks 1,2`"
        )
    rows = grouped(((curve.setting, curve.kind, curve.images), curve) for curve in curves if curve.base is not None)
    if not rows:
        raise SelectionError(f"no cell of these results was measured: {'; '.join(_without_number(curves))}")
    # Weak scaling first, then strong scaling, the longest curves first. A row has two of the MAX_PANELS panels.
    length = {key: max(len(curve.points) for curve in line) for key, line in rows.items()}
    ordered = sorted(rows, key=lambda key: -length[key] if key[1] == "strong" else -math.inf)
    keys, more = first_panels(ordered, lambda key: _name(*key[1:]), "--config, or name fewer files", MAX_PANELS // 2)
    lacking = _without_number(curves)
    rows = {key: rows[key] for key in keys}
    curves = [curve for line in rows.values() for curve in line]
    summaries = [point.summary for curve in curves for point in curve.points]
    provenance = provenance_of({curve.setting: _on_one_rank(curve) for curve in curves})
    configs = list(dict.fromkeys(curve.config for curve in curves))
    styles = _styles(configs)
    kinds = dict.fromkeys(curve.kind for curve in curves)
    lines = [drawable("no result: " + "; ".join(lacking))] if lacking else []
    notes = [_line_note(curves), *more, *lines, small_print(summaries, provenance.common, whiskers=True)]
    unit = rate_unit(summary.cell for summary in summaries)
    page = ChartPage(titled(title, summaries), " · ".join(_SUBTITLES[kind] for kind in kinds), notes)
    legend = legend_rows(configs)
    page.legend([[Line2D([], [], label=words, **styles[config]) for config, words in row] for row in legend])
    grid = page.panels([_HEIGHT] * len(rows), 2)
    for ((setting, kind, images), line), (left, right) in zip(rows.items(), grid, strict=True):
        name = " · ".join(filter(None, [_name(kind, images), provenance.names[setting]]))
        page.heading(left, shortened(name, LABEL + 1, page.room))
        _frame(left, right, line, unit)
    for axes in grid[-1]:
        axes.set_xlabel("ranks")
    page.settle()
    for line, (left, right) in zip(rows.values(), grid, strict=True):
        _draw(left, line, styles, lambda point: point.images_per_s, lambda value: f"{number(value)} {unit}")
        _draw(right, line, styles, lambda point: point.efficiency, lambda value: f"{value:.1%}")
        _write_efficiencies(right, line)
    return page.figure


def _name(kind: str, images: int) -> str:
    """Name a row of panels by its batch size or global batch."""
    return f"batch size {images} per rank" if kind == "weak" else f"global batch {images}"


def _on_one_rank(curve: Curve) -> list[CellSummary]:
    """Return the summaries of a curve as if on one rank, so that they belong to one setting."""
    return [replace(point.summary, cell=msgspec.structs.replace(point.summary.cell, ranks=1)) for point in curve.points]


def _line_note(curves: Sequence[Curve]) -> str:
    """Return the note that defines the dashed ideal lines and the efficiency."""
    over_one = all(curve.base is not None and curve.base.cell.ranks == 1 for curve in curves)
    ideal = "of one rank" if over_one else "per rank on the line's fewest ranks"
    return f"dashed: the ideal, the throughput {ideal} times the ranks · efficiency: throughput / ideal"


def _without_number(curves: Sequence[Curve]) -> list[str]:
    """Return the cells of the curves without a throughput, each with the reason: "fp32, batch size 8: failed"."""
    points = (point for curve in curves for point in curve.points if point.images_per_s is None)
    return list(dict.fromkeys(f"{point.summary.cell.label}: {why_missing(point.summary)}" for point in points))


def _styles(configs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the line style of each config: a marker, and the colour of its bars in other charts.

    If that colour is taken, because bars differ by hatch only, use another shade of the dtype."""
    colours: dict[str, str] = {}
    for config in configs:
        ramp = (PEER_RAMPS if "/" in config else RAMPS)[family(config)]
        shades = [fill(config).colour, *ramp]
        colours[config] = next((shade for shade in shades if shade not in colours.values()), shades[0])
    return {
        config: {
            "color": colours[config],
            "marker": marker,
            "markersize": _MARKER_SIZE,
            "markeredgecolor": PAPER,
            "markeredgewidth": 0.7,
            "linewidth": 1.6,
        }
        for config, marker in zip(configs, itertools.cycle(_MARKERS), strict=False)
    }


def _frame(left: Axes, right: Axes, line: Sequence[Curve], unit: str) -> None:
    """Set scales, limits and ticks of the panels of throughput (left) and efficiency (right), so that all values, the
    ideal throughput and 100% fit."""
    ranks = sorted({point.ranks for curve in line for point in curve.points})
    ticks = ranks if len(ranks) <= _MOST_TICKS else [n for n in ranks if n & (n - 1) == 0]  # powers of 2
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlim(ranks[0] / 1.25, ranks[-1] * 1.25)
        set_ticks(axes.xaxis, ticks, str)
        axes.tick_params(labelsize=LABEL)
    values = [point.images_per_s.value for curve in line for point in curve.points if point.images_per_s]
    values += [_ideal(curve, ranks[-1]) for curve in line if curve.base is not None]
    left.set_yscale("log", base=2)
    low, high = min(values, default=1.0), max(values, default=1.0)
    left.set_ylim(low / 1.4, high * 1.25)
    # No tick above `high`: its number would touch the heading.
    rates = [float(tick) for tick in LogLocator(10, subs=(1, 2, 5)).tick_values(low / 1.4, high)]
    set_ticks(
        left.yaxis,
        [tick for tick in rates if low / 1.4 <= tick <= high],
        lambda value: f"{value:g}" if 0.01 <= value < 1e4 else number(value),
    )
    left.set_ylabel(f"Better ⟶\n{unit}, log scale", color=INK)
    shares = [1.0, *(point.efficiency.value for curve in line for point in curve.points if point.efficiency)]
    foot = max(0.0, math.floor(5 * (min(shares) - 0.1)) / 5)  # a multiple of 20%, with some distance
    right.set_ylim(foot, max(shares) + 0.12 * (max(shares) - foot))
    percents = [float(tick) for tick in MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(foot, max(shares))]
    set_ticks(right.yaxis, [tick for tick in percents if foot <= tick <= max(shares) + 1e-9], "{:.0%}".format)
    right.set_ylabel("efficiency", color=INK)


def _ideal(curve: Curve, ranks: float) -> float:
    """Return the throughput of this number of ranks if each were as fast as a rank of the base."""
    assert curve.base is not None and curve.base.images_per_s is not None
    return curve.base.images_per_s.value * ranks / curve.base.cell.ranks


def _draw(
    axes: Axes,
    line: Sequence[Curve],
    styles: Mapping[str, Mapping[str, Any]],
    figure: Callable[[Point], Interval | None],
    write: Callable[[float], str],
) -> None:
    """Draw a line with whiskers for each curve in `line`, and the dashed ideal lines.

    `figure` returns the interval of a point, or None to leave the point out, and `write` formats a value for the
    tooltip."""
    low, high = axes.get_ylim()
    end = max(point.ranks for curve in line for point in curve.points)
    for curve in line:
        if curve.base is not None:
            start = curve.base.cell.ranks
            ideal = [_ideal(curve, n) if axes.get_yscale() == "log" else 1.0 for n in (start, end)]
            axes.plot([start, end], ideal, color=QUIET, linewidth=0.9, dashes=(4, 2.5), zorder=1.5)
    for curve in line:
        places = [(point, interval) for point in curve.points if (interval := figure(point)) is not None]
        xs, style = [point.ranks for point, _ in places], styles[curve.config]
        ends = [(max(interval.low, low), min(interval.high, high)) for _, interval in places]
        axes.vlines(xs, [a for a, _ in ends], [b for _, b in ends], color=style["color"], linewidth=1.0, zorder=2.2)
        axes.plot(xs, [interval.value for _, interval in places], **style, zorder=3, clip_on=False)
        marks = axes.scatter(  # invisible; they carry the tooltips
            xs, [interval.value for _, interval in places], s=(2 * _MARKER_SIZE) ** 2, alpha=0, zorder=3.5
        )
        tooltip(marks, *(f"{p.summary.cell.label}\n{write(i.value)} ({limits(i, write)})" for p, i in places))


def _write_efficiencies(axes: Axes, line: Sequence[Curve]) -> None:
    """Write the efficiency next to each point except bases, where there is room."""
    places = [
        (point, (float(point.ranks), point.efficiency.value))
        for curve in line
        for point in curve.points
        if point.efficiency is not None and point.summary is not curve.base
    ]
    occupied = squares_around([tuple(axes.transData.transform(place)) for _, place in places], _MARKER_SIZE / 144 * DPI)
    for point, place in places:
        words = f"{point.efficiency.value:.0%}" if point.efficiency else ""
        label(axes, words, place, occupied, gap=_MARKER_SIZE / 144 * DPI + 5, size=WORDS, zorder=5)


def scaling_section(curves: Sequence[Curve], settings: Settings, swatches: Swatches) -> Section | None:
    """Return the page's section on scaling; None if no cell has several ranks."""
    if not curves:
        return None
    title = "Throughput and efficiency against ranks"
    several = len({part.setting[0] for part in settings.parts}) > 1
    heads = (
        *([Column[CurveRow]("machine", lambda row: row.point.summary.machine)] if several else []),
        Column[CurveRow]("batch", lambda row: Field(batch_words(row.curve), row.curve.images)),
        Column[CurveRow]("config", lambda row: swatches.config(row.curve.config)),
    )
    table = Table((*heads, *columns(curves)), [*rows(curves)], "All cells of the scaling curves")
    chart = drawings.figure(lambda: scaling_chart(curves, title=""), title, "scaling", table, notes(curves))
    return Section("scaling", "Scaling over ranks", (chart,))


def scaling_sentence(curves: Sequence[Curve]) -> Paragraph | None:
    """Return a sentence on the fastest cell of weak scaling: its speed-up over the base, efficiency, and all-reduce.
    None if no cell but the bases was measured."""
    points = [
        (point.images_per_s.value, curve, point)
        for curve in curves
        for point in curve.points
        if curve.kind == "weak" and point.images_per_s and point.summary is not curve.base and curve.base
    ]
    if not points:
        return None
    _, curve, point = max(points, key=lambda candidate: candidate[0])
    assert curve.base is not None and point.speedup is not None and point.efficiency is not None
    exchange = "" if point.allreduce is None else f"; {milliseconds(point.allreduce.time_s.value)} of a step "
    if point.allreduce is not None:
        exchange += (
            "are all-reduce that does not overlap other phases" if point.allreduce.overlaps else "are the all-reduce"
        )
    return say(
        strong(spaced(point.summary.cell.label)),
        f" trains {factor(point.speedup.value)} as fast as on {counted(curve.base.cell.ranks, 'rank')}, with ",
        "an efficiency of ",
        strong(EFFICIENCY.interval(point.efficiency)),
        f"{exchange}.",
    )
