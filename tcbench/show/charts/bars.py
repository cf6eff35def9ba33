"""Bar charts of throughput as in the talk: bars in groups, such as batch sizes, and a panel per setting."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary
from tcbench.show.charts.inline import tooltip
from tcbench.show.charts.page import MARGIN, WIDTH, ChartPage, put, set_rate_axis
from tcbench.show.charts.palette import INK, PAPER, QUIET, Fill, fill
from tcbench.show.charts.provenance import first_panels, small_print, titled
from tcbench.show.charts.text import LABEL, LEGEND, WORDS, drawable, line_height, shortened, text_width
from tcbench.show.format import limits, number
from tcbench.show.naming import rate_unit
from tcbench.show.verdicts import why_missing

_AXIS = 0.85  # inches for the axis' name and its numbers
_BAR_GAP = 0.8  # between groups, in bars
_MIN_REACH = 7  # bars are no wider than with this many in a panel
_EDGE, _HATCHED_EDGE = 2.1, 4.0  # points; width of the light edge around a whisker
_MIN_PITCH = 0.105  # inches from bar to bar, so that the upright texts of missing bars do not touch


@dataclass(frozen=True)
class Bar:
    """A config's bar. `note` is written above the value; `fill` replaces the config's own fill."""

    config: str
    summary: CellSummary | None
    note: str = ""
    fill: Fill | None = None

    @property
    def name(self) -> str:
        """The name of the cell; that of the config if the cell was not run."""
        return self.summary.cell.label if self.summary else self.config

    @property
    def images_per_s(self) -> Interval | None:
        """The throughput; None if there is no number."""
        return self.summary.images_per_s if self.summary else None


BarGroup = tuple[str, Sequence[Bar]]
"""The name of a batch size or a network, and its bars."""
Panel = tuple[str, Sequence[BarGroup]]
"""The name of a setting, and its groups of bars."""


def panel_chart(
    panels: Sequence[Panel],
    rows: Sequence[Sequence[tuple[str, str]]],
    common: Sequence[str],
    title: str,
    subtitle: str,
    notes: Sequence[str] = (),
    fill_of: Callable[[str], Fill] = fill,
    axis: str = "batch size",
) -> Figure:
    """Draw a page of panels.

    `rows` are the legend's rows of (config, label), and `fill_of` gives the fill of an entry. `common` are facts of all
    panels for the small print. `axis` names what the groups differ by."""
    panels, more = first_panels(panels, lambda panel: panel[0], "--config, or name fewer files")
    cells = [bar.summary for _, groups in panels for _, bars in groups for bar in bars if bar.summary]
    small = small_print(cells, common, whiskers=True)
    if any(words.startswith("+") for row in rows for _, words in row):
        small += " · + adds to the config on its left"
    least_width = 2 * MARGIN + _AXIS + _MIN_PITCH * max(_width_in_bars(groups) for _, groups in panels)
    page = ChartPage(titled(title, cells), subtitle, [*notes, *more, small], max(WIDTH, least_width))
    page.legend([[Patch(label=words, **fill_of(config).patch) for config, words in row] for row in rows])
    height = 3.3 if len(panels) == 1 else 2.4
    column = page.panels([height] * len(panels))[:, 0]
    for axes, (name, groups) in zip(column, panels, strict=True):
        page.title_panel(axes, name)
        axes.set_ylabel(f"Better ⟶\n{rate_unit(summary.cell for summary in cells)}", color=INK)
        _draw_panel(axes, groups, page.room - _AXIS, height)
    column[-1].set_xlabel(axis)
    return page.settle()


def batch_sizes_of(summaries: Iterable[CellSummary]) -> list[int]:
    """Return the batch sizes of cells, ascending."""
    return sorted({s.cell.batch_size for s in summaries})


def cell_at(summaries: Iterable[CellSummary], config: str, batch_size: int) -> CellSummary | None:
    """Return the cell of a config and batch size; None if it was not run."""
    return next((s for s in summaries if s.cell.config == config and s.cell.batch_size == batch_size), None)


def _width_in_bars(groups: Sequence[BarGroup]) -> float:
    """Return the width of a panel, with the gaps between groups, as a multiple of a bar's width."""
    return sum(len(bars) for _, bars in groups) + _BAR_GAP * len(groups)


def _draw_panel(axes: Axes, groups: Sequence[BarGroup], width: float, height: float) -> None:
    """Draw bars on axes of this size in inches. Where a cell has no throughput, write the reason vertically."""
    reach = max(_width_in_bars(groups), _MIN_REACH)
    places, ticks, x = [], [], (reach - _width_in_bars(groups) + _BAR_GAP) / 2
    for _, bars in groups:
        ticks.append(x + len(bars) / 2)
        places += [(x + 0.5 + i, bar) for i, bar in enumerate(bars)]
        x += len(bars) + _BAR_GAP
    intervals = [bar.images_per_s for _, bar in places if bar.images_per_s]
    ceiling = _ceiling(intervals)
    words_height = 0.12 + line_height(WORDS) * (1 + max(len(bar.note.splitlines()) for _, bar in places))
    axes.set_xlim(0, reach)
    axes.set_xticks(ticks, [name for name, _ in groups], size=LABEL + 1, color=INK)
    axes.grid(visible=False, axis="x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", labelsize=LABEL)
    set_rate_axis(axes.yaxis, ceiling / (1 - words_height / height))
    pitch, point = width / reach, ceiling / (height - words_height) / 72
    _draw_measured(axes, [(x, bar, bar.images_per_s) for x, bar in places if bar.images_per_s], ceiling, pitch, point)
    for x, bar in places:
        if bar.images_per_s is None:
            size = min(LEGEND, pitch * 72 / 1.3)
            reason = shortened(drawable(why_missing(bar.summary)), size, min(2.4, height - 0.2))
            axes.hlines(0, x - 0.43, x + 0.43, color=QUIET, linewidth=1.6, clip_on=False)
            words = put(axes, reason, (x, 0), (0, 4), size=size, rotation=90, va="bottom", color=QUIET)
            tooltip(words, f"{bar.name}\n{why_missing(bar.summary)}")


def _ceiling(intervals: Sequence[Interval]) -> float:
    """Return the end of the highest bar or whisker, at most 1.5 times the highest bar: longer whiskers are cut. 1.0 if
    there are no bars."""
    if not intervals:
        return 1.0
    highest = max(interval.value for interval in intervals)
    return max(min(interval.high, 1.5 * highest) for interval in intervals)


def _draw_measured(
    axes: Axes, bars: Sequence[tuple[float, Bar, Interval]], ceiling: float, pitch: float, point: float
) -> None:
    """Draw bars with whiskers and, where they fit, values. `pitch` is the distance of bars in inches, and `point` the
    images/s that one typographic point of height stands for."""
    if not bars:
        return
    fills = [bar.fill or fill(bar.config) for _, bar, _ in bars]
    xs, values = [x for x, _, _ in bars], [interval.value for _, _, interval in bars]
    below = [interval.value - interval.low for _, _, interval in bars]
    above = [min(interval.high, ceiling) - interval.value for _, _, interval in bars]
    whiskers: dict[str, Any] = {"yerr": [below, above], "capsize": min(3.5, 16 * pitch)}
    # A light edge makes whiskers visible on dark bars, and a wider one on hatches, whose lines look like whiskers.
    light: dict[str, Any] = {"ecolor": PAPER, "capsize": whiskers["capsize"], "capthick": _EDGE, "zorder": 2.9}
    for hatched in {bool(bar_fill.hatch): None for bar_fill in fills}:
        indices = [n for n, bar_fill in enumerate(fills) if bool(bar_fill.hatch) == hatched]
        centres, heights, *ends = ([column[n] for n in indices] for column in (xs, values, below, above))
        axes.errorbar(centres, heights, ends, fmt="none", elinewidth=_HATCHED_EDGE if hatched else _EDGE, **light)
    container = axes.bar(
        xs,
        values,
        0.86,
        error_kw={"elinewidth": 0.9, "capthick": 0.9, "zorder": 3},
        ecolor=INK,
        color=[bar_fill.colour for bar_fill in fills],
        hatch=[bar_fill.hatch for bar_fill in fills],
        edgecolor=[bar_fill.edge_colour for bar_fill in fills],
        linewidth=0,
        zorder=2,
        **whiskers,
    )
    cut = [x for x, _, interval in bars if interval.high > ceiling]
    if cut:
        axes.plot(cut, [ceiling] * len(cut), "^", markersize=4, color=INK, zorder=3, clip_on=False)
    words = ["\n".join(filter(None, [bar.note, number(interval.value)])) for _, bar, interval in bars]
    fits = [max(text_width(line, WORDS) for line in text.split("\n")) <= 0.98 * pitch for text in words]
    for x, value, rise, text, fit in zip(xs, values, above, words, fits, strict=True):
        if fit:  # placed above the whisker, so as not to hide it
            put(axes, text, (x, value), (0, rise / point + 2.5), size=WORDS, va="bottom", linespacing=1.05)
    for patch, (_, bar, interval) in zip(container, bars, strict=True):
        unit = bar.summary.cell.unit if bar.summary else ""
        tooltip(patch, f"{bar.name}\n{number(interval.value)} {unit}/s ({limits(interval)})")
