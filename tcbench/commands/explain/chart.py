"""A chart of the host's time in a step, with stacked phases and the verdict for each config and batch size; and the
page's section on what limits each cell and what to try next."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from tcbench.analysis.bottleneck import VERDICTS, Bottleneck, BoundVerdict
from tcbench.analysis.explanation import Explanation
from tcbench.commands.explain.table import (
    advice_columns,
    notes,
    rung_change,
    slower_rungs,
    speed_columns,
    stage_columns,
)
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped, summed
from tcbench.show.bottlenecks import limit_sentence, limit_words
from tcbench.show.charts.page import ChartPage, boxes, name_rows, put
from tcbench.show.charts.palette import INK, QUIET, phase_colour
from tcbench.show.charts.provenance import first_panels, provenance_of, small_print
from tcbench.show.charts.text import LEGEND, config_name, drawable, shortened, text_width
from tcbench.show.format import counted, factor, limits, milliseconds, number
from tcbench.show.naming import mark_simulated
from tcbench.show.page import drawings
from tcbench.show.page.page import AnyBlock, Paragraph, Piece, Points, Section, say, strong
from tcbench.show.page.settings import SettingCells, Settings, left_out
from tcbench.show.page.wording import kept_together, spaced
from tcbench.show.tables import COUNT, Badge, Column, Table, config_in_ladder
from tcbench.show.verdicts import STATUS_BADGES

MOST_PHASES = 12
"""Limit of phases with their own colour and entry in the legend; all others are drawn as one block."""

_ABREAST = 3
_ROW = 0.235
_LONGEST_LABEL, _VERDICT = 2.4, 0.85  # inches


def bottleneck_chart(explanations: Sequence[Explanation]) -> Figure:
    """Draw a panel per batch size, with a row per config, for the cells of one setting.

    A row shows the phases on the host in ms per step, a mark at the step time of the timed pass, and the verdict. All
    panels share one scale. Raises SelectionError if no cell has a profiled pass."""
    bottlenecks = [cell.bottleneck for cell in explanations if cell.bottleneck]
    if not bottlenecks:
        raise SelectionError("no profiled pass in these results; nothing to draw")
    cells = {(cell.summary.cell.config, cell.summary.cell.batch_size): cell for cell in explanations}
    batch_sizes, omitted = first_panels(
        sorted({batch_size for _, batch_size in cells}), lambda batch_size: f"batch size {batch_size}", "--bs"
    )
    configs = {cell.summary.cell.config: cell.summary.cell for cell in explanations}
    previous = [None, *configs.values()]
    names = [config_name(config_in_ladder(*pair)) for pair in zip(configs.values(), previous, strict=False)]
    labels = [shortened(name, LEGEND, _LONGEST_LABEL) for name in names]

    summaries = [cell.summary for cell in explanations]
    common = provenance_of({summaries[0].setting: summaries}).common
    passes = sorted({"timed" if bottleneck.phases_are_timed else "profiled" for bottleneck in bottlenecks})
    key = f"bars: phases on the host, of the {' or the '.join(passes)} pass · mark: the step of the timed pass"
    facts = small_print(summaries, common, whiskers=True).split(" · ")
    conditions = " · ".join(fact for fact in facts if not fact.startswith("whisker:"))
    title = mark_simulated("", (summary.environment for summary in summaries))
    page = ChartPage(title, "", [*omitted, key, conditions])
    names, rest = _legend(bottlenecks)
    page.legend([[Patch(facecolor=phase_colour(name), label=drawable(name)) for name in (*names, *rest)]])
    columns = min(_ABREAST, len(batch_sizes))
    grid = page.panels([_ROW * len(labels)] * math.ceil(len(batch_sizes) / columns), columns)
    longest_ms = 1e3 * max(max(b.step_s, math.fsum(phase.host_s for phase in b.phases)) for b in bottlenecks)
    width = (page.room - max(text_width(label, LEGEND) for label in labels)) / columns - 0.3
    for batch_size, axes in zip(batch_sizes, grid.flat, strict=False):
        axes.set_title(f"batch size {batch_size}", loc="left", color=QUIET)
        name_rows(axes, labels)
        axes.tick_params(axis="y", labelleft=axes in grid[:, 0])
        axes.set_xlim(0, longest_ms / (1 - _VERDICT / width))
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        _draw_rows(axes, [cells.get((config, batch_size)) for config in configs], names)
    for axes in grid.flat[len(batch_sizes) :]:
        axes.remove()
    grid.flat[len(batch_sizes) - 1].set_xlabel("ms per step", loc="right")
    return page.settle()


def _legend(bottlenecks: Sequence[Bottleneck]) -> tuple[list[str], list[str]]:
    """Return the names of the MOST_PHASES longest phases in the order of a step, and a list with a name for the other
    phases, which is empty if there are none."""
    host_s = summed((phase.name, phase.host_s) for bottleneck in bottlenecks for phase in bottleneck.phases)
    longest = sorted(host_s, key=lambda name: -host_s[name])[:MOST_PHASES]
    n_others = len(host_s) - len(longest)
    return [name for name in host_s if name in longest], [counted(n_others, "other phase")] if n_others else []


def _draw_rows(axes: Axes, rows: Sequence[Explanation | None], names: Sequence[str]) -> None:
    """Draw a row per config: its phases, a mark where the step ends, and the verdict.

    `names` are the phases with a block of their own. A row that is None or has no bottleneck shows the reason instead.
    """
    blocks: list[tuple[float, float, float, float]] = []  # begin and end in ms, foot and head
    colours, texts = [], []
    steps: list[tuple[float, float]] = []  # row, ms
    for place, cell in enumerate(rows):
        row = place + 0.5
        if cell is None or cell.bottleneck is None:
            put(axes, _why_no_bars(cell), (0, row), (3, 0), ha="left", color=QUIET)
            continue
        bottleneck, at_ms = cell.bottleneck, 0.0
        sentence = f"{limit_sentence(bottleneck)}; step {milliseconds(bottleneck.step_s)}"
        phases = [(phase.name, phase.host_s) for phase in bottleneck.phases if phase.name in names]
        if others_s := [phase.host_s for phase in bottleneck.phases if phase.name not in names]:
            phases.append((counted(len(others_s), "other phase"), math.fsum(others_s)))
        for name, host_s in phases:
            blocks.append((at_ms, at_ms + host_s * 1e3, row - 0.35, row + 0.35))
            colours.append(phase_colour(name))
            texts.append(f"{cell.summary.cell.label}\n{name} {milliseconds(host_s)}\n{sentence}")
            at_ms = blocks[-1][1]
        step_ms = bottleneck.step_s * 1e3
        steps.append((row, step_ms))
        put(axes, drawable(limit_words(bottleneck)), (max(at_ms, step_ms), row), (4, 0), ha="left")
    boxes(axes, blocks, texts, facecolors=colours, linewidths=0)
    marks = [[(x, y - 0.45), (x, y + 0.45)] for y, x in steps]
    axes.add_collection(LineCollection(marks, colors=INK, linewidths=1.6, zorder=3), autolim=False)


def _why_no_bars(cell: Explanation | None) -> str:
    """Return why a row has no bars: the cell was not run, has no profiled pass, or failed."""
    if cell is None:
        return "not run"
    return "no profiled pass" if cell.summary.images_per_s is not None else STATUS_BADGES[cell.summary.status].word


_BADGES: Mapping[BoundVerdict, Badge] = {
    "input-bound": Badge("input-bound", "input"),
    "host-bound": Badge("host-bound", "host"),
    "gpu-bound": Badge("gpu-bound", "full"),
    "network-bound": Badge("network-bound", "network"),
    "balanced": Badge("balanced", "equal"),
}


def bottleneck_section(explanations: Sequence[Explanation], settings: Settings) -> Section | None:
    """Return the page's section with each setting's limits, or None if no cell has a profiled pass."""
    if not any(cell.bottleneck for cell in explanations):
        return None

    def figure(part: SettingCells) -> AnyBlock | None:
        """Return the chart and table of one setting; None if no cell has a bottleneck."""
        cells = [cell for cell in explanations if cell.summary.setting == part.setting]
        if not any(cell.bottleneck for cell in cells):
            return None
        shown = (
            Column[Explanation]("batch", lambda cell: cell.summary.cell.batch_size, COUNT),
            Column[Explanation]("config", lambda cell: cell.summary.cell.config),
            *speed_columns(cells),
            Column[Explanation]("verdict", _verdict),
            *advice_columns(cells),
            *stage_columns(cells),
        )
        caption = part.titled("What limits each cell, and what to try next")
        ordered = sorted(cells, key=lambda cell: cell.summary.cell.batch_size)
        table = Table(shown, ordered, caption)
        keys = {summary.key for summary in part.drawn}
        chart = functools.partial(bottleneck_chart, [cell for cell in cells if cell.summary.key in keys])
        # Batch sizes are panels; the picture itself says which ones have no room.
        remarks = [*left_out({"configs": len(part.configs)}), *notes(explanations)]
        title = part.titled("Where the host's time goes in a step")
        return drawings.setting_block(part, chart, title, "bottlenecks", table, remarks)

    tally = Points(tuple(_verdict_counts(explanations)))
    return Section("bottlenecks", "Bottlenecks", (tally, *settings.blocks(figure)))


def _verdict_counts(explanations: Sequence[Explanation]) -> list[tuple[Badge | None, Paragraph]]:
    """Return a line per verdict with its badge, the number of cells and the fastest cell; unsettled cells come last."""
    bounds = [(cell.bottleneck, cell.summary.cell.label) for cell in explanations if cell.bottleneck]
    bounds.sort(key=lambda cell: (cell[0].unsteady, VERDICTS.index(cell[0].verdict)))
    groups = grouped((_badge(cell[0], limit_words(cell[0]).partition(" ")[0]), cell) for cell in bounds)
    lines: list[tuple[Badge | None, Paragraph]] = []
    for badge, cells in groups.items():
        _, fastest = max(cells, key=lambda cell: cell[0].images_per_s)
        label = "; the fastest: " if len(cells) > 1 else ": "
        lines.append((badge, say(counted(len(cells), "cell"), label, strong(spaced(fastest)))))
    return lines


def _badge(bottleneck: Bottleneck, words: str) -> Badge:
    """Return the badge of the verdict, with these words."""
    return replace(_BADGES[bottleneck.verdict], word=words)


def _verdict(cell: Explanation) -> Badge:
    """Return the badge of a cell: its verdict, or its status if there is none."""
    return (
        _badge(cell.bottleneck, limit_words(cell.bottleneck)) if cell.bottleneck else STATUS_BADGES[cell.summary.status]
    )


def held_back(cell: Explanation) -> Paragraph:
    """Return a sentence on what limits a cell, with its figures."""
    if cell.bottleneck is None:
        return say("unknown: the cell has no profiled pass.")
    limit, _, figures = limit_sentence(cell.bottleneck).partition(": ")
    return say(strong(limit), f": {figures}.")


def would_help(cell: Explanation, fallback: str = "") -> Paragraph:
    """Return a sentence on the rung to try next and its expected gain, and on the rungs that were slower.

    `fallback` names what may help if no rung is advised. The paragraph is empty if no rung is advised or undecided, and
    the cell has no profiled pass or trains the user's own step."""
    slower = slower_rungs(cell)
    if cell.advice:
        name, colon, expected = next_rung_words(cell).partition(":")
        first: list[str | Piece] = [strong(name), colon + expected]
    elif cell.undecided and cell.undecided.ratio:
        ratio = f": {factor(cell.undecided.ratio.value)} where it was measured, undecided"
        first = [strong(kept_together(rung_change(cell.undecided))), ratio]
    elif cell.bottleneck is None or cell.summary.cell.is_own:
        return ()
    else:
        first = ["no known rung is expected to make it faster"]
    rest = [cell.advice.evidence if cell.advice else fallback, slower and f"tried and {kept_together(slower)}"]
    return say(*first, "".join(f"; {words}" for words in rest if words), ".")


def next_rung_words(cell: Explanation) -> str:
    """Return the next rung in words: "+ dali: 70.1 images/s expected (65.2 to 75.4), 1.19× the present rate". Empty if
    no rung is advised."""
    if cell.advice is None or cell.bottleneck is None:
        return ""
    name, expected = kept_together(rung_change(cell.advice)), cell.advice.expected
    if expected is None:
        return f"{name}: expected gain unknown"
    gain = f"{factor(expected.value / cell.bottleneck.images_per_s)} the present rate"
    return f"{name}: {number(expected.value)} {cell.summary.cell.unit}/s expected ({limits(expected)}), {gain}"
