"""The host's time in a step: stacked phases per config and batch size, each with its verdict; and the section of the
page on what holds cells back, and what to try next.

Owns rows, columns and their common scale. Knows nothing of how a verdict came about.
"""

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
from tcbench.commands.explain.table import added, advised, notes, speeds, stages, tried_and_slower
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped, summed
from tcbench.show.bottlenecks import limit_sentence, limit_words
from tcbench.show.charts.page import ChartPage, boxes, name_rows, put
from tcbench.show.charts.palette import INK, OTHER, PHASE_COLOURS, QUIET
from tcbench.show.charts.provenance import first_panels, provenance_of, small_print
from tcbench.show.charts.text import LEGEND, config_name, drawable, shortened, text_width
from tcbench.show.format import counted, factor, limits, milliseconds, number
from tcbench.show.page import drawings
from tcbench.show.page.page import AnyBlock, Paragraph, Piece, Points, Section, say, strong
from tcbench.show.page.settings import SettingCells, Settings, left_out
from tcbench.show.page.wording import kept_together, spaced
from tcbench.show.simulated import mark_simulated
from tcbench.show.tables import COUNT, Badge, Column, Table, config_in_ladder
from tcbench.show.verdicts import STATUS_BADGES

MOST_PHASES = 12
"""Phases that have an entry in the legend and blocks of their own; a step's others are one block."""

_ABREAST = 3
_ROW = 0.235
_LONGEST_LABEL, _VERDICT = 2.4, 0.85  # inches


def bottleneck_chart(explanations: Sequence[Explanation]) -> Figure:
    """A panel per batch size, all on one scale; in it a row per config: its phases on the host, in ms per step of the
    pass that they are of, a mark where the timed pass's step ends, and the verdict. The cells are those of one setting.

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
    passes = sorted({"timed" if of.phases_are_timed else "profiled" for of in known})
    how = f"bars: phases on the host, of the {' or the '.join(passes)} pass · mark: the step of the timed pass"
    facts = small_print(summaries, common, whiskers=True).split(" · ")
    title = mark_simulated("", (summary.environment for summary in summaries))
    page = ChartPage(title, "", [*more, how, " · ".join(fact for fact in facts if not fact.startswith("whisker:"))])
    names, others = _legend(known)
    page.legend([[Patch(facecolor=PHASE_COLOURS.get(name, OTHER), label=drawable(name)) for name in (*names, *others)]])
    columns = min(_ABREAST, len(batch_sizes))
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
    host_s = summed((phase.name, phase.host_s) for bottleneck in known for phase in bottleneck.phases)
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
        sentence = f"{limit_sentence(bottleneck)}; step {milliseconds(bottleneck.step_s)}"
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
        put(axes, drawable(limit_words(bottleneck)), (max(at_ms, step_ms), row), (4, 0), ha="left")
    boxes(axes, blocks, texts, facecolors=colours, linewidths=0)
    marks = [[(x, y - 0.45), (x, y + 0.45)] for y, x in steps]
    axes.add_collection(LineCollection(marks, colors=INK, linewidths=1.6, zorder=3), autolim=False)


def _why(cell: Explanation | None) -> str:
    """The words in place of bars."""
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
    """Setting by setting; None where no cell left a profiled pass."""
    if not any(cell.bottleneck for cell in explanations):
        return None

    def figure(part: SettingCells) -> AnyBlock | None:
        cells = [cell for cell in explanations if cell.summary.setting == part.setting]
        if not any(cell.bottleneck for cell in cells):
            return None
        shown = (
            Column[Explanation]("batch", lambda cell: cell.summary.cell.batch_size, COUNT),
            Column[Explanation]("config", lambda cell: cell.summary.cell.config),
            *speeds(cells),
            Column[Explanation]("verdict", _verdict),
            *advised(cells),
            *stages(cells),
        )
        caption = part.titled("What holds each cell back, and what to try next")
        ordered = sorted(cells, key=lambda cell: cell.summary.cell.batch_size)
        table = Table(shown, ordered, caption)
        keys = {summary.key for summary in part.drawn}
        chart = functools.partial(bottleneck_chart, [cell for cell in cells if cell.summary.key in keys])
        # Each batch size is a panel: which of them have no room the picture says itself.
        remarks = [*left_out({"configs": len(part.configs)}), *notes(explanations)]
        title = part.titled("Where the host's time goes in a step")
        return drawings.setting_block(part, chart, title, "bottlenecks", table, remarks)

    tally = Points(tuple(_counted(explanations)))
    return Section("bottlenecks", "What holds it back", (tally, *settings.blocks(figure)))


def _counted(explanations: Sequence[Explanation]) -> list[tuple[Badge | None, Paragraph]]:
    """The number of cells of each verdict, and the fastest of them."""
    known = [(cell.bottleneck, cell.summary.cell.label) for cell in explanations if cell.bottleneck]
    known.sort(key=lambda cell: (cell[0].unsteady, VERDICTS.index(cell[0].verdict)))
    groups = grouped((_badge(cell[0], limit_words(cell[0]).partition(" ")[0]), cell) for cell in known)
    lines: list[tuple[Badge | None, Paragraph]] = []
    for badge, cells in groups.items():
        _, fastest = max(cells, key=lambda cell: cell[0].images_per_s)
        which = "; the fastest: " if len(cells) > 1 else ": "
        lines.append((badge, say(counted(len(cells), "cell"), which, strong(spaced(fastest)))))
    return lines


def _badge(bottleneck: Bottleneck, words: str) -> Badge:
    """The verdict's, with these words."""
    return replace(_BADGES[bottleneck.verdict], word=words)


def _verdict(cell: Explanation) -> Badge:
    return (
        _badge(cell.bottleneck, limit_words(cell.bottleneck)) if cell.bottleneck else STATUS_BADGES[cell.summary.status]
    )


def held_back(cell: Explanation) -> Paragraph:
    """What holds a cell back, with its numbers."""
    if cell.bottleneck is None:
        return say("not known: it left no profiled pass.")
    limit, _, figures = limit_sentence(cell.bottleneck).partition(": ")
    return say(strong(limit), f": {figures}.")


def would_help(cell: Explanation, otherwise: str = "") -> Paragraph:
    """The rung to try next and what is expected of it; `otherwise`: what may help where no rung does. Empty where
    nothing is known of the cell: what holds it back, or which rungs its own step could have."""
    slower = tried_and_slower(cell)
    if cell.advice:
        name, colon, expected = next_rung(cell).partition(":")
        first: list[str | Piece] = [strong(name), colon + expected]
    elif cell.undecided and cell.undecided.ratio:
        ratio = f": {factor(cell.undecided.ratio.value)} where it was tried, undecided"
        first = [strong(kept_together(added(cell.undecided))), ratio]
    elif cell.bottleneck is None or cell.summary.cell.is_own:
        return ()
    else:
        first = ["no known rung is expected to make it faster"]
    rest = [cell.advice.evidence if cell.advice else otherwise, slower and f"tried and {kept_together(slower)}"]
    return say(*first, "".join(f"; {words}" for words in rest if words), ".")


def next_rung(cell: Explanation) -> str:
    """ "+ dali: 70.1 images/s expected (65.2 to 75.4), 1.19× of now"; empty where nothing is advised."""
    if cell.advice is None or cell.bottleneck is None:
        return ""
    name, expected = kept_together(added(cell.advice)), cell.advice.expected
    if expected is None:
        return f"{name}: by how much is not known"
    gain = factor(expected.value / cell.bottleneck.images_per_s)
    return f"{name}: {number(expected.value)} {cell.summary.cell.unit}/s expected ({limits(expected)}), {gain} of now"
