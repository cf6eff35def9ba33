"""The talk's chart: images/s in bars grouped by batch size, one panel per setting.

Owns bars, their groups and panels, and the page made of them. Knows nothing of the talk's slides: what they compare
comes in as groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary
from tcbench.show.charts.axes import annotate, size_in_inches, style
from tcbench.show.charts.legend import Legend, legend_rows
from tcbench.show.charts.palette import INK, QUIET, Fill, fill
from tcbench.show.charts.provenance import Setting, by_setting, provenance_of, small_print
from tcbench.show.charts.sheet import MARGIN, WIDTH, Footer, Header, Sheet
from tcbench.show.charts.text import (
    LABEL,
    LEGEND,
    WORDS,
    drawable,
    font,
    heading,
    line_height,
    shortened,
    text_width,
    wrapped,
)
from tcbench.show.charts.wording import why_missing
from tcbench.show.format import number

_AXIS_LEFT = 1.16  # room for the arrow, the axis' name and its numbers
_BAR_GAP = 0.8  # between groups, in bars
_MIN_REACH = 7  # bars are no wider than if there were so many
_MIN_PITCH = 0.105  # inches from bar to bar; below, labels in place of bars would touch


@dataclass(frozen=True)
class Bar:
    """One place in a group: a config and what became of it. `note` stands above the value; `look` fills the bar where
    the config does not."""

    config: str
    summary: CellSummary | None
    note: str = ""
    look: Fill | None = None

    @property
    def images_per_s(self) -> Interval | None:
        return self.summary.images_per_s if self.summary else None


@dataclass(frozen=True)
class Group:
    """The bars of one batch size."""

    batch_size: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Panel:
    """The bars of one setting, grouped by batch size, under a name."""

    name: str
    groups: tuple[Group, ...]


def throughput_chart(
    summaries: Sequence[CellSummary],
    *,
    title: str | None = None,
    subtitle: str = "",
    configs: Sequence[str] | None = None,
) -> Figure:
    """The talk's chart: images/s in bars grouped by batch size, a colour per config, one panel per setting.

    `configs` chooses and orders; a cell that gave no number says why in its place. Without a title, the scenario's
    name. Raises SelectionError when there is nothing to draw.
    """
    configs = list(dict.fromkeys(s.cell.config for s in summaries) if configs is None else configs)
    chosen = [s for s in summaries if s.cell.config in configs]
    settings = by_setting(chosen, f"results of {', '.join(configs)}" if configs else "results")

    def groups(here: Sequence[CellSummary]) -> Iterable[Group]:
        for batch_size in batch_sizes_of(here):
            yield Group(batch_size, tuple(Bar(c, cell_at(here, c, batch_size)) for c in configs))

    return bar_chart(settings, groups, legend_rows(configs), title or chosen[0].cell.scenario, subtitle)


def bar_chart(
    settings: dict[Setting, list[CellSummary]],
    groups: Callable[[Sequence[CellSummary]], Iterable[Group]],
    rows: Sequence[Sequence[tuple[str, str]]],
    title: str,
    subtitle: str,
    notes: Sequence[str] = (),
) -> Figure:
    """A page of panels, one per setting, each with the groups that `groups` makes of the setting's summaries.

    `rows` are the legend's and hold (config, words); `notes` stand above the small print.
    """
    provenance = provenance_of(settings)
    panels = [Panel(provenance.names[setting], tuple(groups(here))) for setting, here in settings.items()]
    return panel_chart(panels, rows, provenance.common, title, subtitle, notes)


def panel_chart(
    panels: Sequence[Panel],
    rows: Sequence[Sequence[tuple[str, str]]],
    common: Sequence[str],
    title: str,
    subtitle: str,
    notes: Sequence[str] = (),
    look: Callable[[str], Fill] = fill,
) -> Figure:
    """A page of panels. `rows` are the legend's and hold (config, words), `look` fills its swatches; `common` is what
    the small print says of all panels."""
    everything = [bar.summary for panel in panels for group in panel.groups for bar in group.bars if bar.summary]
    pitches = max(_pitches(panel.groups) for panel in panels)
    width = max(WIDTH, _AXIS_LEFT + MARGIN + _MIN_PITCH * pitches)

    header = Header.of(heading(title, everything[0].cell.scenario), subtitle, width)
    legend = Legend.of(rows, width, look)
    small = small_print(everything, common, whiskers=True)
    if legend.cumulative:
        small += " · + adds to the config on its left"
    footer = Footer.of([*notes, small], width)
    names = [wrapped(panel.name, LABEL, width - 2 * MARGIN, bold=True) for panel in panels]
    axes_height = 3.3 if len(panels) == 1 else 2.4
    name_heights = [0.2 + len(name) * line_height(LABEL) if name else 0.1 for name in names]
    panel_heights = [name_height + axes_height + 0.26 for name_height in name_heights]
    height = 0.3 + header.height + 0.14 + legend.height + sum(panel_heights) + 0.3 + footer.height + 0.22

    sheet = Sheet(width, height)
    y = header.draw(sheet, 0.3) + 0.14
    y = legend.draw(sheet, y)
    for panel, name, name_height, panel_height in zip(panels, names, name_heights, panel_heights, strict=True):
        sheet.lines(y + 0.18, name, LABEL, bold=True)
        top = y + name_height
        axes = sheet.axes(_AXIS_LEFT, top, width - _AXIS_LEFT - MARGIN, axes_height)
        _draw_bars(axes, panel.groups)
        middle = top + axes_height / 2
        sheet.text(0.6, middle, "images/s", LABEL, rotation=90, va="center", ha="center", colour=QUIET)
        word = text_width("Better", LABEL) + 0.1
        length = min(0.75, axes_height / 3)
        sheet.text(
            0.4, middle + (word + length) / 2, "Better", LABEL, rotation=90, va="bottom", ha="center", colour=QUIET
        )
        bottom = middle + (length - word) / 2
        sheet.better((0.4, bottom), (0.4, bottom - length))
        y += panel_height
    centre = (_AXIS_LEFT + width - MARGIN) / 2
    sheet.text(centre, y, "batch size", LABEL, ha="center", colour=QUIET)
    footer.draw(sheet, y + 0.3)
    return sheet.figure


def batch_sizes_of(summaries: Iterable[CellSummary]) -> list[int]:
    """Ascending."""
    return sorted({s.cell.batch_size for s in summaries})


def cell_at(summaries: Iterable[CellSummary], config: str, batch_size: int) -> CellSummary | None:
    """One setting's cell, if it was run."""
    return next((s for s in summaries if s.cell.config == config and s.cell.batch_size == batch_size), None)


def _pitches(groups: Sequence[Group]) -> float:
    """Width of a panel in bars."""
    return sum(len(group.bars) for group in groups) + _BAR_GAP * len(groups)


def _draw_bars(axes: Axes, groups: Sequence[Group]) -> None:
    reach = max(_pitches(groups), _MIN_REACH)
    width, height = size_in_inches(axes)
    bars = [bar for group in groups for bar in group.bars]
    ceiling = _ceiling([bar.images_per_s for bar in bars if bar.images_per_s])
    words_height = 0.12 + line_height(WORDS) * (1 + max(len(bar.note.splitlines()) for bar in bars))
    style(axes, "y", ceiling / (1 - words_height / height))
    axes.set_xlim(0, reach)
    x = (reach - _pitches(groups) + _BAR_GAP) / 2
    ticks = []
    for group in groups:
        ticks.append(x + len(group.bars) / 2)
        for bar in group.bars:
            _draw_bar(axes, x + 0.5, bar, width / reach, ceiling)
            x += 1
        x += _BAR_GAP
    axes.set_xticks(ticks, [str(group.batch_size) for group in groups], fontproperties=font(LABEL + 1))
    axes.tick_params(axis="x", length=0, pad=4)


def _ceiling(intervals: Sequence[Interval]) -> float:
    """The end of the highest bar or whisker, but for whiskers out of all proportion, which are cut there."""
    if not intervals:
        return 1.0
    highest = max(interval.value for interval in intervals)
    return max(min(interval.high, 1.5 * highest) for interval in intervals)


def _draw_bar(axes: Axes, x: float, bar: Bar, pitch: float, ceiling: float) -> None:
    """A bar with its whisker and, where there is room, its value; or, upright in its place, why there is none."""
    interval = bar.images_per_s
    if interval is None:
        size = min(LEGEND, pitch * 72 / 1.3)
        why = shortened(drawable(why_missing(bar.summary)), size, min(2.4, size_in_inches(axes)[1] - 0.2))
        axes.plot([x - 0.43, x + 0.43], [0, 0], color=QUIET, linewidth=1.6, solid_capstyle="butt", clip_on=False)
        annotate(axes, why, (x, 0), (0, 4), size, rotation=90, va="bottom", colour=QUIET)
        return
    axes.bar(x, interval.value, width=0.86, zorder=2, **(bar.look or fill(bar.config)).patch)
    end = min(interval.high, ceiling)
    cap = min(0.12, 0.045 / pitch)
    caps = [interval.low, interval.high] if interval.high <= ceiling else [interval.low]
    for colour, linewidth, zorder in (("white", 2.1, 2.9), (INK, 0.9, 3)):  # a light edge, for whiskers on dark bars
        look: dict[str, Any] = {"color": colour, "linewidth": linewidth, "zorder": zorder, "solid_capstyle": "butt"}
        axes.plot([x, x], [interval.low, end], **look)
        for at in caps:
            axes.plot([x - cap, x + cap], [at, at], **look)
    if interval.high > ceiling:
        axes.plot([x], [ceiling], marker="^", markersize=4, color=INK, zorder=3, clip_on=False)
    words = "\n".join(filter(None, [bar.note, number(interval.value)]))
    if max(text_width(line, WORDS) for line in words.split("\n")) <= pitch * 0.98:
        annotate(axes, words, (x, end), (0, 4 if end < interval.high else 2.5), WORDS, va="bottom", linespacing=1.05)
