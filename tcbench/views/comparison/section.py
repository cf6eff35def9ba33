"""The comparison with a base: verdicts, ratios with their intervals on one axis, and what differs beside."""

from collections.abc import Sequence

from tcbench.analysis.comparability import FACETS
from tcbench.analysis.compare import VERDICTS, CellComparison, Comparison
from tcbench.core.errors import SelectionError
from tcbench.present.format import counted, factor, limits, listed
from tcbench.present.page import drawings
from tcbench.present.page.page import AnyBlock, Data, Notice, Paragraph, Piece, Points, Prose, Section, say, strong
from tcbench.present.page.wording import spaced
from tcbench.present.sides import Labels
from tcbench.present.tables import COUNT, Badge, Column, Field, Table, heads
from tcbench.present.verdicts import FORMS
from tcbench.views.comparison.chart import comparison_chart
from tcbench.views.comparison.table import Row, figures, rows
from tcbench.views.comparison.wording import by_metric, power, slower_in, telling, titled


def section(comparison: Comparison, base: str) -> Section:
    """All cells of both sides. `base` is what the other side is called."""
    blocks: list[AnyBlock] = [Prose((_lead(comparison, base),))]
    if comparison.differences:
        blocks.append(_unlike(comparison))
    blocks.append(Points(_tally(comparison)))
    every_cell = _table(comparison.cells)
    measured = any(cell.ratio is not None for cell in comparison.cells)
    blocks.append(_drawn(comparison, base, every_cell) if measured else Data(every_cell))
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
            f"{over} with two trials a side or more, {mean.metric.name} is ",
            strong(f"{factor(ratio.value)} the base's"),
            f" (geometric mean; 95% interval {limits(ratio, factor)}). ",
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
        names = "; ".join(dict.fromkeys(_label(cell, comparison) for cell in cells[:6]))
        more = f"; and {len(cells) - 6} more" if len(cells) > 6 else ""
        lines.append((FORMS[verdict], say(strong(counted(_distinct(cells), "cell")), f": {names}{more}")))
    return tuple(lines)


def _distinct(cells: Sequence[CellComparison]) -> int:
    """The number of cells, each counted once by however many metrics it was compared."""
    return len({(cell.machine, cell.cell) for cell in cells})


def _label(cell: CellComparison, comparison: Comparison) -> str:
    """A cell and, where there are several, the metric that it was compared by."""
    return spaced(cell.cell.label) + (f" ({cell.metric.name})" if len(by_metric(comparison)) > 1 else "")


def _drawn(comparison: Comparison, base: str, every_cell: Table[Row]) -> AnyBlock:
    """The chart with its table; the table alone where the chart would be too high."""
    try:
        drawing = comparison_chart(comparison, Labels(base), title=f"Against {base}")
    except SelectionError as error:
        return Data(every_cell, notes=(str(error),))
    metrics = listed([metric.name for metric in by_metric(comparison)]).capitalize()
    return drawings.figure(lambda: drawing, f"{metrics} against {base}", "comparison", every_cell)


def _table(cells: Sequence[CellComparison]) -> Table[Row]:
    metrics = {one.metric: titled(one.metric, [of.cell for of in cells]) for one in cells}
    columns = (
        *heads((one.cell for one in cells), lambda row: row[0].cell),
        Column[Row]("config", lambda row: ", ".join(filter(None, (row[0].cell.config, row[1])))),
        *([Column[Row]("metric", lambda row: metrics[row[0].metric])] if len(metrics) > 1 else []),
        Column[Row]("verdict", lambda row: FORMS[row[0].verdict]),
        *figures(),
        Column[Row]("trials", lambda row: _trials(row[0]), COUNT),
        Column[Row]("remarks", lambda row: "; ".join(_remarks(row[0]))),
    )
    return Table(columns, rows(cells), f"Every cell of both sides: {listed(list(metrics.values()))}")


def _trials(one: CellComparison) -> Field:
    counts = [0 if side is None else side.trials_ok for side in (one.base, one.current)]
    return Field(" / ".join(map(str, counts)), counts[1])


def _remarks(one: CellComparison) -> list[str]:
    """Why, where the loss sits, what would decide, and which trials are doubtful."""
    lines = [*filter(None, [slower_in(one), one.why]), *telling(one)]
    for name, side in (("base", one.base), ("current", one.current)):
        lines += [f"{name}: {note}" for note in (side.notes if side else ())]
    return lines


def sentence(comparison: Comparison, base: str) -> Paragraph:
    """The comparison in one sentence: what is worse, else what is better, and what is not known."""
    worse = [cell for cell in comparison.cells if cell.verdict == "regression"]
    broken = [cell for cell in comparison.cells if cell.failing and cell.verdict != "regression"]
    better = [cell for cell in comparison.cells if cell.verdict == "improved"]
    unsure = [cell for cell in comparison.cells if cell.verdict == "inconclusive" or cell.fails_on_both]
    parts: list[str | Piece] = []
    for cells, one, many in ((worse, "got worse", "got worse"), (broken, "is missing or fails", "are missing or fail")):
        if n := _distinct(cells):
            examples = "; ".join(_label(cell, comparison) for cell in cells[:3]) + ("; ..." if len(cells) > 3 else "")
            says = f"{counted(n, 'cell')} {one if n == 1 else many}"
            parts += ["; " if parts else "", strong(says), f" ({examples})"]
    if better and not parts:
        parts += [strong(f"{counted(_distinct(better), 'cell')} got better"), ", none surely got worse"]
    if unsure:
        parts += [
            "; " if parts else "",
            strong(f"{counted(_distinct(unsure), 'cell is', 'cells are')} not settled yet"),
        ]
        parts += [] if worse or broken or better else ["; none surely got worse"]
    return say(f"Compared with {base}: ", *(parts or [strong("nothing got worse")]), ".")
