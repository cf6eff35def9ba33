"""What float16 makes of gradients, as a picture like the talk's slide 6: histograms of log2 |gradient| over float16's
range, the share that a loss scale of 2^k leaves zero, and every layer as a row of shades.

Owns how counts look on paper. Knows nothing of how they were made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from tcbench.core.numerics import KINDS, Document, Kind, Magnitudes
from tcbench.numerics.gradients import LOST_AT_MOST, SMALLEST, SMALLEST_NORMAL, SafeScales, Shares, shares
from tcbench.numerics.judgement import magnitudes, safe, steps_seen
from tcbench.show.charts.palette import FAINT, GAIN, GAIN_PALE, INK, LOSS, LOSS_PALE, QUIET, RAMPS, Fill
from tcbench.show.charts.sheet import MARGIN, WIDTH, Footer, Header, Sheet
from tcbench.show.charts.text import LABEL, LEGEND, SMALL, WORDS, drawable, font, line_height, text_width, wrapped

TITLES: dict[Kind, str] = {
    "activations": "Gradients of the activations",
    "weights": "Gradients of the weights",
}
_NORMAL = RAMPS["fp32"][2]
_LEFT, _PANEL, _GAP = 1.05, 1.75, 0.62
_ROW = 0.135
_MOST_ROWS = 60


def gradients_chart(document: Document, about: Sequence[str]) -> Figure:
    """`about`: the small print's facts of machine and setting."""
    found = {kind: magnitudes(document.gradients, kind) for kind in KINDS}
    limits = _limits(list(found.values()))
    range_of = safe(document.gradients)
    header = Header.of(
        "What float16 makes of gradients",
        f"fp32 training, {steps_seen(document.gradients)} of {document.setting.steps} steps looked at, without loss "
        f"scaling; the loss divided by {document.setting.loss_divisor:g}",
        WIDTH,
    )
    layers = _rows(document)
    footer = Footer.of(
        [
            " · ".join(about),
            f"Safe: at most {LOST_AT_MOST:.0%} of the gradients that are not zero become zero, and none infinite, of "
            "both kinds. Activations: what flows back into each convolution's and the classifier's output. Layers: the "
            "darker, the more of the layer's values lie in that power of two.",
        ],
        WIDTH,
    )
    rows_height = max(len(layers["activations"]), len(layers["weights"]), 1) * _ROW
    legend = line_height(LEGEND) + 0.12
    titles = line_height(LABEL) + 0.06
    height = 0.3 + header.height + legend + (titles + _PANEL + _GAP) * 2 + titles + rows_height + 0.55
    height += footer.height + 0.22
    sheet = Sheet(WIDTH, height)
    y = header.draw(sheet, 0.3) + 0.06
    _legend(sheet, y, document)
    y += legend
    width = (WIDTH - 2 * _LEFT - MARGIN) / 2
    places = {"activations": _LEFT, "weights": WIDTH - MARGIN - width}
    k = round(math.log2(document.static_scale))
    for kind, x in places.items():
        sheet.text(x, y, TITLES[kind], LABEL, bold=True)  # type: ignore[index]
        axes = sheet.axes(x, y + titles, width, _PANEL)
        _histogram(axes, found[kind], limits, k, width)  # type: ignore[index]
    sheet.text(
        0.3,
        y + titles + _PANEL / 2,
        "share per power of two",
        WORDS,
        rotation=90,
        ha="center",
        va="center",
        colour=QUIET,
    )
    y += titles + _PANEL
    sheet.text(_LEFT + width / 2, y + 0.28, "|gradient|", WORDS, ha="center", colour=QUIET)
    sheet.text(places["weights"] + width / 2, y + 0.28, "|gradient|", WORDS, ha="center", colour=QUIET)
    y += _GAP
    sheet.text(_LEFT, y, "Share lost", LABEL, bold=True)
    axes = sheet.axes(_LEFT, y + titles, WIDTH - MARGIN - _LEFT, _PANEL)
    _lost(axes, found, range_of, k)
    y += titles + _PANEL
    sheet.text((_LEFT + WIDTH - MARGIN) / 2, y + 0.28, "loss scale", WORDS, ha="center", colour=QUIET)
    y += _GAP
    for kind, x in places.items():
        sheet.text(x, y, f"{TITLES[kind]}, layer by layer", LABEL, bold=True)  # type: ignore[index]
        axes = sheet.axes(x, y + titles, width, max(len(layers[kind]), 1) * _ROW)  # type: ignore[index]
        _layers(axes, layers[kind], limits)  # type: ignore[index]
    footer.draw(sheet, y + titles + rows_height + 0.5)
    return sheet.figure


@dataclass(frozen=True)
class _Row:
    name: str
    magnitudes: Magnitudes


def _rows(document: Document) -> dict[Kind, list[_Row]]:
    """Layers in the model's order, from the input on; of a deep model every n-th."""
    found: dict[Kind, list[_Row]] = {}
    # A backward pass meets the layers from the last one on.
    backward = [layer.layer for layer in document.gradients.layers if layer.kind == "activations"]
    order = {layer: -place for place, layer in enumerate(backward)}
    for kind in KINDS:
        rows = [_Row(x.layer, x.magnitudes) for x in document.gradients.layers if x.kind == kind]
        rows.sort(key=lambda row: order.get(row.name, 1))
        found[kind] = rows[:: -(-len(rows) // _MOST_ROWS)] if rows else []
    return found


def _limits(parts: Sequence[Magnitudes]) -> tuple[int, int]:
    """log2 of the axis' ends: float16's range, and all values but a thousandth."""
    low, high = SMALLEST - 3, 17
    for part in parts:
        n, seen = part.non_zero, 0
        for exponent, count in enumerate(part.counts, start=part.lowest):
            seen += count
            if seen > n / 1000:
                low = min(low, exponent - 1)
                break
        high = max(high, part.lowest + len(part.counts) + 1)
    return low, high


def _legend(sheet: Sheet, y: float, document: Document) -> None:
    x = MARGIN
    entries = (
        (LOSS, "becomes zero in float16"),
        (LOSS_PALE, "subnormal"),
        (_NORMAL, "normal"),
        (INK, "becomes infinite"),
    )
    for colour, words in entries:
        sheet.swatch(x, y + line_height(LEGEND) / 2 - 0.06, 0.17, 0.12, Fill(colour))
        sheet.text(x + 0.23, y + line_height(LEGEND) / 2, words, LEGEND, va="center_baseline", gid="legend")
        x += 0.23 + text_width(words, LEGEND) + 0.24
    words = f"outline: the same after the static loss scale of 2^{round(math.log2(document.static_scale))}"
    sheet.text(x, y + line_height(LEGEND) / 2, words, LEGEND, va="center_baseline", gid="legend", colour=QUIET)


def _histogram(axes: Axes, found: Magnitudes, limits: tuple[int, int], k: int, width: float) -> None:
    """`width`: the panel's, inches."""
    n = max(1, found.non_zero)
    heights = [count / n for count in found.counts]
    for exponent, height in enumerate(heights, start=found.lowest):
        if limits[0] <= exponent:
            axes.bar(exponent + 0.5, height, 0.86, color=_colour(exponent), linewidth=0)
    edges = np.arange(found.lowest, found.lowest + len(heights) + 1) + k
    axes.stairs(heights, edges, color=INK, linewidth=1.0)
    lines = _histogram_words(found, limits, k, width)
    room = len(lines) * line_height(WORDS) / _PANEL + 0.06
    _style(axes, limits, max(heights, default=1.0) / (0.94 - room))
    axes.text(
        0.012,
        0.97,
        "\n".join(lines),
        transform=axes.transAxes,
        fontproperties=font(WORDS),
        color=INK,
        va="top",
        parse_math=False,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )
    for border in (SMALLEST - 1, SMALLEST_NORMAL, 16):
        axes.axvline(border, ymax=0.97 - room, color=QUIET, linewidth=0.7, linestyle=(0, (3, 2)))


def _histogram_words(found: Magnitudes, limits: tuple[int, int], k: int, width: float) -> list[str]:
    """What becomes of the values, before and after the loss scale, on one line where that has room."""
    before, after = (_lost_words(shares(found, log2_scale)) for log2_scale in (0, k))
    after = f"at 2^{k}: {after}"
    beyond = sum(n for i, n in enumerate(found.counts, start=found.lowest + k) if not limits[0] <= i < limits[1])
    if beyond > found.non_zero / 2:
        after += f"; outline beyond the {'right' if k > 0 else 'left'} end"
    whole = f"{before}; {after}"
    fits = text_width(whole, WORDS) < 0.98 * width
    return [whole] if fits else [line for part in (before, after) for line in wrapped(part, WORDS, 0.98 * width)]


def _lost_words(of: Shares) -> str:
    infinite = f", infinite {_percent(of.infinite)}" if of.infinite else ""
    return f"zero {_percent(of.zero)}, subnormal {_percent(of.subnormal)}{infinite}"


def _colour(exponent: int) -> str:
    if exponent < SMALLEST - 1:
        return LOSS
    if exponent < SMALLEST_NORMAL:
        return LOSS_PALE
    return _NORMAL if exponent < 16 else INK


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{share:.1%}"


def _style(axes: Axes, limits: tuple[int, int], top: float) -> None:
    axes.set_xlim(*limits)
    axes.set_ylim(0, top)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(QUIET)
        spine.set_linewidth(0.8)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    _exponents(axes)


def _exponents(axes: Axes) -> None:
    """Powers of two along x."""
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(MultipleLocator(8 if high - low > 30 else 4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"2^{value:.0f}"))
    axes.tick_params(length=0, pad=4, labelcolor=QUIET)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_fontproperties(font(WORDS))
        label.set_parse_math(False)


def _lost(axes: Axes, found: dict[Kind, Magnitudes], safe_range: SafeScales, k: int) -> None:
    smallest, largest = safe_range.smallest, safe_range.largest
    low = min(-4, k - 2)
    high = max(40, (largest or 0) + 6, k + 2)
    scales = np.arange(low, high + 1)
    looks: dict[Kind, Any] = {"activations": "-", "weights": (0, (5, 2))}
    for kind, look in looks.items():
        at = [shares(found[kind], int(scale)) for scale in scales]
        axes.plot(scales, [one.zero for one in at], color=LOSS, linestyle=look, linewidth=1.6, label=f"zero, {kind}")
        axes.plot(
            scales, [one.infinite for one in at], color=INK, linestyle=look, linewidth=1.6, label=f"infinite, {kind}"
        )
    if smallest is not None and largest is not None and smallest <= largest:
        axes.axvspan(smallest, largest, color=GAIN_PALE, alpha=0.45, linewidth=0, zorder=0)
        axes.text(
            (smallest + largest) / 2,
            0.8,
            f"safe: 2^{smallest} to 2^{largest}",
            fontproperties=font(WORDS),
            color=INK,
            ha="center",
            va="center",
            parse_math=False,
        )
    else:
        axes.text(0.5, 0.8, "no scale is safe", transform=axes.transAxes, fontproperties=font(LABEL), ha="center")
    axes.axvline(k, color=GAIN, linewidth=1.4, ymax=0.6)
    axes.text(
        k, 0.7, f"used: 2^{k}", fontproperties=font(WORDS), color=GAIN, ha="center", va="center", parse_math=False
    )
    _style(axes, (low, high), 1.04)
    axes.legend(
        loc="upper right",
        bbox_to_anchor=(1.0, 1.16),
        ncols=4,
        frameon=False,
        prop=font(WORDS),
        handlelength=2.6,
        borderaxespad=0,
    )


def _layers(axes: Axes, rows: Sequence[_Row], limits: tuple[int, int]) -> None:
    low, high = limits
    shade = np.zeros((max(len(rows), 1), high - low))
    for i, row in enumerate(rows):
        n = max(1, row.magnitudes.non_zero)
        for exponent, count in enumerate(row.magnitudes.counts, start=row.magnitudes.lowest):
            if low <= exponent < high:
                shade[i, exponent - low] = count / n
    shades = LinearSegmentedColormap.from_list("share", ["#ffffff", RAMPS["fp32"][1], RAMPS["fp32"][4]])
    axes.imshow(
        shade,
        aspect="auto",
        cmap=shades,
        extent=(low, high, max(len(rows), 1), 0),
        vmin=0,
        vmax=0.2,
        interpolation="nearest",
    )
    for border in (SMALLEST - 1, SMALLEST_NORMAL):
        axes.axvline(border, color=LOSS, linewidth=0.9, linestyle=(0, (3, 2)))
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [drawable(row.name) for row in rows])
    _exponents(axes)
    for label in axes.get_yticklabels():
        label.set_fontproperties(font(SMALL - 0.5))
