"""Cells over commits: a strip per cell with its line and whiskers, on one axis of commits.

Each strip has its own range of images/s, but all strips span the same factor, so that a loss of 5% has the same height
in each. Knows nothing of how changes are judged."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator

from tcbench.analysis.compare import Verdict
from tcbench.analysis.summary import CellSummary
from tcbench.commands.history.history import CellHistory, History, HistoryPoint, Revision
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.core.record import Code
from tcbench.show.charts.labels import label, squares_around
from tcbench.show.charts.page import WIDTH, ChartPage, put
from tcbench.show.charts.palette import FAINT, GAIN, INK, LOSS, PAPER, QUIET, fill
from tcbench.show.charts.provenance import first_panels, provenance_of
from tcbench.show.charts.text import LEGEND, SMALL, WORDS, config_name, drawable, line_height, text_width, wrapped
from tcbench.show.format import change, counted, number, threshold
from tcbench.show.naming import mark_simulated, rate_unit
from tcbench.show.sides import first_few
from tcbench.show.verdicts import FORMS, STATUS_BADGES

MAX_REVISIONS = 120
"""Limit of commits; if there are more, the newest are drawn and the small print says so."""

_NAMES = 2.2  # inches for configs
_TICKS = 0.55  # for the numbers of images/s
_MARGINS = 0.7 + _NAMES + _TICKS + 0.6  # margins, and all beside the strips
_PITCH = 0.15  # from commit to commit at least
_STRIP = 0.64  # inches
_LEAST_SPAN = 1.12
_CUT = 1.5  # whiskers are cut at this factor from the figures

_INKS: dict[Verdict, str] = {"regression": LOSS, "improved": GAIN}
"""Colours of the words beside a point, by verdict."""


def history_chart(history: History) -> Figure:
    """Draw a strip per cell, by setting and batch size. If there are too many, cells that regressed come first. Raises
    SelectionError if there is nothing to draw."""
    if not history.cells:
        raise SelectionError("no results to plot; measure some with `tcbench run`")
    newest = history.revisions[-MAX_REVISIONS:]
    measured = [cell for cell in history.cells if len(_points_at(cell, newest)) > 1]
    if not measured:
        raise SelectionError("nothing to draw: no cell was measured at two commits; `tcbench plot` draws runs")
    ranked = sorted(measured, key=lambda cell: not any(point.regressed for point in _points_at(cell, newest)))
    first, more = first_panels(ranked, lambda cell: cell.cell.label, "--config or --bs")
    cells = sorted(first, key=measured.index)
    drawn = {point.revision for cell in cells for point in cell.points}
    revisions = [revision for revision in newest if revision in drawn]
    groups, common = _groups(cells)
    strips = [
        (cell, _points_at(cell, revisions), name * (cell is alike[0])) for name, alike in groups for cell in alike
    ]
    # All strips show the same ratio of highest to lowest rate, with a margin of 12% in log scale.
    span = max([high / low for low, high in (_rate_limits(points) for _, points, _ in strips)] + [_LEAST_SPAN]) ** 1.12
    width = max(WIDTH, _MARGINS + _PITCH * len(revisions))
    title = mark_simulated("Throughput over commits", (cell.environment for cell in history.cells))
    subtitle = " · ".join([*common, counted(len(revisions), "commit")])
    page = ChartPage(drawable(title), subtitle, [*_small_print(history, measured, newest), *more], width)
    column = page.panels([_STRIP] * len(strips))[:, 0]
    for axes, (cell, points, group) in zip(column, strips, strict=True):
        _frame(axes, cell, points, span, len(revisions))
        if group:
            below = (
                f"{rate_unit(cell.cell for cell in cells)}; on the right: the newest figure"
                if axes is column[0]
                else ""
            )
            page.title_panel(axes, group, below)
    # Short names above dates, or both upright where there is no room from one to the next.
    names = [(drawable(revision.short), drawable(revision.date)) for revision in revisions]
    pitch = (width - _MARGINS) / len(revisions)
    upright = max(text_width(word, WORDS) for name in names for word in name) + 0.12 > pitch
    labels = [f"{date} {short}" if upright else f"{short}\n{date}" for short, date in names]
    column[-1].set_xticks(range(len(revisions)), labels, rotation=90 if upright else 0)
    page.settle()
    for axes, (cell, points, _) in zip(column, strips, strict=True):
        _draw_strip(axes, cell, points, revisions)
    return page.figure


def _groups(cells: Sequence[CellHistory]) -> tuple[list[tuple[str, list[CellHistory]]], tuple[str, ...]]:
    """Return (name, cells) for each setting and batch size, and the facts that all settings share."""
    ordered = sorted(cells, key=lambda cell: cell.cell.batch_size)
    groups = grouped(((_as_summary(cell).setting, cell.cell.batch_size), cell) for cell in ordered)
    by_setting = grouped((summary.setting, summary) for summary in map(_as_summary, cells))
    provenance = provenance_of(by_setting)
    return [
        (" · ".join(filter(None, [f"batch size {size}", provenance.names[setting]])), groups[setting, size])
        for setting, size in sorted(groups, key=lambda key: list(by_setting).index(key[0]))
    ], provenance.common


def _as_summary(cell: CellHistory) -> CellSummary:
    """Return a summary without results: only the facts from which a setting and its name are derived."""
    code = Code(None, "", None, beneath=cell.beneath)
    return CellSummary(cell.cell, cell.machine, cell.environment, "ok", None, 0, 0, codes=(code,))


def _small_print(history: History, cells: Sequence[CellHistory], revisions: Sequence[Revision]) -> list[str]:
    """Return the lines below the chart."""
    points = [(cell, point) for cell in cells for point in _points_at(cell, revisions)]
    lines = [
        f"{rate_unit(cell.cell for cell in cells)} over total time, geometric mean over trials · whisker: its "
        f"95% confidence interval over trials · "
        f"{FORMS['regression'].sign} regression: confirmed slower than the previous commit by more than "
        f"{threshold(history.rule.threshold)} · hollow: inconclusive, or nothing to compare with · every strip spans "
        f"the same factor"
    ]
    regressions = []
    for cell, point in points:
        if point.regressed and point.change is not None:
            ratio, culprit = point.change.ratio, point.change.culprit
            loss = change(ratio.value) if ratio else STATUS_BADGES[point.side.status].word
            phase = f" in {culprit.name}" if culprit else ""
            regressions.append(f"{cell.cell.label} at {point.revision.short}: {loss}{phase}")
    if regressions:
        lines.append(f"{FORMS['regression'].sign} {drawable(first_few(regressions, 12))}")
    broken = ((point.revision, point.broken_by) for _, point in points if point.broken_by)
    breaks = Counter((revision, "; ".join(each.says for each in differences)) for revision, differences in broken)
    new_lines = [f"{revision.short} ({counted(n, 'cell')}): {says}" for (revision, says), n in breaks.items()]
    if new_lines:
        lines.append("dashed: a new line, not compared with earlier commits, at " + drawable(first_few(new_lines, 6)))
    if len(revisions) < len(history.revisions):
        lines.append(f"the newest {len(revisions)} of {len(history.revisions)} commits")
    if len(cells) < len(history.cells):
        lines.append(f"left out: {counted(len(history.cells) - len(cells), 'cell')} measured at one commit only")
    return lines


def _points_at(cell: CellHistory, revisions: Sequence[Revision]) -> tuple[HistoryPoint, ...]:
    """Return the points of a cell at the given revisions, in order."""
    drawn = set(revisions)
    return tuple(point for point in cell.points if point.revision in drawn)


def _rate_limits(points: Sequence[HistoryPoint]) -> tuple[float, float]:
    """Return the lowest and highest images/s that a strip shows, without the ends of long whiskers; (1, 1) if none."""
    rates = [point.images_per_s for point in points if point.images_per_s is not None]
    if not rates:
        return 1.0, 1.0
    low, high = min(rates), max(rates)
    intervals = [point.interval for point in points if point.interval is not None]
    lows = [max(interval.low, low / _CUT) for interval in intervals]
    highs = [min(interval.high, high * _CUT) for interval in intervals]
    return min([low, *lows]), max([high, *highs])


def _frame(axes: Axes, cell: CellHistory, points: Sequence[HistoryPoint], span: float, n: int) -> None:
    """Draw the frame of a strip for `n` commits: axes, the name on the left, and the newest figure on the right."""
    middle = math.prod(map(math.sqrt, _rate_limits(points)))
    low, high = middle / math.sqrt(span), middle * math.sqrt(span)
    axes.set_xlim(-0.5, n - 0.5)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.set_xticks([])
    axes.yaxis.set_minor_locator(NullLocator())
    ticks = _ticks(low, high, line_height(SMALL) / _STRIP) if any(point.side.figures for point in points) else []
    axes.set_yticks(ticks, [EngFormatter(sep="")(value) for value in ticks], size=SMALL)
    axes.spines["bottom"].set_color(FAINT)
    axes.grid(visible=False, axis="x")
    lines = wrapped(config_name(cell.cell.config), LEGEND, _NAMES - 0.1)[: int((_STRIP + 0.1) / line_height(LEGEND))]
    style = {"coordinates": "axes fraction", "size": LEGEND}
    put(axes, "\n".join(lines), (0, 0.5), (-_TICKS * 72, 0), ha="right", **style)
    newest = next((point.images_per_s for point in reversed(points) if point.images_per_s is not None), None)
    if newest is not None:
        put(axes, number(newest), (1, 0.5), (8, 0), ha="left", **style)


def _ticks(low: float, high: float, line: float) -> list[float]:
    """Return the round numbers of images/s beside a strip. They are at least `line` (a share of the strip's height)
    apart and half of `line` from its ends."""
    edge = (high / low) ** (line / 2)
    values: list[float] = []
    for bins in (3, 4, 5, 6):
        ticks = MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        values = [float(value) for value in ticks if low * edge <= value <= high / edge]
        if len(values) > 1:
            break
    too_close = any(above / below < edge**2 for below, above in itertools.pairwise(values))
    return values[::2] if too_close else values


def _draw_strip(axes: Axes, cell: CellHistory, points: Sequence[HistoryPoint], revisions: Sequence[Revision]) -> None:
    """Draw a cell's lines, whiskers, and marks whose shape tells the verdict, with words beside them."""
    places = {revision: place for place, revision in enumerate(revisions)}
    colour = fill(cell.cell.config).colour
    low, high = axes.get_ylim()
    line: list[tuple[float, float]] = []
    lines = [line]
    marks: list[tuple[float, float]] = []
    whiskers: list[tuple[float, float, float]] = []
    for point in points:
        x = places[point.revision]
        if point.broken_by:
            axes.axvline(x - 0.5, color=QUIET, linewidth=0.9, linestyle=(0, (3, 2)))
        if point.broken_by or point.images_per_s is None:
            lines.append(line := [])
        if point.images_per_s is not None:
            line.append((x, point.images_per_s))
        if point.images_per_s is not None and point.interval is not None:
            whiskers.append((x, max(point.interval.low, low), min(point.interval.high, high)))
        marks.append((x, low if point.images_per_s is None else point.images_per_s))
        _draw_mark(axes, point, marks[-1], colour)
    if whiskers:
        axes.vlines(*zip(*whiskers, strict=True), color=INK, linewidth=0.9, zorder=3)
    on_lines = []
    for line in lines:
        if len(line) > 1:
            # A darker edge, for light colours on white.
            edge = withStroke(linewidth=2.4, foreground=QUIET)
            [drawn] = axes.plot(*zip(*line, strict=True), color=colour, linewidth=1.5, zorder=2, path_effects=[edge])
            on_lines += [drawn.get_transform().transform_path(drawn.get_path()).interpolated(20).vertices]
    # Words of regressions are placed first, because later ones find less room.
    obstacles = squares_around([tuple(axes.transData.transform(mark)) for mark in marks], 8)
    avoid = np.concatenate(on_lines) if on_lines else ()
    for point, mark in sorted(
        zip(points, marks, strict=True), key=lambda pair: (not pair[0].regressed, bool(pair[0].broken_by))
    ):
        words, ink = _words(point)
        if words:
            label(axes, words, mark, obstacles, gap=12, far=True, avoid=avoid, color=ink, zorder=5)


def _draw_mark(axes: Axes, point: HistoryPoint, position: tuple[float, float], colour: str) -> None:
    """Draw the mark of a point, whose shape tells the verdict; a cross stands for a point without throughput."""
    marks = {"regression": ("v", 6.5, LOSS), "improved": ("^", 6.5, GAIN), "pass": ("o", 4.2, colour)}
    form, size, face = marks.get(point.change.verdict if point.change else "", ("o", 4.2, PAPER))
    style: dict[str, Any] = {"markerfacecolor": face, "markeredgecolor": INK, "markeredgewidth": 0.8}
    if point.images_per_s is None:
        form, size, style = "x", 5.0, {"markeredgecolor": LOSS if point.regressed else QUIET, "markeredgewidth": 1.0}
    axes.plot(*position, form, markersize=size, zorder=4, clip_on=False, **style)


def _words(point: HistoryPoint) -> tuple[str, str]:
    """Return the words beside a point and their colour: a failure, a change, or why a new line begins; else empty."""
    if point.images_per_s is None:
        words = f"{FORMS['changed status'].sign} {STATUS_BADGES[point.side.status].word}"
        return words, LOSS if point.regressed else QUIET
    if point.change is not None and point.change.verdict in _INKS and point.change.ratio is not None:
        verdict = point.change.verdict
        return f"{FORMS[verdict].signed} {change(point.change.ratio.value)}", _INKS[verdict]
    if point.broken_by:
        facets = dict.fromkeys(difference.facet for difference in point.broken_by)
        return drawable("new " + ", ".join(facets)), QUIET
    return "", INK
