"""Training runs side by side: the loss of each technique, the same over fp32's of the same seed, and where test loss
and accuracy ended against the margins of the verdict.

Owns how runs look on paper. Knows nothing of how a verdict is reached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from tcbench.core.numerics import BASE, Document, Technique
from tcbench.numerics.equivalence import Equivalence
from tcbench.numerics.judgement import (
    Margins,
    Point,
    Verdict,
    Word,
    loss_curve,
    not_learnt,
    ratio_curve,
    relative,
    techniques_of,
    verdicts,
)
from tcbench.show.charts.palette import FAINT, GAIN, GAIN_PALE, INK, LOSS, QUIET, RAMPS
from tcbench.show.charts.sheet import MARGIN, WIDTH, Footer, Header, Sheet
from tcbench.show.charts.text import (
    LABEL,
    LEGEND,
    SMALL,
    WORDS,
    drawable,
    font,
    line_height,
    shortened,
    text_width,
    wrapped,
)

_POINTS = 24
"""Windows along a curve."""
_LEFT, _PANEL, _GAP, _ROW = 0.8, 2.6, 0.72, 0.27


@dataclass(frozen=True)
class _Look:
    """A technique's line: colour and dashes, so that it is known without colour too."""

    colour: str
    dashes: Any = "-"
    width: float = 1.6


_LOOKS = {
    BASE: _Look(RAMPS["fp32"][3], "-", 2.2),
    "neither": _Look(RAMPS["fp16"][4]),
    "scaling": _Look(RAMPS["fp16"][1], (0, (6, 2))),
    "masters": _Look(RAMPS["fp16"][2], (0, (2, 1.5))),
    "both": _Look(GAIN, (0, (7, 2, 1.5, 2))),
    "dynamic": _Look(RAMPS["bf16"][4], (0, (1, 1.6))),
}
_WORD_COLOURS: dict[Word, str] = {"trains like fp32": GAIN, "does not": LOSS, "undecided": QUIET}


def training_chart(document: Document, margins: Margins, about: Sequence[str]) -> Figure:
    """`about`: the small print's facts of machine and setting."""
    techniques = techniques_of(document)
    judged = verdicts(document, margins)
    nothing = not_learnt(document)
    seeds = len({run.seed for run in document.runs})
    window = max(1, document.setting.steps // _POINTS)
    curves = "every step" if window == 1 else f"means of {window} steps"
    header = Header.of(
        "Does fp16 train like fp32?",
        "1 seed: the same weights and batches for every technique; one seed has no intervals"
        if seeds == 1
        else f"{seeds} seeds, each with the same weights and batches for every technique; bands and whiskers: "
        "intervals over seeds",
        WIDTH,
    )
    footer = Footer.of(
        [
            " · ".join(about),
            *([f"{nothing}."] if nothing else []),
            f"Curves: {curves}, 95% intervals; one that ends early diverged. Below: 90% intervals of "
            f"the paired difference; like fp32 is within {margins.loss:.0%} of its test loss and "
            f"{100 * margins.accuracy:g} points of its accuracy (shaded), by two one-sided tests at 5%.",
        ],
        WIDTH,
    )
    legend = _legend_height(techniques)
    titles = line_height(LABEL) + 0.06
    height = 0.3 + header.height + legend + titles + _PANEL + _GAP + titles + _ROW * len(judged) + 0.55
    height += footer.height + 0.22
    sheet = Sheet(WIDTH, height)
    y = header.draw(sheet, 0.3) + 0.06
    _legend(sheet, y, techniques)
    y += legend
    width = (WIDTH - _LEFT - MARGIN - 0.75) / 2
    right = WIDTH - MARGIN - width
    sheet.text(_LEFT, y, "Training loss", LABEL, bold=True)
    sheet.text(right, y, "Training loss over fp32's, same seed", LABEL, bold=True)
    y += titles
    _curves(
        sheet.axes(_LEFT, y, width, _PANEL),
        {technique.name: loss_curve(document, technique.name, window) for technique in techniques},
        bands=False,
        steps=document.setting.steps,
    )
    ratios = sheet.axes(right, y, width, _PANEL)
    ratios.axhspan(1 / (1 + margins.loss), 1 + margins.loss, color=GAIN_PALE, alpha=0.45, linewidth=0, zorder=0)
    _curves(
        ratios,
        {t.name: ratio_curve(document, t.name, window) for t in techniques if t.name != BASE},
        bands=True,
        steps=document.setting.steps,
    )
    ratios.axhline(1, color=_LOOKS[BASE].colour, linewidth=1.0)
    y += _PANEL
    for x in (_LEFT, right):
        sheet.text(x + width / 2, y + 0.28, "step", WORDS, ha="center", colour=QUIET)
    _forest(sheet, y + _GAP, judged, margins, titles)
    footer.draw(sheet, y + _GAP + titles + _ROW * len(judged) + 0.5)
    return sheet.figure


def _legend_rows(techniques: Sequence[Technique]) -> list[list[Technique]]:
    rows: list[list[Technique]] = [[]]
    x = 0.0
    for technique in techniques:
        needed = 0.5 + text_width(technique.label, LEGEND) + 0.25
        if rows[-1] and x + needed > WIDTH - 2 * MARGIN:
            rows.append([])
            x = 0.0
        rows[-1].append(technique)
        x += needed
    return rows


def _legend_height(techniques: Sequence[Technique]) -> float:
    return len(_legend_rows(techniques)) * (line_height(LEGEND) + 0.03) + 0.12


def _legend(sheet: Sheet, y: float, techniques: Sequence[Technique]) -> None:
    from matplotlib.lines import Line2D

    for row in _legend_rows(techniques):
        x, middle = MARGIN, y + line_height(LEGEND) / 2
        for technique in row:
            look = _LOOKS[technique.name]
            ends = [x / sheet.width, (x + 0.42) / sheet.width], [1 - middle / sheet.height] * 2
            sheet.figure.add_artist(
                Line2D(*ends, color=look.colour, linestyle=look.dashes, linewidth=look.width, solid_capstyle="butt")
            )
            sheet.text(x + 0.5, middle, technique.label, LEGEND, va="center_baseline", gid="legend")
            x += 0.5 + text_width(technique.label, LEGEND) + 0.25
        y += line_height(LEGEND) + 0.03


def _curves(axes: Axes, curves: dict[str, tuple[Point, ...]], *, bands: bool, steps: int) -> None:
    for name, points in curves.items():
        look = _LOOKS[name]
        x = [point.step for point in points]
        if bands:
            lows, highs = [p.value.low for p in points], [p.value.high for p in points]
            axes.fill_between(x, lows, highs, color=look.colour, alpha=0.16, linewidth=0)
        y = [point.value.value for point in points]
        axes.plot(x, y, color=look.colour, linestyle=look.dashes, linewidth=look.width)
        if points and points[-1].step < steps - 1.5 * (points[0].step * 2):
            axes.plot(x[-1:], y[-1:], marker="x", color=look.colour, markersize=6, markeredgewidth=1.8)
    axes.set_yscale("log")
    axes.set_xlim(0, steps)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("bottom", "left"))
        spine.set_color(QUIET)
        spine.set_linewidth(0.8)
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    low, high = _ends(axes.get_ylim(), curves)
    axes.set_yticks(_ticks(low, high))
    axes.set_ylim(low, high)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    _labels(axes)


def _ends(drawn: tuple[float, float], curves: dict[str, tuple[Point, ...]]) -> tuple[float, float]:
    """The axis' ends: what was drawn, but a band far wider than all curves is cut off."""
    values = [point.value.value for points in curves.values() for point in points]
    values = [value for value in values if 0 < value < math.inf] or [1.0]
    return max(drawn[0], min(values) / _BAND_AT_MOST), min(drawn[1], max(values) * _BAND_AT_MOST)


_BAND_AT_MOST = 3.0


def _ticks(low: float, high: float) -> list[float]:
    """Round values between the ends, about five of them, evenly on neither scale but easy to read."""
    few_decades = high / low < 50
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if few_decades else ():
        first = math.ceil(low / step) * step
        values = [first + i * step for i in range(8)]
        inside = [round(value, 6) for value in values if low <= value <= high]
        if len(inside) <= 6 and first + 8 * step > high:
            return inside
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    return [10.0**n for n in range(first, last + 1, max(1, -(-(last - first + 1) // 6)))]


def _labels(axes: Axes) -> None:
    axes.tick_params(which="both", length=0, pad=4, labelcolor=QUIET)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_fontproperties(font(WORDS))


def _forest(sheet: Sheet, y: float, judged: Sequence[Verdict], margins: Margins, titles: float) -> None:
    """One row per technique: its name, its word, and both differences with their intervals."""
    from tcbench.core.numerics import TECHNIQUES

    names = max((text_width(TECHNIQUES[v.technique].label, LEGEND) for v in judged), default=1.0)
    words = max((text_width(v.word, LEGEND, True) for v in judged), default=1.0)
    begin = MARGIN + names + 0.2 + words + 0.3
    width = (WIDTH - MARGIN - begin - 0.35) / 2
    sheet.text(MARGIN, y, "At the end, on held-out images", LABEL, bold=True)
    columns = (
        (begin, "test loss, difference from fp32", [v.loss for v in judged], margins.loss, True),
        (begin + width + 0.35, "accuracy, difference in points", [v.accuracy for v in judged], margins.accuracy, False),
    )
    for x, title, tests, margin, of_loss in columns:
        sheet.text(x + width / 2, y, title, WORDS, ha="center", colour=QUIET)
        _differences(sheet.axes(x, y + titles, width, _ROW * max(1, len(judged))), tests, judged, margin, of_loss)
    for i, verdict in enumerate(judged):
        middle = y + titles + (i + 0.5) * _ROW
        sheet.text(MARGIN, middle, TECHNIQUES[verdict.technique].label, LEGEND, va="center_baseline")
        word = verdict.word
        sheet.text(
            MARGIN + names + 0.2, middle, word, LEGEND, bold=True, va="center_baseline", colour=_WORD_COLOURS[word]
        )
        if verdict.loss is None:
            _reason(sheet, begin, middle, verdict.reason)


def _reason(sheet: Sheet, x: float, middle: float, reason: str) -> None:
    """In place of intervals, over the bands; on two lines of smaller type where one is not enough."""
    room, size = WIDTH - MARGIN - x, WORDS
    lines = wrapped(drawable(reason), size, room)
    if len(lines) > 1:
        size = SMALL
        first, *rest = wrapped(drawable(reason), size, room)
        lines = [first, *([shortened(" ".join(rest), size, room)] if rest else [])]
    white = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    sheet.text(x, middle, "\n".join(lines), size, va="center", colour=QUIET, bbox=white, linespacing=1.05)


def _differences(
    axes: Axes, tests: Sequence[Equivalence | None], judged: Sequence[Verdict], margin: float, of_loss: bool
) -> None:
    """An interval per row, in percent or points; what is beyond 1000% or 100 points ends there, as an arrow."""
    edge = 100 * margin
    most = max(1000.0 if of_loss else 100.0, edge)

    def shown(value: float) -> float:
        return max(-most, min(most, 100 * (relative(value) if of_loss else value)))

    ends = [edge * 1.6]
    for i, (test, verdict) in enumerate(zip(tests, judged, strict=True)):
        if test is None:
            continue
        colour = _LOOKS[verdict.technique].colour
        if math.isfinite(test.low) and math.isfinite(test.high):
            axes.plot([shown(test.low), shown(test.high)], [i + 0.5] * 2, color=colour, linewidth=2.4)
            ends += [abs(shown(test.low)), abs(shown(test.high))]
        beyond = abs(shown(test.mean)) == most
        marker = "o" if not beyond else ">" if test.mean > 0 else "<"
        axes.plot([shown(test.mean)], [i + 0.5], marker=marker, markersize=4.5, color=colour)
        ends.append(abs(shown(test.mean)))
    axes.axvspan(-edge, edge, color=GAIN_PALE, alpha=0.45, linewidth=0, zorder=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    reach = 1.06 * max(ends)
    axes.set_xlim(-reach, reach)
    axes.set_ylim(len(judged), 0)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:+.4g}{'%' if of_loss else ''}" if v else "0"))
    axes.grid(axis="x", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    _labels(axes)
