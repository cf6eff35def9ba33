"""The host's time in a step: stacked phases per config and batch size, each with its verdict.

Owns rows, columns and their common scale. Knows nothing of how a verdict came about.
"""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from tcbench.analysis.bottleneck import Bottleneck
from tcbench.analysis.explanation import Explanation
from tcbench.core.errors import SelectionError
from tcbench.present.charts.page import Page, boxes, name_rows, put
from tcbench.present.charts.palette import INK, OTHER, PHASE_COLOURS, QUIET
from tcbench.present.charts.provenance import first_panels, provenance_of, small_print
from tcbench.present.charts.text import LEGEND, config_name, drawable, shortened, text_width
from tcbench.present.format import counted, milliseconds
from tcbench.present.simulated import marked
from tcbench.present.tables import config_in_ladder
from tcbench.present.verdicts import STATUS_BADGES

MOST_PHASES = 12
"""Phases that have an entry in the legend and blocks of their own; a step's others are one block."""

_COLUMNS = 3
_ROW = 0.235
_LONGEST_LABEL, _VERDICT = 2.4, 0.85  # inches


def bottleneck_chart(explanations: Sequence[Explanation], *, title: str = "What holds each cell back") -> Figure:
    """A panel per batch size, all on one scale; in it a row per config: its phases on the host, in ms per step of the
    profiled pass, a mark where the timed pass's step ends, and the verdict. The cells are those of one setting.

    Raises SelectionError where no cell left a profiled pass.
    """
    known = [cell.bottleneck for cell in explanations if cell.bottleneck]
    if not known:
        raise SelectionError("no profiled pass in these results; nothing to draw")
    cells = {(cell.summary.cell.config, cell.summary.cell.batch_size): cell for cell in explanations}
    batch_sizes, more = first_panels(
        sorted({batch_size for _, batch_size in cells}), lambda batch_size: f"batch size {batch_size}", "--bs"
    )
    configs = {cell.summary.cell.config: cell.summary.cell for cell in explanations}
    above = [None, *configs.values()]
    names = [config_name(config_in_ladder(*pair)) for pair in zip(configs.values(), above, strict=False)]
    labels = [shortened(name, LEGEND, _LONGEST_LABEL) for name in names]

    summaries = [cell.summary for cell in explanations]
    common = provenance_of({summaries[0].setting: summaries}).common
    how = "bars: phases on the host, of the profiled pass · mark: the step of the timed pass"
    facts = small_print(summaries, common, whiskers=True).split(" · ")
    title = marked(title, (summary.environment for summary in summaries))
    page = Page(title, "", [*more, how, " · ".join(fact for fact in facts if not fact.startswith("whisker:"))])
    names, others = _legend(known)
    page.legend([[Patch(facecolor=PHASE_COLOURS.get(name, OTHER), label=drawable(name)) for name in (*names, *others)]])
    columns = min(_COLUMNS, len(batch_sizes))
    grid = page.panels([_ROW * len(labels)] * math.ceil(len(batch_sizes) / columns), columns)
    longest_ms = 1e3 * max(max(b.step_s, math.fsum(phase.host_s for phase in b.phases)) for b in known)
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


def _legend(known: Sequence[Bottleneck]) -> tuple[list[str], list[str]]:
    """The longest phases in the order of a step, and a name for all others where there are any."""
    host_s: dict[str, float] = {}
    for bottleneck in known:
        for phase in bottleneck.phases:
            host_s[phase.name] = host_s.get(phase.name, 0.0) + phase.host_s
    longest = sorted(host_s, key=lambda name: -host_s[name])[:MOST_PHASES]
    others = len(host_s) - len(longest)
    return [name for name in host_s if name in longest], [counted(others, "other phase")] if others else []


def _draw_rows(axes: Axes, rows: Sequence[Explanation | None], names: Sequence[str]) -> None:
    """Phases of all rows, a mark where each step ends, and each row's verdict."""
    blocks: list[tuple[float, float, float, float]] = []  # begin and end in ms, foot and head
    colours, texts = [], []
    steps: list[tuple[float, float]] = []  # row, ms
    for place, cell in enumerate(rows):
        row = place + 0.5
        if cell is None or cell.bottleneck is None:
            put(axes, _why(cell), (0, row), (3, 0), ha="left", color=QUIET)
            continue
        bottleneck, at_ms = cell.bottleneck, 0.0
        sentence = f"{bottleneck.sentence}; step {milliseconds(bottleneck.step_s)}"
        phases = [(phase.name, phase.host_s) for phase in bottleneck.phases if phase.name in names]
        if others_s := [phase.host_s for phase in bottleneck.phases if phase.name not in names]:
            phases.append((counted(len(others_s), "other phase"), math.fsum(others_s)))
        for name, host_s in phases:
            blocks.append((at_ms, at_ms + host_s * 1e3, row - 0.35, row + 0.35))
            colours.append(PHASE_COLOURS.get(name, OTHER))
            texts.append(f"{cell.summary.cell.label}\n{name} {milliseconds(host_s)}\n{sentence}")
            at_ms = blocks[-1][1]
        step_ms = bottleneck.step_s * 1e3
        steps.append((row, step_ms))
        put(axes, drawable(bottleneck.limit), (max(at_ms, step_ms), row), (4, 0), ha="left")
    boxes(axes, blocks, texts, facecolors=colours, linewidths=0)
    marks = [[(x, y - 0.45), (x, y + 0.45)] for y, x in steps]
    axes.add_collection(LineCollection(marks, colors=INK, linewidths=1.6, zorder=3), autolim=False)


def _why(cell: Explanation | None) -> str:
    """The words in place of bars."""
    if cell is None:
        return "not run"
    return "no profiled pass" if cell.summary.images_per_s is not None else STATUS_BADGES[cell.summary.status].word
