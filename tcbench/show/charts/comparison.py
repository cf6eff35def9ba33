"""A comparison as a forest plot: a row per cell with its ratio, the interval, and the verdict as sign and word.

Owns rows, blocks of rows and their axis. Knows nothing of how a verdict came about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tcbench.analysis.compare import CellComparison, Comparison, Mean, Metric
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary
from tcbench.core.errors import SelectionError
from tcbench.show.charts.axes import annotate, size_in_inches
from tcbench.show.charts.palette import FAINT, GAIN, INK, LOSS, QUIET
from tcbench.show.charts.provenance import Setting
from tcbench.show.charts.sheet import MARGIN, WIDTH, Footer, Header, Sheet
from tcbench.show.charts.text import (
    LABEL,
    LEGEND,
    WORDS,
    config_name,
    drawable,
    font,
    line_height,
    shortened,
    text_width,
    wrapped,
)
from tcbench.show.charts.wording import ended
from tcbench.show.comparison.wording import UNNAMED, Sides, allowed, doubts_in_short, heading, headline, several
from tcbench.show.format import number
from tcbench.show.naming import apart, plain
from tcbench.show.verdicts import Tone, signed, tone

MAX_ROWS = 600
"""More are refused: no picture that high can be drawn or read."""

_TALL = 20  # rows; a block of more has its numbers above too
_ROW = 0.215
_GAP = 0.08  # above each batch size but the first
_BATCH = 0.62  # inches for the batch size
_MOST_NAMES = 2.45  # for configs; longer ones are broken into lines
_VERDICT = 2.15
_CUT = 1.6  # of the farthest ratio: intervals are cut there, and marked
_LEAST = 1.05  # the axis reaches this factor to either side at least

_INKS: dict[Tone, str] = {"bad": LOSS, "good": GAIN, "warn": INK, "plain": INK}


def comparison_chart(comparison: Comparison, sides: Sides = UNNAMED, *, title: str = "") -> Figure:
    """A block per machine (and setting) and metric; in it a row per cell, by batch size, then config, in the order of
    first appearance; at the end the geometric mean. Raises SelectionError for nothing to draw or too many cells."""
    if not comparison.cells:
        raise SelectionError("nothing to compare: no cells on either side")
    if len(comparison.cells) > MAX_ROWS:
        raise SelectionError(
            f"{len(comparison.cells)} cells do not fit in one chart (at most {MAX_ROWS}); compare fewer configs"
        )
    blocks = _blocks(comparison)
    layout = _Layout.of(blocks)
    scale = _Scale.of(
        [cell.ratio for cell in comparison.cells if cell.ratio], [row.point for b in blocks for row in b.rows]
    )

    title = title or f"{plain(sides.current)} against {plain(sides.base)}"
    title = title[:1].upper() + title[1:] if sides is UNNAMED else title
    header = Header.of(drawable(title), drawable(headline(comparison)), WIDTH)
    footer = Footer.of(map(drawable, _small_print(comparison)), WIDTH)
    heights = [block.height(layout) for block in blocks]
    height = 0.3 + header.height + sum(heights) + 0.12 + footer.height + 0.22
    sheet = Sheet(WIDTH, height)
    y = header.draw(sheet, 0.3)
    for block, block_height in zip(blocks, heights, strict=True):
        _draw_block(sheet, y, block, layout, scale, comparison)
        y += block_height
    footer.draw(sheet, y + 0.12)
    return sheet.figure


@dataclass(frozen=True)
class _Row:
    """One cell, or the mean of all. `batch_size` is empty where it is that of the row above."""

    batch_size: str
    name: str
    cell: CellComparison | None
    mean: Mean | None = None

    @property
    def ratio(self) -> Interval | None:
        if self.mean is not None:
            return self.mean.ratio
        return self.cell.ratio if self.cell else None

    @property
    def point(self) -> float | None:
        """The ratio, also where there are too few trials for an interval."""
        if self.ratio is not None:
            return self.ratio.value
        base, current = (self.cell.base, self.cell.current) if self.cell else (None, None)
        if base is None or current is None or base.figure is None or current.figure is None:
            return None
        return current.figure / base.figure

    @property
    def ink(self) -> str:
        return QUIET if self.cell is None else _INKS[tone(self.cell)]

    @property
    def verdict(self) -> str:
        return signed(self.cell) if self.cell else ""

    @property
    def instead(self) -> str:
        """What stands in place of a ratio."""
        if self.cell is None or self.point is not None:
            return ""
        base, current = self.cell.base, self.cell.current
        if current is None and base is not None:
            return f"not in current; base: {_state(self.cell, base.figure, base.status)}"
        if base is None and current is not None:
            return f"not in base; current: {_state(self.cell, current.figure, current.status)}"
        assert base is not None and current is not None
        if base.status == current.status == "ok":
            return self.cell.why or ""
        if base.status == current.status:
            return f"{ended(base.status)} on both sides"
        now = ended(current.status)
        reason = f": {current.reason.removeprefix(now + ': ')}" if current.reason else ""
        return f"{ended(base.status)} → {now}{reason}"


def _state(cell: CellComparison, figure: float | None, status: str) -> str:
    if figure is None:
        return status
    return f"{figure / 2**20:.0f} MiB" if cell.metric.unit == "bytes" else f"{number(figure)} {cell.metric.unit}"


@dataclass(frozen=True)
class _Block:
    """The rows of one metric on one machine. `title` may be several lines long when drawn."""

    title: str
    metric: Metric
    rows: tuple[_Row, ...]

    def titles(self) -> list[str]:
        return wrapped(self.title, LABEL, WIDTH - 2 * MARGIN, bold=True)

    def height(self, layout: _Layout) -> float:
        return 0.2 + len(self.titles()) * line_height(LABEL) + self.above + layout.rows_height(self.rows) + 0.42

    @property
    def above(self) -> float:
        """Between title and rows, inches."""
        return 0.06 if len(self.rows) <= _TALL else 0.22


@dataclass(frozen=True)
class _Layout:
    """Where columns stand, inches from the left."""

    names: float
    ratios: float

    @staticmethod
    def of(blocks: Sequence[_Block]) -> _Layout:
        rows = [row for block in blocks for row in block.rows]
        names = max(text_width(config_name(row.name), LEGEND) for row in rows)
        return _Layout(min(names, _MOST_NAMES), max(text_width(_figures(row), WORDS) for row in rows) + 0.25)

    @property
    def left(self) -> float:
        return MARGIN + _BATCH + self.names + 0.15

    @property
    def right(self) -> float:
        return WIDTH - MARGIN - _VERDICT - self.ratios

    def lines(self, row: _Row) -> list[str]:
        return wrapped(config_name(row.name), LEGEND, self.names + 0.01) or [""]

    def row_height(self, row: _Row) -> float:
        gap = _GAP if row.batch_size else 0.0
        return max(_ROW, 0.05 + len(self.lines(row)) * line_height(LEGEND)) + gap

    def rows_height(self, rows: Sequence[_Row]) -> float:
        return sum(map(self.row_height, rows))


@dataclass(frozen=True)
class _Scale:
    """The axis of ratios, the same in all blocks: logarithms, so that twice and half lie as far from 1."""

    low: float
    high: float

    @staticmethod
    def of(ratios: Sequence[Interval], points: Sequence[float | None]) -> _Scale:
        values = [value for value in points if value is not None]
        low, high = min([*values, 1 / _LEAST]), max([*values, _LEAST])
        ends = [max(ratio.low, low / _CUT) for ratio in ratios] + [min(ratio.high, high * _CUT) for ratio in ratios]
        low, high = math.log(min([low, *ends])), math.log(max([high, *ends]))
        pad = 0.04 * (high - low)
        return _Scale(low - pad, high + pad)

    def ticks(self) -> list[float]:
        low, high = math.exp(self.low), math.exp(self.high)
        if high / low > 8:
            each = -(-math.ceil(math.log2(high / low)) // 8)  # of the powers of two, 1 always among them
            powers = [2.0 ** (each * n) for n in range(-40, 41)]
            return [value for value in powers if low <= value <= high]
        found = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        return [value for value in found if low <= value <= high]


def _blocks(comparison: Comparison) -> list[_Block]:
    found: dict[tuple[str | None, Setting, str], list[CellComparison]] = {}
    for cell in comparison.cells:
        setting = CellSummary(cell.cell, cell.machine, None, "ok", None, 0, 0).setting
        came_from = cell.base.machine if cell.base else cell.machine
        found.setdefault((came_from, setting, cell.metric.name), []).append(cell)
    settings = list(dict.fromkeys(setting for _, setting, _ in found))
    machines_alone = len({machine for machine, _ in settings}) == len(settings)
    names = dict(zip(settings, apart(settings), strict=True))
    blocks = []
    for (came_from, setting, _), cells in found.items():
        metric, machine = cells[0].metric, setting[0]
        where = plain(machine or "unknown machine")
        if not machines_alone:
            where = names[setting]
        if came_from is not None and came_from != machine:
            where = f"{plain(came_from)} → {where}"
        blocks.append(_Block(drawable(f"{where} · {heading(metric)}"), metric, _rows(cells)))
    for mean in comparison.means:
        place = max(n for n, block in enumerate(blocks) if block.metric is mean.metric)
        several_blocks = sum(block.metric is mean.metric for block in blocks) > 1
        name = f"geometric mean of {mean.cells} cell{'s' * (mean.cells != 1)}" + (" of all blocks" * several_blocks)
        block = blocks[place]
        blocks[place] = _Block(block.title, block.metric, (*block.rows, _Row("all", name, None, mean)))
    return blocks


def _rows(cells: Sequence[CellComparison]) -> tuple[_Row, ...]:
    configs = list(dict.fromkeys(cell.cell.config for cell in cells))
    ordered = sorted(cells, key=lambda cell: (cell.cell.batch_size, configs.index(cell.cell.config)))
    rows: list[_Row] = []
    last = None
    for cell in ordered:
        size = cell.cell.batch_size
        rows.append(_Row("" if size == last else f"{size}", plain(cell.cell.config), cell))
        last = size
    return tuple(rows)


def _small_print(comparison: Comparison) -> list[str]:
    lines = [
        "ratio: current over base, of the geometric means over trials · whisker: its 95% confidence interval over "
        "trials (Welch) · hollow: inconclusive · dashed: the threshold "
        f"({comparison.rule.threshold * 100:.3g}%)"
    ]
    if comparison.differences:
        lines.append("differs between the sides: " + "; ".join(allowed(comparison.differences, 4)))
    if comparison.notes:
        lines.append("note: " + several([plain(note) for note in comparison.notes], 4))
    lines += [f"doubtful: {line}" for line in doubts_in_short(comparison)]
    return lines


def _draw_block(sheet: Sheet, y: float, block: _Block, layout: _Layout, scale: _Scale, comparison: Comparison) -> None:
    y += 0.2
    for line in block.titles():
        sheet.text(MARGIN, y, line, LABEL, bold=True)
        y += line_height(LABEL)
    y += block.above
    width, height = layout.right - layout.left, layout.rows_height(block.rows)
    axes = sheet.axes(layout.left, y, width, height)
    _style(axes, scale, height, both_ends=len(block.rows) > _TALL)
    worst = 1 - comparison.rule.threshold
    for value, dashes in ((1.0, None), (worst if block.metric.more_is_better else 1 / worst, (0, (4, 2)))):
        axes.axvline(math.log(value), color=QUIET, linewidth=0.9, linestyle=dashes or "-", zorder=1)
    top = y
    for n, row in enumerate(block.rows):
        row_height = layout.row_height(row)
        gap = _GAP if row.batch_size else 0.0
        middle = top + gap + (row_height - gap) / 2
        if row.batch_size and n:
            axes.axhline(top + gap / 2 - y, color=FAINT, linewidth=0.7)
        _draw_row(sheet, axes, row, middle, middle - y, layout, scale)
        top += row_height
    words, arrow = "current / base · Better", 0.42
    length = text_width(words, WORDS)
    left = layout.left + (width - length - arrow - 0.08) / 2
    at = top + 0.2 + line_height(WORDS) / 2
    if block.metric.more_is_better:
        sheet.better((left + length + 0.08, at), (left + length + 0.08 + arrow, at))
    else:
        sheet.better((left + arrow, at), (left, at))
        left += arrow + 0.08
    sheet.text(left, at, words, WORDS, va="center", colour=QUIET)


def _style(axes: Axes, scale: _Scale, height: float, both_ends: bool) -> None:
    axes.set_xlim(scale.low, scale.high)
    axes.set_ylim(height, 0)  # inches from the top
    axes.set_yticks([])
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(QUIET)
        spine.set_linewidth(0.8)
    ticks = scale.ticks()
    # Labels that would touch are left out, 1 never.
    width, _ = size_in_inches(axes)
    per_inch = width / (scale.high - scale.low)
    shown: list[float] = []
    for value in sorted(ticks, key=lambda value: (value != 1.0, abs(math.log(value)))):
        room = text_width(f"{value:.4g}", WORDS) + 0.08
        if all(abs(math.log(value) - math.log(other)) * per_inch >= room for other in shown):
            shown.append(value)
    axes.set_xticks([math.log(value) for value in sorted(shown)], [f"{value:.4g}" for value in sorted(shown)])
    axes.grid(axis="x", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=0, pad=3, labelcolor=QUIET, labeltop=both_ends)
    for tick in axes.xaxis.get_major_ticks():
        for label in (tick.label1, tick.label2):
            label.set_fontproperties(font(WORDS))


def _draw_row(sheet: Sheet, axes: Axes, row: _Row, y: float, at: float, layout: _Layout, scale: _Scale) -> None:
    """One row: its names at `y` inches from the page's top, its mark at `at` from the axes'."""
    if row.batch_size:
        sheet.text(MARGIN + _BATCH - 0.2, y, row.batch_size, LEGEND, ha="right", va="center", bold=True)
    lines = layout.lines(row)
    top = y - len(lines) * line_height(LEGEND) / 2
    for line in lines:
        middle = top + line_height(LEGEND) / 2
        sheet.text(MARGIN + _BATCH, middle, line, LEGEND, va="center", colour=QUIET if row.mean else INK)
        top += line_height(LEGEND)
    right = WIDTH - MARGIN - _VERDICT
    sheet.text(right - 0.1, y, _figures(row), WORDS, ha="right", va="center")
    verdict = shortened(drawable(row.verdict), WORDS, _VERDICT - 0.02)
    sheet.text(right, y, verdict, WORDS, va="center", colour=row.ink)
    if row.point is None:
        room = WIDTH - MARGIN - _VERDICT - layout.left - 0.2
        words = shortened(drawable(plain(row.instead)), WORDS, room)
        annotate(axes, words, (scale.low, at), (4, 0), WORDS, ha="left", colour=QUIET)
        return
    _draw_mark(axes, row, at, scale)


def _draw_mark(axes: Axes, row: _Row, at: float, scale: _Scale) -> None:
    assert row.point is not None
    if row.ratio is not None:
        low = math.log(row.ratio.low) if row.ratio.low > 0 else -math.inf
        high = math.log(row.ratio.high) if row.ratio.high < math.inf else math.inf
        ends = max(low, scale.low), min(high, scale.high)
        axes.plot(ends, [at, at], color=row.ink, linewidth=1.3, zorder=3, solid_capstyle="butt")
        for end, cut, mark in ((ends[0], low < scale.low, "<"), (ends[1], high > scale.high, ">")):
            form, size = (mark, 4.0) if cut else ("|", 5.0)
            axes.plot([end], [at], form, color=row.ink, markersize=size, zorder=3, clip_on=False)
    verdict = row.cell.verdict if row.cell else None
    form, size, face = "o", 4.5, row.ink
    if row.mean is not None:
        form, size = "D", 5.0
    elif verdict == "regression":
        form, size = "v", 6.0
    elif verdict == "improved":
        form, size = "^", 6.0
    elif row.ratio is None or verdict == "inconclusive":
        face = "white"
    axes.plot(
        [math.log(row.point)],
        [at],
        form,
        markersize=size,
        markerfacecolor=face,
        markeredgecolor=row.ink,
        markeredgewidth=0.9,
        zorder=4,
    )


def _figures(row: _Row) -> str:
    """`0.950 (0.938 to 0.962)`."""
    if row.ratio is not None:
        return f"{_factor(row.ratio.value)} ({_factor(row.ratio.low)} to {_factor(row.ratio.high)})"
    return "" if row.point is None else f"{_factor(row.point)} (one trial)"


def _factor(value: float) -> str:
    if not math.isfinite(value) or value >= 1000:
        return ">1000"
    return f"{value:.3f}" if value < 10 else f"{value:.3g}"
