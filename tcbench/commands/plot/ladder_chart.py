"""The ladder chart: what each rung buys, as waterfalls; and the section of the page with the table behind them.

Owns the blocks of a ladder's waterfalls and their common scale. Knows nothing of bars by batch size, and leaves to the
analysis which configs make a ladder.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tcbench.analysis.summary import CellSummary
from tcbench.commands.plot.ladder import Climb, DerivedLadder, LadderStep, climbs, derive
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
from tcbench.show.page.wording import why
from tcbench.show.tables import COUNT, FACTOR, RATE, Column, Table
from tcbench.show.verdicts import why_missing

TITLE = "What each rung buys"
_ROW = 0.235
_ABREAST = 4
_SUBTITLE = "gained or lost by each rung, and the factor over the step before. Each ladder has its own scale."


def ladder_chart(
    summaries: Sequence[CellSummary], ladders: Sequence[DerivedLadder] | None = None, *, title: str = TITLE
) -> Figure:
    """Each ladder at each batch size as a waterfall: from the base, what every rung adds or takes, to the top. A row
    per ladder (and setting), a column per batch size, one scale per setting. Without `ladders`, those that the results
    hold. Raises SelectionError when no config adds rungs to another."""
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
    beside = max(text_width(label, LEGEND) for block in blocks for label in block.labels)
    width = (page.room - beside - 0.15) / columns - 0.2
    for block, row in zip(blocks, grid, strict=True):
        scale = _LadderScale.of(block.all_climbs, width)
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
    """Waterfalls of one ladder, side by side; `all_climbs` share its scale."""

    title: str
    all_climbs: Sequence[Climb]
    climbs: Sequence[Climb]

    @property
    def labels(self) -> list[str]:
        """A name per step: the base's own, then what each adds to the config below it."""
        configs = [step.config.split("+") for step in self.climbs[0].steps]
        added = [[r for r in now if r not in before] for before, now in itertools.pairwise(configs)]
        return [*map(config_name, ("+".join(configs[0]), *("+" + "+".join(rungs) for rungs in added), "in all"))]


def _row_title(ladder: str, setting: str) -> str:
    return drawable(f"{ladder} ladder") + (f" · {setting}" if setting else "")


@dataclass(frozen=True)
class _LadderScale:
    """The value axis of a ladder's panels, all alike: wide enough for the longest bar and the words beside it."""

    width: float
    highest: float
    images_per_s_per_inch: float

    @staticmethod
    def of(climbed: Sequence[Climb], width: float) -> _LadderScale:
        values = [step.after.value for climb in climbed for step in climb.steps if step.after]
        words = [_step_words(step) for climb in climbed for step in climb.steps if step.after]
        longest = max(text_width(text, WORDS) for text in [*words, *map(_total, climbed), "100"])
        highest = max(values, default=1.0)
        return _LadderScale(width, highest, highest / max(width - longest - 0.1, 0.3 * width))


def _draw_waterfall(axes: Axes, climb: Climb, scale: _LadderScale) -> None:
    """Base, one bar per step between its before and after, and the top; each with its words on the right."""
    set_rate_axis(axes.xaxis, scale.images_per_s_per_inch * scale.width)
    ticks = MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]).tick_values(0, scale.highest)
    axes.set_xticks([tick for tick in ticks if 0 <= tick <= scale.highest * 1.02])
    level = 0.0
    for row, step in enumerate(climb.steps):
        if step.after is None:
            _place(axes, drawable(_step_words(step)), level, row, scale, QUIET)
            continue
        level = step.after.value
        start, end = sorted((step.before.value if step.before else 0.0, level))
        figures = f"{number(level)} {climb.setting[1].unit}/s\n{_step_words(step)}"
        style = fill(step.config).patch
        if step.before and step.ratio:
            style = change_patch(better=step.ratio.value >= 1, sure=not step.unsure)
        _draw_bar(axes, row, start, end, style, f"{step.config}, batch size {climb.batch_size}\n{figures}")
        _place(axes, _step_words(step), end, row, scale, QUIET if step.unsure else INK)
        below = next((j for j in range(row + 1, len(climb.steps)) if climb.steps[j].after), len(climb.steps))
        axes.vlines(level, row + 0.15, below + 0.85, color=QUIET, linewidth=0.7, zorder=1.5)
    if climb.top:
        words = f"{climb.top.config}, batch size {climb.batch_size}\n{_total(climb)}"
        style = fill(climb.top.config).patch | ({"alpha": 0.4} if climb.unsure else {})
        _draw_bar(axes, len(climb.steps), 0.0, level, style, words)
        _place(axes, _total(climb), level, len(climb.steps), scale, QUIET if climb.unsure else INK)


def _draw_bar(axes: Axes, row: int, start: float, end: float, style: dict[str, Any], says: str) -> None:
    [bar] = axes.barh([row + 0.5], [end - start], 0.7, [start], zorder=2, **style)
    tooltip(bar, says)


def _step_words(step: LadderStep) -> str:
    """ "+120  1.32×", the base's images/s, or why there is no number."""
    if step.after is None:
        return why_missing(step.summary)
    if step.before is None or step.ratio is None:
        return number(step.after.value)
    change = step.after.value - step.before.value
    size = number(abs(change), as_part_of=max(step.before.value, step.after.value))
    sign = ("+" if change >= 0 else "−") if size.strip("0.") else "±"
    return f"{sign}{size}  {factor(step.ratio.value)}"


def _total(climb: Climb) -> str:
    """Images/s at the top and the factor over the base."""
    base, top = climb.base, climb.top
    if base is None or top is None or base.after is None or top.after is None:
        return ""
    total = number(top.after.value)
    return f"{total}  {factor(climb.total.value)}" if climb.total else total


def _place(axes: Axes, text: str, value: float, row: int, scale: _LadderScale, colour: str) -> None:
    """Words right of a value; left of it, or shortened, where they do not fit."""
    at = value / scale.images_per_s_per_inch
    room = scale.width - at - 0.05
    needed = text_width(text, WORDS)
    if needed > room and needed <= at - 0.05:
        put(axes, text, (value, row + 0.5), (-3, 0), ha="right", color=colour)
    else:
        put(axes, shortened(text, WORDS, room), (value, row + 0.5), (3, 0), ha="left", color=colour)


_HOW = "A bar runs from the throughput before its rung to those with it; the factor is over the step before."


def ladder_section(climbs: Sequence[Climb], settings: Settings) -> Section | None:
    """Every ladder of every setting of which two configs or more ran; None where there is none."""
    # Of all settings together, as the climbs are: one of them alone may give its ladders other names.
    known = derive([summary for part in settings.parts for summary in part.summaries])

    def figure(part: SettingCells) -> AnyBlock | None:
        here = [climb for climb in climbs if climb.setting == part.setting]
        climbed = {climb.ladder for climb in here if climb.top is not climb.base}
        ladders = grouped((climb.ladder, climb) for climb in here if climb.ladder in climbed)
        if not ladders:
            return None
        longest = sorted(ladders, key=lambda name: -len(ladders[name][0].steps))[:MOST_LADDERS]
        drawn = [replace(one, configs=one.configs[:MOST_DRAWN]) for one in known if one.name in longest]
        shown = [summary for cells in [*part.by_batch_size.values()][:MOST_DRAWN] for summary in cells]
        of_ladder = max(len(climbs[0].steps) for climbs in ladders.values())
        notes = [_HOW, *left_out({"configs of a ladder": of_ladder, "batch sizes": len(part.by_batch_size)})]
        if len(ladders) > MOST_LADDERS:
            many = counted(len(ladders), "ladder")
            notes.append(f"The longest {MOST_LADDERS} of {many} are drawn; the table has all of them.")
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
    Column("after", lambda row: row[1].after or why(row[1].summary), RATE),
    Column("ladder", lambda row: row[0].ladder, wraps=True),
)


def adds(step: LadderStep) -> str:
    """ "+ nhwc + fused"; the config itself where it adds nothing that is known."""
    return "+ " + " + ".join(step.added) if step.added else step.config
