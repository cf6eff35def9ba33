"""The section on bottlenecks: where a step's time goes, the verdict, and what to try next."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tcbench.analysis.bottleneck import VERDICTS, Bottleneck, BoundVerdict
from tcbench.analysis.explanation import Explanation
from tcbench.present.format import counted, factor, limits, number
from tcbench.present.groups import grouped
from tcbench.present.page import drawings
from tcbench.present.page.page import (
    AnyBlock,
    Paragraph,
    Piece,
    Points,
    Section,
    say,
    strong,
)
from tcbench.present.page.settings import SettingCells, Settings, left_out
from tcbench.present.page.wording import kept_together, spaced
from tcbench.present.tables import COUNT, Badge, Column, Table
from tcbench.present.verdicts import STATUS_BADGES
from tcbench.views.bottleneck.chart import bottleneck_chart
from tcbench.views.bottleneck.table import added, columns, notes, tried_and_slower

_BADGES: Mapping[BoundVerdict, Badge] = {
    "input-bound": Badge("input-bound", "input"),
    "host-bound": Badge("host-bound", "host"),
    "gpu-bound": Badge("gpu-bound", "full"),
    "network-bound": Badge("network-bound", "network"),
    "balanced": Badge("balanced", "equal"),
}


def section(explanations: Sequence[Explanation], settings: Settings) -> Section | None:
    """Setting by setting; None where no cell left a profiled pass."""
    if not any(cell.bottleneck for cell in explanations):
        return None

    def figure(part: SettingCells) -> AnyBlock | None:
        cells = [cell for cell in explanations if cell.summary.setting == part.setting]
        known = any(cell.bottleneck for cell in cells)
        return _figure(part, cells, notes(explanations)) if known else None

    tally = Points(tuple(_counted(explanations)))
    return Section("bottlenecks", "What holds it back", (tally, *settings.blocks(figure)))


def _counted(explanations: Sequence[Explanation]) -> list[tuple[Badge | None, Paragraph]]:
    """The number of cells of each verdict, and the fastest of them."""
    known = [(cell.bottleneck, cell.summary.cell.label) for cell in explanations if cell.bottleneck]
    known.sort(key=lambda cell: VERDICTS.index(cell[0].verdict))
    groups = grouped((_badge(cell[0], cell[0].limit.partition(" ")[0]), cell) for cell in known)
    lines: list[tuple[Badge | None, Paragraph]] = []
    for badge, cells in groups.items():
        _, fastest = max(cells, key=lambda cell: cell[0].images_per_s)
        which = "; the fastest: " if len(cells) > 1 else ": "
        lines.append((badge, say(counted(len(cells), "cell"), which, strong(spaced(fastest)))))
    return lines


def _badge(bottleneck: Bottleneck, words: str) -> Badge:
    """The verdict's, with these words."""
    return replace(_BADGES[bottleneck.verdict], word=words)


def _figure(part: SettingCells, cells: Sequence[Explanation], remarks: Sequence[str]) -> AnyBlock:
    title = part.titled("Where the host's time goes in a step")
    keys = {summary.key for summary in part.drawn}
    drawn = [cell for cell in cells if cell.summary.key in keys]
    # Each batch size is a panel: which of them have no room the picture says itself.
    remarks = [*left_out({"configs": len(part.configs)}), *remarks]
    chart = functools.partial(bottleneck_chart, drawn, title="")
    return drawings.of_setting(part, chart, title, "bottlenecks", _table(part, cells), remarks)


def _table(part: SettingCells, cells: Sequence[Explanation]) -> Table[Explanation]:
    heads = (
        Column[Explanation]("batch", lambda cell: cell.summary.cell.batch_size, COUNT),
        Column[Explanation]("config", lambda cell: cell.summary.cell.config),
        Column[Explanation](
            "verdict",
            lambda cell: (
                _badge(cell.bottleneck, cell.bottleneck.limit)
                if cell.bottleneck
                else STATUS_BADGES[cell.summary.status]
            ),
        ),
    )
    caption = part.titled("What holds each cell back, and what to try next")
    ordered = sorted(cells, key=lambda cell: cell.summary.cell.batch_size)
    return Table((*heads, *columns(cells)), ordered, caption)


def held_back(cell: Explanation) -> Paragraph:
    """What holds a cell back, with its numbers."""
    if cell.bottleneck is None:
        return say("not known: it left no profiled pass.")
    limit, _, figures = cell.bottleneck.sentence.partition(": ")
    return say(strong(limit), f": {figures}.")


def would_help(cell: Explanation, otherwise: str = "") -> Paragraph:
    """The rung to try next and what is expected of it; `otherwise`: what may help where no rung does. Empty where
    nothing is known of the cell: what holds it back, or which rungs its own step could have."""
    slower = tried_and_slower(cell)
    if cell.advice:
        name, colon, expected = next_rung(cell).partition(":")
        first: list[str | Piece] = [strong(name), colon + expected]
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
