"""The comparison with a base: verdicts, ratios with their intervals on one axis, and what differs beside."""

from __future__ import annotations

from collections.abc import Sequence

from tcbench.analysis.comparability import FACETS
from tcbench.analysis.compare import VERDICTS, CellComparison, Comparison
from tcbench.core.errors import SelectionError
from tcbench.show.charts import comparison_chart
from tcbench.show.comparison.wording import Labels, advice, attribution, power, wheres
from tcbench.show.console import many_ranks
from tcbench.show.format import counted, factor, limits
from tcbench.show.naming import rate_unit
from tcbench.show.page import drawings
from tcbench.show.page.page import (
    AnyBlock,
    Badge,
    Data,
    Field,
    Notice,
    Paragraph,
    Piece,
    Points,
    Prose,
    Section,
    Table,
    say,
    strong,
)
from tcbench.show.page.wording import VERDICT_BADGES, badge, columns, figure, middle, spaced

_Named = tuple[CellComparison, str]
"""A cell, and what tells it from others of its config, batch size and ranks; mostly nothing."""


def section(comparison: Comparison, base: str) -> Section:
    """All cells of both sides. `base` is what the other side is called."""
    blocks: list[AnyBlock] = [Prose((_lead(comparison, base),))]
    if comparison.differences:
        blocks.append(_unlike(comparison))
    blocks.append(Points(_tally(comparison)))
    table = _table(list(zip(comparison.cells, wheres(comparison.cells), strict=True)))
    measured = any(cell.ratio is not None for cell in comparison.cells)
    blocks.append(_drawn(comparison, base, table) if measured else Data(table))
    if comparison.notes:
        blocks.append(Notice(Badge("mixed", "warn", "warn"), say("Not all trials are alike."), comparison.notes))
    return Section("comparison", "Comparison", tuple(blocks))


def _lead(comparison: Comparison, base: str) -> Paragraph:
    rule = comparison.rule
    parts: list[str | Piece] = ["The base is ", strong(base), ". "]
    for mean in comparison.means:
        over = counted(mean.cells, "cell")
        ratio = mean.ratio
        parts += [
            "Over " if mean.cells > 1 else "In ",
            f"{over} that both sides measured with two trials or more, throughput is ",
            strong(f"{factor(ratio.value)} the base's"),
            f" (geometric mean; 95% interval {limits(ratio, 'factor')}). ",
        ]
    parts.append(f"A loss of more than {rule.threshold:.0%} that is surely there is a regression.")
    if seen := power(comparison):
        parts.append(f" With these trials {seen}.")
    return say(*parts)


def _unlike(comparison: Comparison) -> Notice:
    facets = dict.fromkeys(difference.facet for difference in comparison.differences)
    what = "; ".join(FACETS.get(facet, facet) for facet in facets)
    paragraph = say("The two sides did not measure the same thing; a verdict speaks of all that differs: ", what)
    return Notice(
        Badge("not alike", "warn", "warn"),
        (*paragraph, Piece(".")),
        tuple(difference.says for difference in comparison.differences),
    )


def _tally(comparison: Comparison) -> tuple[tuple[Badge | None, Paragraph], ...]:
    """A line per verdict with its cells, as many as a line takes."""
    lines = []
    for verdict in VERDICTS:
        cells = [cell for cell in comparison.cells if cell.verdict == verdict]
        if not cells:
            continue
        names = "; ".join(spaced(cell.cell.label) for cell in cells[:6])
        more = f"; and {len(cells) - 6} more" if len(cells) > 6 else ""
        lines.append((VERDICT_BADGES[verdict], say(strong(counted(len(cells), "cell")), f": {names}{more}")))
    return tuple(lines)


def _drawn(comparison: Comparison, base: str, table: Table) -> AnyBlock:
    """The chart with its table; the table alone where the chart would be too high."""
    try:
        drawing = comparison_chart(comparison, Labels(base), title=f"Against {base}")
    except SelectionError as error:
        return Data(table, notes=(str(error),))
    return drawings.figure(lambda: drawing, f"Throughput over that of {base}", "comparison", table)


def _table(cells: Sequence[_Named]) -> Table:
    with_ranks = many_ranks(one.cell for one, _ in cells)
    names = ("config", "verdict", "#base", "#current", "#ratio", "95% interval", "#trials")
    heads = ("#batch", *(["#ranks"] if with_ranks else []))
    rows = []
    for one, where in cells:
        trials = " / ".join("0" if side is None else str(side.trials_ok) for side in (one.base, one.current))
        rows.append(
            (
                figure(one.cell.batch_size, str(one.cell.batch_size)),
                *((figure(one.cell.ranks, str(one.cell.ranks)),) if with_ranks else ()),
                Field(f"{one.cell.config}{where and f', {where}'}"),
                badge(VERDICT_BADGES[one.verdict]),
                figure(one.base.figure if one.base else None),
                figure(one.current.figure if one.current else None),
                middle(one.ratio, lambda value: f"{value:.3f}×"),
                Field(limits(one.ratio, "factor") if one.ratio else ""),
                figure(one.current.trials_ok if one.current else 0, trials),
                Field("; ".join(_remarks(one))),
            )
        )
    return Table(
        f"Every cell of both sides, {rate_unit(one.cell for one, _ in cells)} over total time",
        (*columns(*heads, *names), _REMARKS),
        tuple(rows),
    )


_REMARKS = columns("remarks")[0]


def _remarks(one: CellComparison) -> list[str]:
    """Why, where the loss sits, what would decide, and which trials are doubtful."""
    lines = list(filter(None, (one.why, *_telling(one))))
    for name, side in (("base", one.base), ("current", one.current)):
        lines += [f"{name}: {note}" for note in (side.notes if side else ())]
    return lines


def _telling(one: CellComparison) -> tuple[str, ...]:
    """The place of a loss, or the runs that would decide."""
    if one.verdict == "inconclusive":
        return (advice(one),)
    return (attribution(one),) if one.verdict == "regression" else ()


def sentence(comparison: Comparison, base: str) -> Paragraph:
    """The comparison in one sentence: what is worse, else what is better, and what is not known."""
    worse = [cell for cell in comparison.cells if cell.verdict == "regression"]
    broken = [cell for cell in comparison.cells if cell.failing and cell.verdict != "regression"]
    better = [cell for cell in comparison.cells if cell.verdict == "improved"]
    unsure = [cell for cell in comparison.cells if cell.verdict == "inconclusive" or cell.fails_on_both]
    parts: list[str | Piece] = []
    for cells, one, many in ((worse, "got worse", "got worse"), (broken, "is missing or fails", "are missing or fail")):
        if cells:
            examples = "; ".join(spaced(cell.cell.label) for cell in cells[:3]) + ("; ..." if len(cells) > 3 else "")
            says = f"{counted(len(cells), 'cell')} {one if len(cells) == 1 else many}"
            parts += ["; " if parts else "", strong(says), f" ({examples})"]
    if better and not parts:
        parts += [strong(f"{counted(len(better), 'cell')} got faster"), ", none surely got worse"]
    if unsure:
        parts += ["; " if parts else "", strong(f"{counted(len(unsure), 'cell')} cannot be parts yet")]
        parts += [] if worse or broken or better else ["; none surely got worse"]
    return say(f"Compared with {base}: ", *(parts or [strong("nothing got worse")]), ".")
