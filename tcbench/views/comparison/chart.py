"""A comparison as a forest plot: a row per cell with its ratio, the interval, and the verdict as sign and word.

Owns rows, blocks of rows and their axis. Knows nothing of how a verdict came about.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from tcbench.analysis.compare import CellComparison, Comparison, Mean, Metric, Side
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, Setting
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.present.charts.inline import tooltip
from tcbench.present.charts.page import ChartPage, put
from tcbench.present.charts.palette import FAINT, GAIN, INK, LOSS, PAPER, QUIET
from tcbench.present.charts.provenance import first_panels
from tcbench.present.charts.text import (
    DPI,
    LABEL,
    LEGEND,
    WORDS,
    config_name,
    drawable,
    line_height,
    shortened,
    text_width,
    wrapped,
)
from tcbench.present.format import counted, listed, quotient, ratio, threshold
from tcbench.present.naming import apart
from tcbench.present.sides import UNNAMED, Labels, allowed, several
from tcbench.present.tables import Tone
from tcbench.present.verdicts import STATUS_BADGES, signed, tone
from tcbench.views.comparison.wording import doubts_in_short, figure, heading, headline, unit

MAX_ROWS = 600
"""More are refused: no picture that high can be drawn or read."""

_TALL = 20  # rows; a block of more has its numbers above too
_ROW = 0.215
_MOST_NAMES = 2.45  # for configs; longer ones are broken into lines
_VERDICT = 2.15
_CUT = 1.6  # of the farthest ratio: intervals are cut there, and marked
_LEAST = 1.05  # the axis reaches this factor to either side at least

_INKS: dict[Tone, str] = {"bad": LOSS, "good": GAIN, "warn": INK, "plain": INK}


def comparison_chart(comparison: Comparison, labels: Labels = UNNAMED, *, title: str = "") -> Figure:
    """A block per machine (and setting) and metric; in it a row per cell, by batch size, then config, in the order of
    first appearance; at the end the geometric mean. Raises SelectionError for nothing to draw or too many cells."""
    if not comparison.cells:
        raise SelectionError("nothing to compare: no cells on either side")
    if len(comparison.cells) > MAX_ROWS:
        raise SelectionError(
            f"{len(comparison.cells)} cells do not fit in one chart (at most {MAX_ROWS}); compare fewer configs"
        )
    blocks, more = first_panels(_blocks(comparison), lambda block: block.title, "--config, or name fewer files")
    scale = _Scale.of(
        [cell.ratio for cell in comparison.cells if cell.ratio], [row.point for b in blocks for row in b.rows]
    )
    compared = "" if labels is UNNAMED else f"{_short(labels.current)} against {_short(labels.base)} · "
    subtitle = drawable(compared + headline(comparison))
    page = ChartPage(drawable(title or "What got slower?"), subtitle, [*map(drawable, _small_print(comparison)), *more])
    column = page.panels([block.height for block in blocks])[:, 0]
    figures = 72 * max(text_width(_figures(row), WORDS) for block in blocks for row in block.rows) + 14
    for axes, block in zip(column, blocks, strict=True):
        title_lines = wrapped(block.title, LABEL, page.room, bold=True)
        page.heading(axes, "\n".join(title_lines))
        _frame(axes, block, scale, 1 - comparison.rule.threshold)
        _write_verdicts(axes, block, figures)
    page.settle()
    for axes, block in zip(column, blocks, strict=True):
        for row, place in zip(block.rows, block.places, strict=True):
            _draw_row(axes, row, place, scale, figures)
    return page.figure


def _short(label: str) -> str:
    """A side's name, of a file only what comes after the last slash."""
    return label.rpartition("/")[2].replace(".jsonl", "") or label


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
    def of_phase(self) -> Interval | None:
        """The ratio if nothing had changed but the phase that a loss surely sits in."""
        culprit = self.cell.culprit if self.cell else None
        by = culprit.slower_by if culprit is not None and culprit.decision == "slower" else None
        return by and 1 / Interval(1 + by.value, 1 + by.low, 1 + by.high)

    @property
    def label(self) -> str:
        return "\n".join(wrapped(config_name(self.name), LEGEND, _MOST_NAMES))

    @property
    def height(self) -> float:
        """Inches."""
        return max(_ROW, 0.05 + (1 + self.label.count("\n")) * line_height(LEGEND))

    @property
    def ink(self) -> str:
        return QUIET if self.cell is None else _INKS[tone(self.cell)]

    @property
    def verdict(self) -> str:
        return signed(self.cell) if self.cell else ""

    @property
    def instead(self) -> str:
        """Words in place of a ratio."""
        if self.cell is None or self.point is not None:
            return ""
        base, current = self.cell.base, self.cell.current
        if current is None and base is not None:
            return f"not in current; base: {_state(self.cell, base)}"
        if base is None and current is not None:
            return f"not in base; current: {_state(self.cell, current)}"
        assert base is not None and current is not None
        if base.status == current.status == "ok":
            return self.cell.why or ""
        if base.status == current.status:
            return f"{STATUS_BADGES[base.status].word} on both sides"
        now = STATUS_BADGES[current.status].word
        reason = f": {current.reason.removeprefix(now + ': ')}" if current.reason else ""
        return f"{STATUS_BADGES[base.status].word} → {now}{reason}"


def _state(cell: CellComparison, side: Side) -> str:
    if side.figure is None:
        return side.status
    words = figure(cell.metric, side)
    return words if cell.metric.unit == "bytes" else f"{words} {unit(cell.metric, [cell.cell])}"


@dataclass(frozen=True)
class _Block:
    """Rows of one metric on one machine, below each other in inches."""

    title: str
    metric: Metric
    rows: tuple[_Row, ...]

    @cached_property
    def tops(self) -> list[float]:
        """Tops of the rows, and at last the foot of the last one: a batch size stands above its first row."""
        heights = [row.height + _ROW * bool(row.batch_size) for row in self.rows]
        return [0.0, *itertools.accumulate(heights)]

    @property
    def places(self) -> list[float]:
        """The middle of each row."""
        return [end - row.height / 2 for row, end in zip(self.rows, self.tops[1:], strict=True)]

    @property
    def height(self) -> float:
        return self.tops[-1]


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
        low, high = min([low, *ends]), max([high, *ends])
        pad = (high / low) ** 0.04
        return _Scale(low / pad, high * pad)


def _blocks(comparison: Comparison) -> list[_Block]:
    def key(cell: CellComparison) -> tuple[str | None, Setting, str]:
        setting = CellSummary(cell.cell, cell.machine, None, "ok", None, 0, 0).setting
        return cell.base.machine if cell.base else cell.machine, setting, cell.metric.name

    groups = grouped((key(cell), cell) for cell in comparison.cells)
    settings = list(dict.fromkeys(setting for _, setting, _ in groups))
    machines_alone = len({setting.machine for setting in settings}) == len(settings)
    names = dict(zip(settings, apart([setting[:2] for setting in settings]), strict=True))
    several_ranks = len({setting.cell.ranks for setting in settings}) > 1
    blocks = []
    for (came_from, setting, _), cells in groups.items():
        metric, machine = cells[0].metric, setting[0]
        where = machine or "unknown machine"
        if not machines_alone:
            where = ", ".join(filter(None, (names[setting], counted(setting[1].ranks, "rank") * several_ranks)))
        if came_from is not None and came_from != machine:
            where = f"{came_from} → {where}"
        title = f"{where} · {heading(metric, [cell.cell for cell in cells])}"
        blocks.append(_Block(drawable(title), metric, _rows(cells)))
    for mean in comparison.means:
        place = max(n for n, block in enumerate(blocks) if block.metric is mean.metric)
        several_blocks = sum(block.metric is mean.metric for block in blocks) > 1
        name = f"geometric mean of {counted(mean.cells, 'cell')}" + (" of all blocks" * several_blocks)
        block = blocks[place]
        blocks[place] = _Block(block.title, block.metric, (*block.rows, _Row("", name, None, mean)))
    return blocks


def _rows(cells: Sequence[CellComparison]) -> tuple[_Row, ...]:
    configs = list(dict.fromkeys(cell.cell.config for cell in cells))
    ordered = sorted(cells, key=lambda cell: (cell.cell.batch_size, configs.index(cell.cell.config)))
    rows: list[_Row] = []
    last = None
    for cell in ordered:
        size = cell.cell.batch_size
        rows.append(_Row("" if size == last else f"batch size {size}", cell.cell.config, cell))
        last = size
    return tuple(rows)


def _small_print(comparison: Comparison) -> list[str]:
    over = {"rounds, in pairs" if cell.by_round else "trials (Welch)" for cell in comparison.cells if cell.estimate}
    lines = [
        "ratio: current over base, of the geometric means over trials · whisker: its 95% confidence interval over "
        f"{listed(sorted(over)) or 'trials'} · hollow: inconclusive · dashed: the threshold "
        f"({threshold(comparison.rule.threshold)})"
    ]
    if any(_Row("", "", cell).of_phase for cell in comparison.cells):
        lines[0] += " · pale: the interval of the named phase"
    if comparison.differences:
        lines.append("differs between base and current: " + "; ".join(allowed(comparison.differences, 4)))
    if comparison.notes:
        lines.append("note: " + several(comparison.notes, 4))
    lines += [f"doubtful: {line}" for line in doubts_in_short(comparison)]
    return lines


def _frame(axes: Axes, block: _Block, scale: _Scale, worst: float) -> None:
    """Ratios along x, names along y, lines at 1 and at the threshold."""
    axes.set_xscale("log")
    axes.set_xlim(scale.low, scale.high)
    axes.set_ylim(block.height, 0)
    wide = scale.high / scale.low > 5
    axes.xaxis.set_major_locator(LogLocator(2, numticks=6) if wide else MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter("{x:.4g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labeltop=len(block.rows) > _TALL)
    better = "current / base · Better ⟶" if block.metric.more_is_better else "⟵ Better · current / base"
    axes.set_xlabel(better, color=INK)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    heads = [(top + _ROW / 2, row) for top, row in zip(block.tops, block.rows, strict=False) if row.batch_size]
    labels = [*(row.label for row in block.rows), *(row.batch_size for _, row in heads)]
    axes.set_yticks([*block.places, *(place for place, _ in heads)], labels, size=LEGEND, color=INK)
    for text, row in zip(axes.get_yticklabels(), block.rows, strict=False):
        text.set_color(QUIET if row.mean else INK)
    for text in axes.get_yticklabels()[len(block.rows) :]:
        text.set_fontweight("bold")
    for top, row in zip(block.tops[1:], block.rows[1:], strict=False):
        if row.batch_size or row.mean:
            axes.axhline(top, color=FAINT, linewidth=0.7)
    axes.axvline(1, color=QUIET, linewidth=0.9, zorder=1)
    axes.axvline(
        worst if block.metric.more_is_better else 1 / worst, color=QUIET, linewidth=0.9, dashes=(4, 2), zorder=1
    )


def _write_verdicts(axes: Axes, block: _Block, figures: float) -> None:
    """Right of the axes: ratios in a column `figures` points wide, and verdicts."""
    widest = max(block.rows, key=lambda row: len(row.verdict))
    for row, place in zip(block.rows, block.places, strict=True):
        verdict = shortened(drawable(row.verdict), WORDS, _VERDICT)
        beside = {"coordinates": axes.get_yaxis_transform(), "bbox": None}
        put(axes, _figures(row), (1, place), (figures - 6, 0), ha="right", in_layout=False, **beside)
        put(axes, verdict, (1, place), (figures, 0), ha="left", color=row.ink, in_layout=row is widest, **beside)


def _draw_row(axes: Axes, row: _Row, place: float, scale: _Scale, figures: float) -> None:
    if row.point is None:
        room = axes.bbox.width / DPI + figures / 72 - 0.2
        words = shortened(drawable(row.instead), WORDS, room)
        put(axes, words, (scale.low, place), (4, 0), ha="left", color=QUIET)
        return
    verdict = row.cell.verdict if row.cell else "mean"
    form, size = {"mean": ("D", 5.0), "regression": ("v", 6.0), "improved": ("^", 6.0)}.get(verdict, ("o", 4.5))
    face = PAPER if form == "o" and (row.ratio is None or verdict == "inconclusive") else row.ink
    if (phase := row.of_phase) is not None:
        ends = max(phase.low, scale.low), min(phase.high, scale.high)
        axes.plot(ends, [place, place], color=row.ink, linewidth=12, alpha=0.3, zorder=2, solid_capstyle="butt")
    if row.ratio is not None:
        ends = max(row.ratio.low, scale.low), min(row.ratio.high, scale.high)
        axes.plot(ends, [place, place], color=row.ink, linewidth=1.3, zorder=3, solid_capstyle="butt")
        for end, whole, mark in ((ends[0], row.ratio.low, "<"), (ends[1], row.ratio.high, ">")):
            cap, cap_size = ("|", 5.0) if end == whole else (mark, 4.0)
            axes.plot([end], [place], cap, color=row.ink, markersize=cap_size, zorder=3, clip_on=False)
    style: dict[str, Any] = {"markerfacecolor": face, "markeredgecolor": row.ink, "markeredgewidth": 0.9}
    [drawn] = axes.plot([row.point], [place], form, markersize=size, zorder=4, **style)
    name = row.cell.cell.label if row.cell else row.name
    tooltip(drawn, "\n".join(filter(None, [name, _figures(row), row.verdict])))


def _figures(row: _Row) -> str:
    """`0.950 (0.938 to 0.962)`."""
    if row.ratio is not None:
        return ratio(row.ratio)
    return "" if row.point is None else f"{quotient(row.point)} (one trial)"
