"""A step's change as a waterfall chart, from the base's step over each part to the current one; and the page's section
of it. Knows nothing of how parts came about."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from tcbench.commands.diff.differences import Diff, Level, StepPart
from tcbench.commands.diff.table import CHANGE, fate, headline, notes, share, shown_parts, signed, simulation_notes
from tcbench.core.errors import SelectionError
from tcbench.show.bottlenecks import doubtful
from tcbench.show.charts.inline import tooltip
from tcbench.show.charts.page import ChartPage, name_rows, put
from tcbench.show.charts.palette import INK, OTHER, QUIET, change_patch
from tcbench.show.charts.provenance import first_panels
from tcbench.show.charts.text import LEGEND, WORDS, drawable, shortened, text_width
from tcbench.show.format import counted, milliseconds
from tcbench.show.naming import mark_simulated
from tcbench.show.page import drawings
from tcbench.show.page.page import Prose, Section, say, strong
from tcbench.show.sides import UNNAMED, Labels
from tcbench.show.tables import COUNT, SECONDS, Column, Field, Table

_ROW = 0.235
_TOP = 8
_LONGEST_LABEL = 3.2  # inches


def diff_chart(diffs: Sequence[Diff], labels: Labels = UNNAMED, *, title: str = "Why the step changed") -> Figure:
    """Draw a panel per pair of cells and level, each with its own scale. Raises SelectionError if there are none."""
    levels = [(diff, level) for diff in diffs for level in diff.levels]
    if not levels:
        raise SelectionError("no phases on either side; nothing to draw")
    panels, more = first_panels(levels, lambda panel: _heading(*panel), "--config or --bs")
    both = [side for diff in diffs for side in (diff.base, diff.current)]
    timelines = any(len(diff.levels) > 1 for diff in diffs)
    remarks = [*notes(diffs, timelines), *simulation_notes(diffs), *more]
    page = ChartPage(
        drawable(mark_simulated(title, (side.environment for side in both))),
        "Milliseconds that each part of the step adds or saves, and its share of the step's change.",
        map(drawable, [f"base: {labels.base} · current: {labels.current}", *remarks]),
    )
    page.legend([[Patch(**patch, label=words) for words, patch in _CHANGES.items()]])
    rows = [_rows(diff, level) for diff, level in panels]
    column = page.panels([_ROW * len(level_rows) for level_rows in rows])[:, 0]
    for axes, (diff, level), panel_rows in zip(column, panels, rows, strict=True):
        page.heading(axes, drawable(_heading(diff, level)), below=drawable(shortened(headline(diff), 9.0, page.room)))
        names = [shortened(drawable(row.label), LEGEND, _LONGEST_LABEL) for row in panel_rows]
        name_rows(axes, names)
        _draw(axes, panel_rows, page.room - max(text_width(name, LEGEND) for name in names))
    return page.settle()


_MAYBE = ", may be noise"
_CHANGES: dict[str, dict[str, Any]] = {
    word + _MAYBE * (not sure): change_patch(better=word == "faster", sure=sure)
    for sure in (True, False)
    for word in ("slower", "faster")
}
_STEP: dict[str, Any] = {"facecolor": OTHER, "edgecolor": "none", "linewidth": 0}


@dataclass(frozen=True)
class _PartRow:
    """A bar from `begin_s` to `end_s`, with the text beside it (`words`) and its tooltip (`says`)."""

    label: str
    begin_s: float
    end_s: float
    words: str
    style: dict[str, Any]
    says: str


def _heading(diff: Diff, level: Level) -> str:
    """Return the heading of a panel: the cell (or both cells), the level, and whose time it is."""
    both = diff.base.label, diff.current.label
    cell = both[0] if both[0] == both[1] else f"{both[0]} → {both[1]}"
    return f"{cell} · {level.name}, on the {'GPU' if level.clock == 'device' else 'host'}"


def _rows(diff: Diff, level: Level) -> list[_PartRow]:
    """Return the bars of a level: the base's step, each part, and the current step."""
    base_s, current_s = diff.step.base_s or 0.0, diff.step.current_s or 0.0
    rows = [_PartRow("base", 0.0, base_s, milliseconds(base_s), _STEP, f"base\n{milliseconds(base_s)}")]
    parts, summed_up = shown_parts(level, _TOP)
    at_s = base_s
    for part in (*parts, *filter(None, [summed_up]), *[level.rest] * level.has_rest):
        words = "  ".join(filter(None, (signed(part.change_s), share(diff, part))))
        name = f"{part.name} · {part.phase}" if part.phase and level.name != "phases" else part.name
        times = " → ".join("none" if s is None else milliseconds(s) for s in (part.base_s, part.current_s))
        says = f"{name}\n{times}\n{words}\n{fate(part)}"
        style = _CHANGES[("slower" if part.change_s > 0 else "faster") + _MAYBE * (not part.decided)]
        rows.append(_PartRow(name, at_s, at_s + part.change_s, words, style, says))
        at_s += part.change_s
    words = f"{milliseconds(current_s)}  {signed(diff.step.change_s)}"
    rows.append(_PartRow("current", 0.0, current_s, words, _STEP, f"current\n{words}"))
    return rows


def _draw(axes: Axes, rows: Sequence[_PartRow], width: float) -> None:
    """Draw all bars of a level on an axis that is `width` inches wide."""
    ends = [s * 1e3 for row in rows for s in (row.begin_s, row.end_s) if s]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    cut = low > 0.8 * high  # the axis would be mostly empty, so it does not begin at 0
    start = max(0.0, low - 0.35 * (high - low) - 0.01 * high) if cut else min(0.0, low)
    room = max(text_width(row.words, WORDS) for row in rows) + 0.2
    axes.set_xlim(start, start + (high - start) / max(1 - room / width, 0.3))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    note = " (the axis does not begin at 0)" if cut else ""
    axes.set_xlabel(f"ms per step{note} · ⟵ Better", loc="right", color=INK)
    for place, row in enumerate(rows):
        begin, end = sorted((max(row.begin_s * 1e3, start), max(row.end_s * 1e3, start)))
        [bar] = axes.barh([place + 0.5], [end - begin], 0.7, [begin], zorder=2, **row.style)
        tooltip(bar, row.says)
        put(axes, row.words, (end, place + 0.5), (3, 0), ha="left")
        if place + 1 < len(rows):
            axes.vlines(row.end_s * 1e3, place + 0.15, place + 1.85, color=QUIET, linewidth=0.7, zorder=1.5)


def diff_section(diffs: Sequence[Diff], base: str) -> Section | None:
    """Return the page's section on cells that certainly changed, or None if there are none."""
    if not diffs:
        return None
    lead = say(
        strong(counted(len(diffs), "cell")),
        f" changed (confirmed) against {base}; the parts of a step and its rest add up to the change.",
    )
    doubts = doubtful((side.label, side.bottleneck) for diff in diffs for side in (diff.base, diff.current))
    title = f"From the step of {base} to this one"
    rows = [(diff, part) for diff in diffs for level in diff.levels for part in (*level.parts, level.rest, diff.step)]
    parts = Table(_COLUMNS, rows, "Parts of the steps that changed")
    drawing = drawings.figure(lambda: diff_chart(diffs, Labels(base), title=title), title, "changes", parts, doubts)
    return Section("changes", "Why it changed", (Prose((lead,)), drawing))


_COLUMNS: tuple[Column[tuple[Diff, StepPart]], ...] = (
    Column("cell", lambda row: row[0].current.label),
    Column("part", lambda row: Field(row[1].name, strong=row[1] is row[0].step)),
    Column("base", lambda row: row[1].base_s, SECONDS),
    Column("current", lambda row: row[1].current_s, SECONDS),
    Column("change", lambda row: row[1].change_s, CHANGE),
    Column("of the change", lambda row: Field(share(*row), row[0].share(row[1])), COUNT),
    Column("remarks", lambda row: fate(row[1])),
)
