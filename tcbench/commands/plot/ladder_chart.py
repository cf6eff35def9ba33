"""The ladder chart, which shows the gain of each rung as waterfalls, and the page's section with its table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tcbench.analysis.summary import CellSummary
from tcbench.commands.plot.ladder import Climb, DerivedLadder, LadderStep, climbs, derive_ladders
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.show.charts.inline import tooltip
from tcbench.show.charts.page import ChartPage, name_rows, put, set_rate_axis
from tcbench.show.charts.palette import INK, QUIET, change_patch, fill
from tcbench.show.charts.provenance import by_setting, first_panels, provenance_of, small_print, titled
from tcbench.show.charts.text import LABEL, LEGEND, WORDS, config_name, drawable, shortened, text_width
from tcbench.show.format import counted, factor, limits, number
from tcbench.show.naming import rate_unit
from tcbench.show.page import drawings
from tcbench.show.page.page import AnyBlock, Section
from tcbench.show.page.settings import MOST_DRAWN, MOST_LADDERS, SettingCells, Settings, left_out
from tcbench.show.page.wording import short_reason
from tcbench.show.tables import COUNT, FACTOR, RATE, Column, Table
from tcbench.show.verdicts import why_missing

TITLE = "The gain of each rung"
_ROW = 0.235
_ABREAST = 4
_SUBTITLE = "gained or lost by each rung, and the factor over the step before. Each ladder has its own scale."


def ladder_chart(
    summaries: Sequence[CellSummary], ladders: Sequence[DerivedLadder] | None = None, *, title: str = TITLE
) -> Figure:
    """Draw each ladder as a waterfall from the base to the top, with a row per ladder and a column per batch size.

    Without `ladders`, derive them from the results. Raises SelectionError if no config adds rungs to another."""
    settings = by_setting(summaries)
    all_climbs = climbs(summaries, ladders)
    if not all_climbs:
        raise SelectionError("no ladder in these results: no config adds rungs to another")
    settings = {setting: settings[setting] for setting in dict.fromkeys(climb.setting for climb in all_climbs)}
    provenance = provenance_of(settings)
    drawn, more = first_panels(all_climbs, lambda climb: f"{climb.ladder} at batch size {climb.batch_size}", "--config")
    rows = grouped(((climb.setting, climb.ladder), climb) for climb in drawn)
    blocks = [
        _LadderBlock(_row_title(ladder, provenance.names[setting]), rows[setting, ladder], group[i : i + _ABREAST])
        for (setting, ladder), group in rows.items()
        for i in range(0, len(group), _ABREAST)
    ]
    small = small_print(summaries, provenance.common, whiskers=False)
    unit = rate_unit(summary.cell for summary in summaries)
    page = ChartPage(titled(title, summaries), f"{unit.capitalize()} {_SUBTITLE}", [*more, small])
    columns = max(len(block.climbs) for block in blocks)
    grid = page.panels([_ROW * len(block.labels) for block in blocks], columns)
    labels_width = max(text_width(label, LEGEND) for block in blocks for label in block.labels)
    width = (page.room - labels_width - 0.15) / columns - 0.2
    for block, row in zip(blocks, grid, strict=True):
        scale = _LadderScale.fit(block.all_climbs, width)
        page.heading(row[0], shortened(block.title, LABEL + 1, page.room) + "\n")
        for axes in row[len(block.climbs) :]:
            axes.remove()
        for axes, climb in zip(row, block.climbs, strict=False):
            axes.set_title(f"batch size {climb.batch_size}", loc="left", color=QUIET)
            name_rows(axes, block.labels)
            axes.tick_params(axis="y", labelleft=axes is row[0])
            _draw_waterfall(axes, climb, scale)
    grid[-1][len(blocks[-1].climbs) - 1].set_xlabel(f"{unit} · Better ⟶", loc="right", color=INK)
    return page.settle()


@dataclass(frozen=True)
class _LadderBlock:
    """Waterfalls of one ladder, side by side. All blocks of the ladder share one scale, that of `all_climbs`."""

    title: str
    all_climbs: Sequence[Climb]
    climbs: Sequence[Climb]

    @property
    def labels(self) -> list[str]:
        """A label per row: the base's name, then the rungs that each config adds, then the total."""
        configs = [step.config.split("+") for step in self.climbs[0].steps]
        added = [[r for r in config if r not in below] for below, config in itertools.pairwise(configs)]
        return [*map(config_name, ("+".join(configs[0]), *("+" + "+".join(rungs) for rungs in added), "total"))]


def _row_title(ladder: str, setting: str) -> str:
    """Title a row of waterfalls by its ladder and setting."""
    return drawable(f"{ladder} ladder") + (f" · {setting}" if setting else "")


@dataclass(frozen=True)
class _LadderScale:
    """The common value axis of a ladder's panels of `width` inches, with room for the longest bar and its text."""

    width: float
    highest: float
    images_per_s_per_inch: float

    @staticmethod
    def fit(climbed: Sequence[Climb], width: float) -> _LadderScale:
        """Return the scale that fits all bars of these climbs and their texts into panels of this width in inches."""
        values = [step.after.value for climb in climbed for step in climb.steps if step.after]
        words = [_step_words(step) for climb in climbed for step in climb.steps if step.after]
        longest = max(text_width(text, WORDS) for text in [*words, *map(_total, climbed), "100"])
        highest = max(values, default=1.0)
        return _LadderScale(width, highest, highest / max(width - longest - 0.1, 0.3 * width))


def _draw_waterfall(axes: Axes, climb: Climb, scale: _LadderScale) -> None:
    """Draw a row with the base, a row per step with a bar from the throughput before it to that after it, and a row
    with the top. Each row has its figures as text and tooltip."""
    set_rate_axis(axes.xaxis, scale.images_per_s_per_inch * scale.width)
    ticks = MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]).tick_values(0, scale.highest)
    axes.set_xticks([tick for tick in ticks if 0 <= tick <= scale.highest * 1.02])
    level = 0.0
    for row, step in enumerate(climb.steps):
        if step.after is None:
            _write(axes, drawable(_step_words(step)), level, row, scale, QUIET)
            continue
        level = step.after.value
        start, end = sorted((step.before.value if step.before else 0.0, level))
        figures = f"{number(level)} {climb.setting[1].unit}/s\n{_step_words(step)}"
        style = fill(step.config).patch
        if step.before and step.ratio:
            style = change_patch(better=step.ratio.value >= 1, sure=not step.unsure)
        _draw_bar(axes, row, start, end, style, f"{step.config}, batch size {climb.batch_size}\n{figures}")
        _write(axes, _step_words(step), end, row, scale, QUIET if step.unsure else INK)
        below = next((j for j in range(row + 1, len(climb.steps)) if climb.steps[j].after), len(climb.steps))
        axes.vlines(level, row + 0.15, below + 0.85, color=QUIET, linewidth=0.7, zorder=1.5)
    if climb.top:
        words = f"{climb.top.config}, batch size {climb.batch_size}\n{_total(climb)}"
        style = fill(climb.top.config).patch | ({"alpha": 0.4} if climb.unsure else {})
        _draw_bar(axes, len(climb.steps), 0.0, level, style, words)
        _write(axes, _total(climb), level, len(climb.steps), scale, QUIET if climb.unsure else INK)


def _draw_bar(axes: Axes, row: int, start: float, end: float, style: dict[str, Any], tooltip_text: str) -> None:
    """Draw one bar of a waterfall with its tooltip."""
    [bar] = axes.barh([row + 0.5], [end - start], 0.7, [start], zorder=2, **style)
    tooltip(bar, tooltip_text)


def _step_words(step: LadderStep) -> str:
    """Return the text of a step: "+120  1.32×", the throughput of the base, or the reason why there is no number."""
    if step.after is None:
        return why_missing(step.summary)
    if step.before is None or step.ratio is None:
        return number(step.after.value)
    change = step.after.value - step.before.value
    size = number(abs(change), as_part_of=max(step.before.value, step.after.value))
    sign = ("+" if change >= 0 else "−") if size.strip("0.") else "±"  # the change rounds to 0
    return f"{sign}{size}  {factor(step.ratio.value)}"


def _total(climb: Climb) -> str:
    """Return the text of the last row: the top's throughput and its factor over the base; empty if nothing was
    measured."""
    base, top = climb.base, climb.top
    if base is None or top is None or base.after is None or top.after is None:
        return ""
    total = number(top.after.value)
    return f"{total}  {factor(climb.total.value)}" if climb.total else total


def _write(axes: Axes, text: str, value: float, row: int, scale: _LadderScale, colour: str) -> None:
    """Write a text to the right of a value, to the left if it fits only there, or shortened to the right if nowhere."""
    x = value / scale.images_per_s_per_inch
    room = scale.width - x - 0.05
    needed = text_width(text, WORDS)
    if needed > room and needed <= x - 0.05:
        put(axes, text, (value, row + 0.5), (-3, 0), ha="right", color=colour)
    else:
        put(axes, shortened(text, WORDS, room), (value, row + 0.5), (3, 0), ha="left", color=colour)


_HOW = "A bar runs from the throughput before its rung to the throughput with it; the factor is over the step before."


def ladder_section(climbs: Sequence[Climb], settings: Settings) -> Section | None:
    """Return the page's section on the ladders of which at least two configs ran; None if there are none."""
    # Derive ladders from all settings together, as for the climbs, so that their names are the same.
    all_ladders = derive_ladders([summary for part in settings.parts for summary in part.summaries])

    def figure(part: SettingCells) -> AnyBlock | None:
        """Return the chart of one setting's longest ladders; None if no ladder has results of two configs."""
        setting_climbs = [climb for climb in climbs if climb.setting == part.setting]
        climbed = {climb.ladder for climb in setting_climbs if climb.top is not climb.base}
        ladders = grouped((climb.ladder, climb) for climb in setting_climbs if climb.ladder in climbed)
        if not ladders:
            return None
        longest = sorted(ladders, key=lambda name: -len(ladders[name][0].steps))[:MOST_LADDERS]
        drawn = [
            replace(ladder, configs=ladder.configs[:MOST_DRAWN]) for ladder in all_ladders if ladder.name in longest
        ]
        shown = [summary for cells in [*part.by_batch_size.values()][:MOST_DRAWN] for summary in cells]
        n_configs = max(len(climbs[0].steps) for climbs in ladders.values())
        notes = [_HOW, *left_out({"configs of a ladder": n_configs, "batch sizes": len(part.by_batch_size)})]
        if len(ladders) > MOST_LADDERS:
            total = counted(len(ladders), "ladder")
            notes.append(f"The longest {MOST_LADDERS} of {total} are drawn; the table has all of them.")
        title = part.titled(f"{part.setting.cell.unit.capitalize()} per second gained or lost by each rung")
        rows = [(climb, step) for climbs in ladders.values() for climb in climbs for step in climb.steps]
        rungs = Table(_COLUMNS, rows, part.titled(TITLE))
        return drawings.setting_block(part, lambda: ladder_chart(shown, drawn, title=""), title, "rungs", rungs, notes)

    blocks = settings.blocks(figure)
    return Section("rungs", TITLE, blocks) if blocks else None


_COLUMNS: tuple[Column[tuple[Climb, LadderStep]], ...] = (
    Column("batch", lambda row: row[0].batch_size, COUNT),
    Column("config", lambda row: row[1].config),
    Column("adds", lambda row: adds(row[1]), wraps=True),
    Column("factor", lambda row: row[1].ratio, FACTOR),
    Column("95% interval", lambda row: limits(row[1].ratio, factor)),
    Column("before", lambda row: row[1].before, RATE),
    Column("after", lambda row: row[1].after or short_reason(row[1].summary), RATE),
    Column("ladder", lambda row: row[0].ladder, wraps=True),
)


def adds(step: LadderStep) -> str:
    """Return the rungs that a step adds, "+ nhwc + fused"; the config if it adds none."""
    return "+ " + " + ".join(step.added) if step.added else step.config
