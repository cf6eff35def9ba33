"""A comparison as a forest plot, a row per cell with its ratio, interval and verdict; and the page's section of it.
Knows nothing of how a verdict came about."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, Setting
from tcbench.commands.compare.cell_report import CellReport, ComparisonReport, metric_heading, metric_with_unit
from tcbench.commands.compare.table import figure_columns
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.show.charts.inline import tooltip
from tcbench.show.charts.page import ChartPage, put
from tcbench.show.charts.palette import FAINT, GAIN, INK, LOSS, PAPER, QUIET
from tcbench.show.charts.provenance import first_panels
from tcbench.show.charts.text import (
    DPI,
    LEGEND,
    WORDS,
    config_name,
    drawable,
    line_height,
    shortened,
    text_width,
    wrapped,
)
from tcbench.show.format import counted, factor, limits, listed, quotient, ratio, threshold
from tcbench.show.naming import distinguishing_settings
from tcbench.show.page import drawings
from tcbench.show.page.page import AnyBlock, Data, Notice, Paragraph, Piece, Points, Prose, Section, say, strong
from tcbench.show.page.wording import spaced
from tcbench.show.sides import UNNAMED, first_few
from tcbench.show.tables import COUNT, Badge, Column, Field, Table, Tone, cell_columns
from tcbench.show.verdicts import FORMS, signed, tone

MAX_ROWS = 600
"""Limit of rows; a taller picture could not be drawn or read."""

_TALL = 20  # rows; a block of more has its numbers above too
_ROW = 0.215
_MOST_NAMES = 2.45  # for configs; longer ones are broken into lines
_VERDICT = 2.15
_CUT = 1.6  # intervals end in an arrow at this factor beyond the farthest ratio
_LEAST = 1.05  # the axis reaches at least this factor to either side of 1

_INKS: dict[Tone, str] = {"bad": LOSS, "good": GAIN, "warn": INK, "plain": INK}


def comparison_chart(report: ComparisonReport, *, title: str = "") -> Figure:
    """Draw a block per machine, setting and metric, with a row per cell and the geometric mean.

    Rows are ordered by batch size, then by config as first seen. Raises SelectionError if there are no cells or too
    many."""
    if not report.cells:
        raise SelectionError("nothing to compare: no cells on either side")
    if len(report.cells) > MAX_ROWS:
        raise SelectionError(
            f"{len(report.cells)} cells do not fit in one chart (at most {MAX_ROWS}); compare fewer configs"
        )
    blocks, omitted = first_panels(_blocks(report), lambda block: block.title, "--config, or name fewer files")
    ratios = [cell.ratio for cell in report.cells if cell.ratio]
    ends = _axis_limits(ratios, [row.point for block in blocks for row in block.rows])
    base, current = _short(report.labels.base), _short(report.labels.current)
    compared = "" if report.labels is UNNAMED else f"{current} against {base} · "
    subtitle = drawable(compared + report.headline)
    page = ChartPage(
        drawable(title or "What became slower?"), subtitle, [*map(drawable, _small_print(report)), *omitted]
    )
    column = page.panels([block.tops[-1] for block in blocks])[:, 0]
    figures = 72 * max(text_width(_figures(row), WORDS) for block in blocks for row in block.rows) + 14
    for axes, block in zip(column, blocks, strict=True):
        page.title_panel(axes, block.title)
        _frame(axes, block, ends, 1 - report.rule.threshold)
        _write_verdicts(axes, block, figures)
    page.settle()
    for axes, block in zip(column, blocks, strict=True):
        for row, place in zip(block.rows, block.places, strict=True):
            _draw_row(axes, row, place, figures)
    return page.figure


def _short(label: str) -> str:
    """Return a side's name; if it is a path, only the name of the file, without `.jsonl`."""
    return label.rpartition("/")[2].replace(".jsonl", "") or label


@dataclass(frozen=True)
class _Row:
    """A row of the chart: a cell, or the geometric mean of all cells (`cell` is None).

    `batch_size` is empty if the row above has the same one. `point` is the ratio, even if there are too few trials for
    an interval."""

    batch_size: str
    name: str
    cell: CellReport | None
    ratio: Interval | None
    point: float | None

    @property
    def label(self) -> str:
        return "\n".join(wrapped(config_name(self.name), LEGEND, _MOST_NAMES))

    @property
    def height(self) -> float:
        """The height of the row in inches."""
        return max(_ROW, 0.05 + (1 + self.label.count("\n")) * line_height(LEGEND))

    @property
    def ink(self) -> str:
        return QUIET if self.cell is None else _INKS[tone(self.cell)]

    @property
    def verdict(self) -> str:
        return signed(self.cell) if self.cell else ""


@dataclass(frozen=True)
class _Block:
    """The rows of one metric on one machine, stacked; positions are in inches."""

    title: str
    metric: str
    more_is_better: bool
    rows: tuple[_Row, ...]

    @cached_property
    def tops(self) -> list[float]:
        """Top edges of the rows and the bottom edge of the last one. A batch size stands above its first row."""
        heights = [row.height + _ROW * bool(row.batch_size) for row in self.rows]
        return [0.0, *itertools.accumulate(heights)]

    @property
    def places(self) -> list[float]:
        """Vertical centres of the rows."""
        return [end - row.height / 2 for row, end in zip(self.rows, self.tops[1:], strict=True)]


def _axis_limits(ratios: Sequence[Interval], points: Sequence[float | None]) -> tuple[float, float]:
    """Return the limits of the ratio axis, which all blocks share. They include all points, and intervals to `_CUT`."""
    drawn = [point for point in points if point is not None]
    low, high = min([*drawn, 1 / _LEAST]), max([*drawn, _LEAST])
    ends = [max(ratio.low, low / _CUT) for ratio in ratios] + [min(ratio.high, high * _CUT) for ratio in ratios]
    low, high = min([low, *ends]), max([high, *ends])
    pad = (high / low) ** 0.04
    return low / pad, high * pad


def _blocks(report: ComparisonReport) -> list[_Block]:
    """Return a block for each machine, setting and metric. A metric's last block ends with the geometric mean."""

    def key(cell: CellReport) -> tuple[str | None, Setting, str]:
        setting = CellSummary(cell.cell, cell.machine, None, "ok", None, 0, 0).setting
        return cell.base.machine if cell.base else cell.machine, setting, cell.metric.name

    groups = grouped((key(cell), cell) for cell in report.cells)
    settings = list(dict.fromkeys(setting for _, setting, _ in groups))
    machine_is_enough = len({setting.machine for setting in settings}) == len(settings)
    names = dict(zip(settings, distinguishing_settings([setting[:2] for setting in settings]), strict=True))
    several_ranks = len({setting.cell.ranks for setting in settings}) > 1
    blocks = []
    for (base_machine, setting, metric), cells in groups.items():
        machine = setting[0]
        block_name = machine or "unknown machine"
        if not machine_is_enough:
            block_name = ", ".join(filter(None, (names[setting], counted(setting[1].ranks, "rank") * several_ranks)))
        if base_machine is not None and base_machine != machine:
            block_name = f"{base_machine} → {block_name}"
        title = drawable(f"{block_name} · {metric_heading(cells)}")
        blocks.append(_Block(title, metric, cells[0].metric.more_is_better, _rows(cells)))
    for mean in report.means:
        places = [place for place, block in enumerate(blocks) if block.metric == mean.metric.name]
        name = f"geometric mean of {counted(mean.cells, 'cell')}" + (" of all blocks" * (len(places) > 1))
        block = blocks[places[-1]]
        blocks[places[-1]] = replace(block, rows=(*block.rows, _Row("", name, None, mean.ratio, mean.ratio.value)))
    return blocks


def _rows(cells: Sequence[CellReport]) -> tuple[_Row, ...]:
    """Return a row per cell, by batch size and config."""
    configs = list(dict.fromkeys(cell.cell.config for cell in cells))
    ordered = sorted(cells, key=lambda cell: (cell.cell.batch_size, configs.index(cell.cell.config)))
    sizes = [None, *(cell.cell.batch_size for cell in ordered)]
    return tuple(
        _Row(f"batch size {size}" * (size != last), cell.cell.config, cell, cell.ratio, cell.point)
        for cell, size, last in zip(ordered, sizes[1:], sizes, strict=False)
    )


def _small_print(report: ComparisonReport) -> list[str]:
    """Return the lines below the chart: how to read it, what differs between the sides, and what is doubtful."""
    over = {"rounds, in pairs" if cell.by_round else "trials (Welch)" for cell in report.cells if cell.ratio}
    lines = [
        "ratio: current over base, of the geometric means over trials · whisker: its 95% confidence interval over "
        f"{listed(sorted(over)) or 'trials'} · hollow: inconclusive · dashed: the threshold "
        f"({threshold(report.rule.threshold)})"
    ]
    if any(cell.phase_ratio for cell in report.cells):
        lines[0] += " · pale: the interval of the phase that became slower"
    if report.differences:
        lines.append("differs between base and current: " + "; ".join(report.allowed(4)))
    if report.notes:
        lines.append("note: " + first_few(report.notes, 4))
    return [*lines, *(f"doubtful: {line}" for line in report.counted_doubts)]


def _frame(axes: Axes, block: _Block, ends: tuple[float, float], worst: float) -> None:
    """Draw the axes of a block: ratios along x, names along y, lines at 1 and at the threshold.

    `ends` are the limits of the ratios, and `worst` is the ratio at the threshold where more is better."""
    axes.set_xscale("log")  # a factor of 2 is as far from 1 as a factor of 1/2
    axes.set_xlim(ends)
    axes.set_ylim(block.tops[-1], 0)
    wide = ends[1] / ends[0] > 5
    axes.xaxis.set_major_locator(LogLocator(2, numticks=6) if wide else MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter("{x:.4g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labeltop=len(block.rows) > _TALL)
    better = "current / base · Better ⟶" if block.more_is_better else "⟵ Better · current / base"
    axes.set_xlabel(better, color=INK)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    heads = [(top + _ROW / 2, row) for top, row in zip(block.tops, block.rows, strict=False) if row.batch_size]
    labels = [*(row.label for row in block.rows), *(row.batch_size for _, row in heads)]
    axes.set_yticks([*block.places, *(place for place, _ in heads)], labels, size=LEGEND, color=INK)
    for text, row in zip(axes.get_yticklabels(), block.rows, strict=False):
        text.set_color(INK if row.cell else QUIET)
    for text in axes.get_yticklabels()[len(block.rows) :]:
        text.set_fontweight("bold")
    for top, row in zip(block.tops[1:], block.rows[1:], strict=False):
        if row.batch_size or row.cell is None:
            axes.axhline(top, color=FAINT, linewidth=0.7)
    axes.axvline(1, color=QUIET, linewidth=0.9, zorder=1)
    worst = worst if block.more_is_better else 1 / worst
    axes.axvline(worst, color=QUIET, linewidth=0.9, dashes=(4, 2), zorder=1)


def _write_verdicts(axes: Axes, block: _Block, figures: float) -> None:
    """Write the ratios, in a column `figures` points wide, and the verdicts to the right of the axes."""
    widest = max(block.rows, key=lambda row: len(row.verdict))  # the layout makes room for this one alone
    for row, place in zip(block.rows, block.places, strict=True):
        verdict = shortened(drawable(row.verdict), WORDS, _VERDICT)
        style = {"coordinates": axes.get_yaxis_transform(), "bbox": None}
        put(axes, _figures(row), (1, place), (figures - 6, 0), ha="right", in_layout=False, **style)
        put(axes, verdict, (1, place), (figures, 0), ha="left", color=row.ink, in_layout=row is widest, **style)


def _draw_row(axes: Axes, row: _Row, place: float, figures: float) -> None:
    """Draw a row's ratio and interval; for a cell without a ratio, write the reason.

    `place` is the row's height on the y axis in inches, and `figures` the width of the column of ratios in points."""
    low, high = axes.get_xlim()
    if row.point is None:
        room = axes.bbox.width / DPI + figures / 72 - 0.2
        words = shortened(drawable(row.cell.why_no_ratio if row.cell else ""), WORDS, room)
        put(axes, words, (low, place), (4, 0), ha="left", color=QUIET)
        return
    verdict = row.cell.verdict if row.cell else "mean"
    form, size = {"mean": ("D", 5.0), "regression": ("v", 6.0), "improved": ("^", 6.0)}.get(verdict, ("o", 4.5))
    face = PAPER if form == "o" and (row.ratio is None or verdict in ("inconclusive", "unstable")) else row.ink
    if (phase := row.cell.phase_ratio if row.cell else None) is not None:
        ends = max(phase.low, low), min(phase.high, high)
        axes.plot(ends, [place, place], color=row.ink, linewidth=12, alpha=0.3, zorder=2, solid_capstyle="butt")
    if row.ratio is not None:
        ends = max(row.ratio.low, low), min(row.ratio.high, high)
        axes.plot(ends, [place, place], color=row.ink, linewidth=1.3, zorder=3, solid_capstyle="butt")
        for end, limit, arrow in ((ends[0], row.ratio.low, "<"), (ends[1], row.ratio.high, ">")):
            cap, cap_size = ("|", 5.0) if end == limit else (arrow, 4.0)
            axes.plot([end], [place], cap, color=row.ink, markersize=cap_size, zorder=3, clip_on=False)
    style: dict[str, Any] = {"markerfacecolor": face, "markeredgecolor": row.ink, "markeredgewidth": 0.9}
    [drawn] = axes.plot([row.point], [place], form, markersize=size, zorder=4, **style)
    name = row.cell.cell.label if row.cell else row.name
    tooltip(drawn, "\n".join(filter(None, [name, _figures(row), row.verdict])))


def _figures(row: _Row) -> str:
    """Return a row's ratio with its interval: `0.950 (0.938 to 0.962)`."""
    if row.ratio is not None:
        return ratio(row.ratio)
    return "" if row.point is None else f"{quotient(row.point)} (one trial)"


def comparison_section(report: ComparisonReport) -> Section:
    """Return the page's section with the verdicts, the chart and the table of all cells."""
    blocks: list[AnyBlock] = [Prose((_lead(report),))]
    if report.differences:
        words = say(
            "The two sides did not measure the same thing. The verdicts include all differences: ", report.facets, "."
        )
        details = tuple(difference.says for difference in report.differences)
        blocks.append(Notice(Badge("different", "warn", "warn"), words, details))
    blocks.append(Points(_tally(report)))
    table = _table(report.cells)
    measured = any(cell.ratio is not None for cell in report.cells)
    blocks.append(_drawn(report, table) if measured else Data(table))
    if report.notes:
        blocks.append(Notice(Badge("mixed", "warn", "warn"), say("Not all trials are alike."), report.notes))
    return Section("comparison", "Comparison", tuple(blocks))


def _lead(report: ComparisonReport) -> Paragraph:
    """Return the paragraph with the base, the geometric means and the threshold."""
    parts: list[str | Piece] = ["The base is ", strong(report.labels.base), ". "]
    for mean in report.means:
        over = counted(mean.cells, "cell")
        parts += [
            "Over " if mean.cells > 1 else "In ",
            f"{over} with at least two trials a side, {mean.metric.name} is ",
            strong(f"{factor(mean.ratio.value)} the base's"),
            f" (geometric mean; 95% interval {limits(mean.ratio, factor)}). ",
        ]
    parts.append(f"A confirmed loss of more than {report.rule.threshold:.0%} is a regression.")
    parts += [f" With these trials, {seen}." for seen in report.power_lines]
    return say(*parts, *(f" {line[:1].upper()}{line[1:]}." for line in report.machine_lines))


def _tally(report: ComparisonReport) -> tuple[tuple[Badge | None, Paragraph], ...]:
    """Return a line per verdict: its badge, its number of cells and the first six of them."""
    lines = []
    by_verdict = grouped((cell.verdict, cell) for cell in report.cells)
    for verdict in report.verdicts:
        cells = by_verdict[verdict]
        names = "; ".join(dict.fromkeys(_label(cell, report) for cell in cells[:6]))
        more = f"; and {len(cells) - 6} more" if len(cells) > 6 else ""
        lines.append((FORMS[verdict], say(strong(counted(_distinct(cells), "cell")), f": {names}{more}")))
    return tuple(lines)


def _distinct(cells: Sequence[CellReport]) -> int:
    """Return the number of distinct cells. A cell compared by several metrics counts once."""
    return len({(cell.machine, cell.cell) for cell in cells})


def _label(cell: CellReport, report: ComparisonReport) -> str:
    """Return a cell's label, with its metric if there are several metrics."""
    return spaced(cell.cell.label) + (f" ({cell.metric.name})" if len(report.by_metric) > 1 else "")


def _drawn(report: ComparisonReport, table: Table[CellReport]) -> AnyBlock:
    """Return the chart with its table, or the table alone if the chart would be too tall."""
    base = report.labels.base
    try:
        drawing = comparison_chart(report, title=f"Against {base}")
    except SelectionError as error:
        return Data(table, notes=(str(error),))
    metrics = listed([metric.name for metric in report.by_metric]).capitalize()
    return drawings.figure(lambda: drawing, f"{metrics} against {base}", "comparison", table)


def _table(cells: Sequence[CellReport]) -> Table[CellReport]:
    """Return the table of all cells for the page."""
    metrics = {cell.metric.name: metric_with_unit([cell]) for cell in cells}
    columns = (
        *cell_columns((cell.cell for cell in cells), lambda cell: cell.cell),
        Column[CellReport]("config", lambda cell: ", ".join(filter(None, (cell.cell.config, cell.where_in_table)))),
        *([Column[CellReport]("metric", lambda cell: metrics[cell.metric.name])] if len(metrics) > 1 else []),
        Column[CellReport]("verdict", lambda cell: FORMS[cell.verdict]),
        *figure_columns(),
        Column[CellReport]("trials", _trials, COUNT),
        Column[CellReport]("remarks", lambda cell: "; ".join(cell.reasons)),
    )
    return Table(columns, cells, f"Every cell of both sides: {listed(list(metrics.values()))}")


def _trials(cell: CellReport) -> Field:
    """Return the number of successful trials per side: `8 / 8`."""
    counts = [0 if side is None else side.trials_ok for side in (cell.base, cell.current)]
    return Field(" / ".join(map(str, counts)), counts[1])


def comparison_lead(report: ComparisonReport) -> Paragraph:
    """Return the comparison in one sentence: what is worse, else what is better, and what is not settled."""
    worse = [cell for cell in report.cells if cell.verdict == "regression"]
    broken = [cell for cell in report.cells if cell.failing and cell.verdict != "regression"]
    better = [cell for cell in report.cells if cell.verdict == "improved"]
    unsure = [cell for cell in report.cells if cell.unsure]
    parts: list[str | Piece] = []
    counts = (worse, "became worse", "became worse"), (broken, "is missing or fails", "are missing or fail")
    for cells, singular, plural in counts:
        if n := _distinct(cells):
            examples = "; ".join(_label(cell, report) for cell in cells[:3]) + ("; ..." if len(cells) > 3 else "")
            says = f"{counted(n, 'cell')} {singular if n == 1 else plural}"
            parts += ["; " if parts else "", strong(says), f" ({examples})"]
    if better and not parts:
        parts += [strong(f"{counted(_distinct(better), 'cell')} became better"), ", none is confirmed worse"]
    if unsure:
        parts += [
            "; " if parts else "",
            strong(f"{counted(_distinct(unsure), 'cell is', 'cells are')} not settled yet"),
        ]
        parts += [] if worse or broken or better else ["; none is confirmed worse"]
    return say(f"Compared with {report.labels.base}: ", *(parts or [strong("nothing became worse")]), ".")
