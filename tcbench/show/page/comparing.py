"""The comparison with a base: verdicts, ratios with their intervals on one axis, and what differs beside."""

from __future__ import annotations

from collections.abc import Sequence

from tcbench.analysis.comparability import FACETS
from tcbench.analysis.compare import VERDICTS, CellComparison, Comparison
from tcbench.analysis.stats import Interval
from tcbench.show.comparison.wording import advice, attribution, wheres
from tcbench.show.format import counted, factor, limits, number
from tcbench.show.page.page import (
    AnyBlock,
    Badge,
    Chart,
    Data,
    Field,
    Figure,
    Mark,
    Notice,
    Paragraph,
    Piece,
    Points,
    Prose,
    Row,
    Section,
    Shade,
    Table,
    say,
    strong,
)
from tcbench.show.page.scale import Scale
from tcbench.show.page.wording import (
    LONGEST_LABEL,
    VERDICT_BADGES,
    badge,
    columns,
    figure,
    label,
    middle,
    one_line,
    room_em,
    shortened,
    spaced,
    width_em,
)

_LEAST_AXIS = 0.06
"""The axis reaches at least this far to either side of 1."""

_MOST_SHOWN = 0.3
"""An interval is cut off this far from its value."""


_Named = tuple[CellComparison, str]
"""A cell, and what tells it from others of its config and batch size; mostly nothing."""


def section(found: Comparison, base: str) -> Section:
    """All cells of both sides. `base` is what the other side is called."""
    blocks: list[AnyBlock] = [Prose((_lead(found, base),))]
    if found.differences:
        blocks.append(_unlike(found))
    blocks.append(Points(_tally(found)))
    named = list(zip(found.cells, map(one_line, wheres(found.cells)), strict=True))
    pairs = [(cell, where) for cell, where in named if cell.ratio is not None]
    table = _table(named)
    if pairs:
        blocks.append(_figure(pairs, found, table))
    else:
        blocks.append(Data(table))
    if found.notes:
        blocks.append(Notice(Badge("mixed", "warn", "warn"), say("Trials of one side do not agree."), found.notes))
    return Section("comparison", "Comparison", tuple(blocks))


def _lead(found: Comparison, base: str) -> Paragraph:
    rule = found.rule
    parts: list[str | Piece] = ["The base is ", strong(one_line(base)), ". "]
    for mean in found.means:
        over = counted(mean.cells, "cell")
        ratio = mean.ratio
        parts += [
            "Over " if mean.cells > 1 else "In ",
            f"{over} that both sides measured with two trials or more, throughput is ",
            strong(f"{factor(ratio.value)} the base's"),
            f" (geometric mean; 95% interval {limits(ratio, 'factor')}). ",
        ]
    parts.append(f"A loss of more than {rule.threshold:.0%} that is surely there is a regression.")
    return say(*parts)


def _unlike(found: Comparison) -> Notice:
    facets = dict.fromkeys(difference.facet for difference in found.differences)
    what = "; ".join(FACETS.get(facet, facet) for facet in facets)
    paragraph = say("The two sides did not measure the same thing; a verdict speaks of all that differs: ", what)
    return Notice(
        Badge("not alike", "warn", "warn"),
        (*paragraph, Piece(".")),
        tuple(one_line(difference.says) for difference in found.differences),
    )


def _tally(found: Comparison) -> tuple[tuple[Badge | None, Paragraph], ...]:
    """A line per verdict with its cells, as many as a line takes."""
    lines = []
    for verdict in VERDICTS:
        cells = [cell for cell in found.cells if cell.verdict == verdict]
        if not cells:
            continue
        names = "; ".join(spaced(cell.cell.label) for cell in cells[:6])
        more = f"; and {len(cells) - 6} more" if len(cells) > 6 else ""
        lines.append((VERDICT_BADGES[verdict], say(strong(counted(len(cells), "cell")), f": {names}{more}")))
    return tuple(lines)


def _figure(pairs: Sequence[_Named], found: Comparison, table: Table) -> Figure:
    ratios = [cell.ratio for cell, _ in pairs if cell.ratio is not None]
    low = min(max(ratio.low, ratio.value - _MOST_SHOWN) for ratio in ratios)
    high = max(min(ratio.high, ratio.value + _MOST_SHOWN) for ratio in ratios)
    scale = Scale(max(0.0, min(low - 0.01, 1 - _LEAST_AXIS)), max(high + 0.01, 1 + _LEAST_AXIS))
    sizes = sorted({cell.cell.batch_size for cell, _ in pairs})
    by_size = {size: [pair for pair in pairs if pair[0].cell.batch_size == size] for size in sizes}
    charts = tuple(_chart(size, cells, scale, found) for size, cells in by_size.items())
    rows = [row for chart in charts for row in chart.rows]
    return Figure(
        title="Throughput over the base's",
        charts=charts,
        table=table,
        notes=(
            "Dots are ratios, bars their 95% intervals over trials. Right of 1 is faster than the base.",
            f"Shaded: losses of more than {found.rule.threshold:.0%}.",
        ),
        label_em=width_em(row.label for row in rows),
        words_em=room_em(rows),
    )


def _chart(batch_size: int, cells: Sequence[_Named], scale: Scale, found: Comparison) -> Chart:
    worst = scale.place(1 - found.rule.threshold)
    rows, above = list[Row](), None
    for one, where in cells:
        name = shortened(f"{one_line(one.cell.config)}, {where}", LONGEST_LABEL) if where else label(one.cell, above)
        rows.append(_row(one, name, scale))
        above = one.cell
    return Chart(
        heading=f"Batch size {batch_size}",
        title=f"Throughput over the base's at batch size {batch_size}",
        desc=f"A dot with its interval for each of {counted(len(cells), 'cell')}; 1 is no change. "
        "The table has every number.",
        rows=tuple(rows),
        ticks=scale.ticks(),
        axis="× the base",
        shades=(Shade(0.0, worst),),
        reference=scale.place(1.0),
    )


def _row(one: CellComparison, name: str, scale: Scale) -> Row:
    ratio = one.ratio
    assert ratio is not None
    tone = VERDICT_BADGES[one.verdict].tone
    tip = [one_line(one.cell.label), f"{one.verdict}: {factor(ratio.value)} (95%: {limits(ratio, 'factor')})"]
    tip += [_sides(one), *(one_line(text) for text in (one.why, *_telling(one)) if text)]
    return Row(
        label=name,
        marks=(scale.whisker(ratio), Mark("dot", scale.place(ratio.value), look=f"tone-{tone}")),
        tip=tuple(tip),
        words=_percent(ratio),
        aside=one.verdict,
        at=scale.place(min(ratio.high, scale.high)),
        strong=one.failing,
    )


def _percent(ratio: Interval) -> str:
    change = ratio.value - 1
    return f"{'−' if change < 0 else '+'}{abs(change):.1%}"


def _sides(one: CellComparison) -> str:
    figures = [None if side is None else side.figure for side in (one.base, one.current)]
    return " → ".join("none" if value is None else number(value) for value in figures) + f" {one.metric.unit}"


def _table(cells: Sequence[_Named]) -> Table:
    names = ("#batch", "config", "verdict", "#base", "#current", "#ratio", "95% interval", "#trials")
    rows = []
    for one, where in cells:
        trials = " / ".join("0" if side is None else str(side.trials_ok) for side in (one.base, one.current))
        rows.append(
            (
                figure(one.cell.batch_size, str(one.cell.batch_size)),
                Field(f"{one_line(one.cell.config)}{where and f', {where}'}"),
                badge(VERDICT_BADGES[one.verdict]),
                figure(one.base.figure if one.base else None),
                figure(one.current.figure if one.current else None),
                middle(one.ratio, lambda value: f"{value:.3f}×"),
                Field(limits(one.ratio, "factor") if one.ratio else ""),
                figure(one.current.trials_ok if one.current else 0, trials),
                Field("; ".join(_remarks(one))),
            )
        )
    return Table("Every cell of both sides, images/s over total time", (*columns(*names), _REMARKS), tuple(rows))


_REMARKS = columns("remarks")[0]


def _remarks(one: CellComparison) -> list[str]:
    """Why, where the loss sits, what would decide, and which trials are doubtful."""
    lines = [one_line(text) for text in (one.why, *_telling(one)) if text]
    for name, side in (("base", one.base), ("current", one.current)):
        lines += [f"{name}: {one_line(note)}" for note in (side.notes if side else ())]
    return lines


def _telling(one: CellComparison) -> tuple[str, ...]:
    """Where a loss sits; what would decide."""
    if one.verdict == "inconclusive":
        return (advice(one),)
    return (attribution(one),) if one.verdict == "regression" else ()


def sentence(found: Comparison, base: str) -> Paragraph:
    """The comparison in one sentence: what is worse, else what is better, and what is not known."""
    worse = [cell for cell in found.cells if cell.verdict == "regression"]
    broken = [cell for cell in found.cells if cell.failing and cell.verdict != "regression"]
    better = [cell for cell in found.cells if cell.verdict == "improved"]
    unsure = [cell for cell in found.cells if cell.verdict == "inconclusive" or cell.fails_on_both]
    told: list[str | Piece] = []
    for cells, one, many in ((worse, "got worse", "got worse"), (broken, "is missing or fails", "are missing or fail")):
        if cells:
            examples = "; ".join(spaced(cell.cell.label) for cell in cells[:3]) + ("; ..." if len(cells) > 3 else "")
            says = f"{counted(len(cells), 'cell')} {one if len(cells) == 1 else many}"
            told += ["; " if told else "", strong(says), f" ({examples})"]
    if better and not told:
        told += [strong(f"{counted(len(better), 'cell')} got faster"), ", none surely got worse"]
    if unsure:
        told += ["; " if told else "", strong(f"{counted(len(unsure), 'cell')} cannot be told yet")]
        told += [] if worse or broken or better else ["; none surely got worse"]
    return say(f"Compared with {one_line(base)}: ", *(told or [strong("nothing got worse")]), ".")
