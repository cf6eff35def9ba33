"""Many ranks by a model: efficiency and time to train against the number of ranks, with published results as points.

Draws curves and points. Knows nothing of the model or of where a figure was published.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.ticker import PercentFormatter
from matplotlib.transforms import Bbox

from tcbench.core.errors import SelectionError
from tcbench.present.charts.labels import around, label
from tcbench.present.charts.page import ChartPage, set_ticks
from tcbench.present.charts.palette import PAPER, QUIET, SERIES
from tcbench.present.charts.text import DPI, LABEL, WORDS, drawable
from tcbench.run.scale_out import Basis, ScaleOut, Size

_HEIGHT, _MARK = 3.6, 7.0
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (4, 1, 1, 1, 1, 1)))
_COLOURS = tuple(SERIES[i].colour for i in (0, 1, 2, 4, 7, 5, 6, 3))
"""Those that are faint as lines come last."""
_MARKS = ("o", "s", "D", "^", "v", "P", "X", "*")
_TIMES = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 36_000: "10 h", 360_000: "100 h"}
_TIMES |= {3_600_000: "1,000 h", 36_000_000: "10,000 h"}


@dataclass(frozen=True)
class ScaleOutCurve:
    """A step on each number of `ranks`: efficiency and time to train of the fastest way, and of the slowest."""

    label: str
    ranks: tuple[int, ...]
    efficiency: tuple[float, ...]
    least_efficiency: tuple[float, ...]
    time_to_train_s: tuple[float, ...]
    most_time_to_train_s: tuple[float, ...]


@dataclass(frozen=True)
class ScaleOutPoint:
    """A result that was measured; None is not known. `curve`: the place of its curve, None where it has none."""

    label: str
    ranks: int
    efficiency: float | None
    time_to_train_s: float | None
    curve: int | None = None


def curves_of(out: ScaleOut) -> list[ScaleOutCurve]:
    """A curve for each basis: of the fastest way at each number of ranks."""
    return [_curve(*entry) for entry in out.bases.items()]


def _curve(basis: Basis, sizes: Sequence[Size]) -> ScaleOutCurve:
    sizes = sorted(sizes, key=lambda size: size.ranks)
    bound = ": a bound" if basis.source == "forecast" else ""
    return ScaleOutCurve(
        label=drawable(f"{basis.cell.label} on {basis.device_name} ({basis.source}{bound})"),
        ranks=tuple(size.ranks for size in sizes),
        efficiency=tuple(size.fastest.efficiency for size in sizes),
        least_efficiency=tuple(size.slowest.efficiency for size in sizes),
        time_to_train_s=tuple(size.fastest.time_to_train_s for size in sizes),
        most_time_to_train_s=tuple(size.slowest.time_to_train_s for size in sizes),
    )


def scale_out_chart(
    curves: Sequence[ScaleOutCurve], subtitle: str, points: Sequence[ScaleOutPoint] = (), notes: Sequence[str] = ()
) -> Figure:
    """Raises SelectionError for more curves than there are colours."""
    if len(curves) > len(_COLOURS):
        raise SelectionError(
            f"{len(curves)} cells do not fit in one chart (at most {len(_COLOURS)}); choose with --config or --bs"
        )
    band = "Lines: the faster all-reduce, overlapped with the backward pass; bands: to the slower one, after it."
    page = ChartPage("One step on many ranks, by a model", subtitle, [*notes, band])
    marked = {point.curve for point in points}
    styles = [
        {"color": colour, "linestyle": dashes, "linewidth": 1.8}
        for colour, dashes in zip(_COLOURS, itertools.cycle(_DASHES), strict=False)
    ]
    marks = [_MARKS[i] if i in marked else "" for i in range(len(curves))]
    entries = [
        [Line2D([], [], marker=mark, markersize=_MARK - 1, label=curve.label, **style)]
        for curve, mark, style in zip(curves, marks, styles, strict=False)
    ]
    page.legend(entries, handlelength=3)
    [[efficiency, times]] = page.panels([_HEIGHT], 2)
    efficiency.set_title("Efficiency", loc="left", weight="bold")
    times.set_title("Time to train: 90 epochs of 1.28 million images", loc="left", weight="bold")
    _frame(efficiency, times, curves, points)
    for curve, style in zip(curves, styles, strict=False):
        for axes, low, high, line in (
            (efficiency, curve.least_efficiency, curve.efficiency, curve.efficiency),
            (times, curve.time_to_train_s, curve.most_time_to_train_s, curve.time_to_train_s),
        ):
            axes.fill_between(curve.ranks, low, high, color=style["color"], alpha=0.18, linewidth=0)
            axes.plot(curve.ranks, line, zorder=3, **style)
    page.settle()
    for axes, field in ((efficiency, "efficiency"), (times, "time_to_train_s")):
        _draw_points(axes, [(p, getattr(p, field)) for p in points if getattr(p, field) is not None], curves, field)
    return page.figure


def _frame(efficiency: Axes, times: Axes, curves: Sequence[ScaleOutCurve], points: Sequence[ScaleOutPoint]) -> None:
    ranks = [n for curve in curves for n in curve.ranks] + [point.ranks for point in points]
    low, high = min(ranks), max(ranks)
    for axes in (efficiency, times):
        axes.set_xscale("log", base=2)
        axes.set_xlim(low / 1.3, max(high, low * 2) * 1.3)
        ticks = [2**n for n in range(20) if low <= 2**n <= high] or [low]
        set_ticks(axes.xaxis, ticks[:: -1 - len(ticks) // 8], str)
        axes.set_xlabel("ranks")
        axes.tick_params(labelsize=WORDS)
    shares = [x for c in curves for x in (*c.efficiency, *c.least_efficiency)]
    shares += [point.efficiency for point in points if point.efficiency is not None]
    efficiency.set_ylim(max(0.0, min(0.5, min(shares) - 0.1)), 1.04)
    efficiency.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    times.set_yscale("log")
    seconds = [x for c in curves for x in (*c.time_to_train_s, *c.most_time_to_train_s)]
    seconds += [point.time_to_train_s for point in points if point.time_to_train_s is not None]
    times.set_ylim(min(seconds) / 2, max(seconds) * 2)
    within = [t for t in _TIMES if min(seconds) / 2 <= t <= max(seconds) * 2]
    set_ticks(times.yaxis, within, lambda seconds: _TIMES[round(seconds)])


def _draw_points(
    axes: Axes, points: Sequence[tuple[ScaleOutPoint, float]], curves: Sequence[ScaleOutCurve], field: str
) -> None:
    """Marks in their curve's colour, each with its label beside it."""
    lines = [
        axes.transData.transform_path(Path(list(zip(curve.ranks, getattr(curve, field), strict=True))))
        for curve in curves
    ]
    drawn = np.concatenate([line.interpolated(24).vertices for line in lines])
    taken: list[Bbox] = around([tuple(axes.transData.transform((p.ranks, y))) for p, y in points], _MARK / 144 * DPI)
    gap = _MARK / 144 * DPI + 3
    for place, (point, y) in enumerate(points):
        colour = QUIET if point.curve is None else _COLOURS[point.curve]
        mark = _MARKS[(place if point.curve is None else point.curve) % len(_MARKS)]
        axes.scatter(
            [point.ranks], [y], s=_MARK**2, marker=mark, color=colour, edgecolor=PAPER, linewidth=0.7, zorder=5
        )
        words = drawable(point.label)
        label(axes, words, (point.ranks, y), taken, gap=gap, far=True, avoid=drawn, fontsize=LABEL - 1, zorder=6)
