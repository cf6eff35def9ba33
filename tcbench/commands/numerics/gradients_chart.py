"""A chart of float16 gradients like the talk's slide 6: histograms of log2 |gradient|, the share lost at each loss
scale, and a row of shades per layer. Draws counts; knows nothing of how they were made."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator, PercentFormatter

from tcbench.commands.numerics.judgement import model_magnitudes, model_safe_scales, observed_steps
from tcbench.commands.numerics.loss_scales import LOST_AT_MOST, SMALLEST, SMALLEST_NORMAL, SafeScales, Shares, shares
from tcbench.core.numerics import KINDS, Document, GradientKind, LayerGradients, Magnitudes
from tcbench.show.charts.page import GROUND, ChartPage, boxes
from tcbench.show.charts.palette import GAIN, GAIN_PALE, INK, LOSS, LOSS_PALE, PAPER, QUIET, RAMPS
from tcbench.show.charts.text import LABEL, SMALL, WORDS, drawable, line_height, wrapped
from tcbench.show.format import percent

TITLES: dict[GradientKind, str] = {"activations": "Gradients of the activations", "weights": "Gradients of the weights"}
_NORMAL = RAMPS["fp32"][2]
_PANEL, _ROW = 1.75, 0.135  # inches
_MOST_ROWS = 60
_DARKEST, _SHADES = 0.2, 12  # share of a layer's values with the darkest of so many shades


def gradients_chart(document: Document, about: Sequence[str]) -> Figure:
    """Draw a document's gradients. `about` are the facts of machine and setting below the chart."""
    counts = {kind: model_magnitudes(document.gradients, kind) for kind in KINDS}
    limits = _limits(list(counts.values()))
    layers = _rows(document)
    k = round(math.log2(document.static_scale))
    page = ChartPage(
        "What float16 does to gradients",
        f"fp32 training, {observed_steps(document.gradients)} of {document.setting.steps} steps sampled, without loss "
        f"scaling; the loss divided by {document.setting.loss_divisor:g}",
        [
            " · ".join(about),
            f"Safe: at most {LOST_AT_MOST:.0%} of the non-zero gradients of either kind become zero, and none becomes "
            "infinite. Activations: gradients of each convolution's and the classifier's output. Layers: the darker, "
            "the more of the layer's values lie in that power of two.",
        ],
    )
    outline = f"outline: the same after the static loss scale of 2^{k}"
    fates = (
        (LOSS, "becomes zero in float16"),
        (LOSS_PALE, "subnormal"),
        (_NORMAL, "normal"),
        (INK, "becomes infinite"),
    )
    patches = [Patch(color=colour, label=words) for colour, words in fates]
    page.legend([[*patches, Patch(fill=False, ec=INK, label=outline)]])
    layers_height = max(*map(len, layers.values()), 1) * _ROW
    histograms, [lost, unused], shades = page.panels([_PANEL, _PANEL, layers_height], 2)
    unused.remove()  # the panel of lost shares takes the whole row
    lost.set_subplotspec(lost.get_gridspec()[1, :])
    for kind, axes in zip(TITLES, histograms, strict=True):
        axes.set_title(TITLES[kind], loc="left", weight="bold")
        axes.set_xlabel("|gradient|", size=WORDS)
        _histogram(axes, counts[kind], limits, k, page.room / 2 - 0.8)
        _frame(axes, limits)
    histograms[0].set_ylabel("share per power of two", size=WORDS)
    lost.set_title("Share lost", loc="left", weight="bold")
    _lost(lost, counts, model_safe_scales(document.gradients), k)
    for kind, axes in zip(TITLES, shades, strict=True):
        axes.set_title(f"{TITLES[kind]}, layer by layer", loc="left", weight="bold")
        _layers(axes, layers[kind], limits)
    return page.settle()


def _rows(document: Document) -> dict[GradientKind, list[LayerGradients]]:
    """Return layers in the model's order, beginning at the input; of a deep model only every n-th layer."""
    layers: dict[GradientKind, list[LayerGradients]] = {}
    # A backward pass reaches the last layer first.
    backward = [layer.layer for layer in document.gradients.layers if layer.kind == "activations"]
    order = {layer: -place for place, layer in enumerate(backward)}
    for kind in KINDS:
        rows = [layer for layer in document.gradients.layers if layer.kind == kind]
        rows.sort(key=lambda row: order.get(row.layer, 1))  # a layer that is not in `order` comes last
        layers[kind] = rows[:: -(-len(rows) // _MOST_ROWS)] if rows else []
    return layers


def _limits(parts: Sequence[Magnitudes]) -> tuple[int, int]:
    """Return log2 of the ends of the axis, which covers float16's range and all gradients but the smallest 0.1%."""
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


def _histogram(axes: Axes, counts: Magnitudes, limits: tuple[int, int], k: int, width: float) -> None:
    """Draw the shares of gradients per power of two, and the same after the loss scale 2^k as an outline."""
    n = max(1, counts.non_zero)
    heights = [count / n for count in counts.counts]
    # The shares that are lost before and after the loss scale, in lines of `width` inches.
    before, after = (_lost_words(shares(counts, log2_scale)) for log2_scale in (0, k))
    after = f"at 2^{k}: {after}"
    beyond = sum(n for i, n in enumerate(counts.counts, start=counts.lowest + k) if not limits[0] <= i < limits[1])
    if beyond > counts.non_zero / 2:
        after += f"; outline beyond the {'right' if k > 0 else 'left'} end"
    lines = [line for part in (before, after) for line in wrapped(part, WORDS, width)]
    room = len(lines) * line_height(WORDS) / _PANEL + 0.06
    axes.set_ylim(0, max(heights, default=1.0) / (0.94 - room))
    for exponent, height in enumerate(heights, start=counts.lowest):
        if limits[0] <= exponent:
            axes.bar(exponent + 0.5, height, 0.86, color=_colour(exponent), linewidth=0)
    axes.stairs(heights, np.arange(counts.lowest, counts.lowest + len(heights) + 1) + k, color=INK, linewidth=1.0)
    axes.text(0.012, 0.97, "\n".join(lines), transform=axes.transAxes, va="top", bbox=GROUND)
    for border in (SMALLEST - 1, SMALLEST_NORMAL, 16):
        axes.axvline(border, ymax=0.97 - room, color=QUIET, linewidth=0.7, linestyle=(0, (3, 2)))


def _lost_words(lost: Shares) -> str:
    """Return lost shares in words."""
    infinite = f", infinite {percent(lost.infinite)}" if lost.infinite else ""
    return f"zero {percent(lost.zero)}, subnormal {percent(lost.subnormal)}{infinite}"


def _colour(exponent: int) -> str:
    """Return the colour of a power of two: zero, subnormal, normal or infinite in float16."""
    if exponent < SMALLEST - 1:
        return LOSS
    if exponent < SMALLEST_NORMAL:
        return LOSS_PALE
    return _NORMAL if exponent < 16 else INK


def _frame(axes: Axes, limits: tuple[int, int]) -> None:
    """Set up axes with shares along y and powers of two along x."""
    axes.spines["left"].set_visible(False)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(visible=False, axis="x")
    _exponents(axes, limits)


def _exponents(axes: Axes, limits: tuple[int, int]) -> None:
    """Set up the x axis with powers of two."""
    low, high = limits
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(MultipleLocator(8 if high - low > 30 else 4))
    axes.xaxis.set_major_formatter("2^{x:.0f}")


def _lost(axes: Axes, counts: dict[GradientKind, Magnitudes], safe_range: SafeScales, k: int) -> None:
    """Draw the shares of gradients that become zero or infinite over the loss scale, and the safe scales. `k` is log2
    of the loss scale of the document."""
    smallest, largest = safe_range.smallest, safe_range.largest
    low = min(-4, k - 2)
    high = max(40, (largest or 0) + 6, k + 2)
    scales = np.arange(low, high + 1)
    styles: dict[GradientKind, Any] = {"activations": "-", "weights": (0, (5, 2))}
    for kind, style in styles.items():
        lost = [shares(counts[kind], int(scale)) for scale in scales]
        for fate, colour in (("zero", LOSS), ("infinite", INK)):
            heights = [getattr(share, fate) for share in lost]
            axes.plot(scales, heights, color=colour, linestyle=style, linewidth=1.6, label=f"{fate}, {kind}")
    if smallest is not None and largest is not None and smallest <= largest:
        axes.axvspan(smallest, largest, color=GAIN_PALE, alpha=0.45, linewidth=0, zorder=0)
        axes.text((smallest + largest) / 2, 0.8, f"safe: 2^{smallest} to 2^{largest}", ha="center", va="center")
    else:
        axes.text(0.5, 0.8, "no scale is safe", transform=axes.transAxes, size=LABEL, ha="center")
    axes.axvline(k, color=GAIN, linewidth=1.4, ymax=0.6)
    axes.text(k, 0.7, f"used: 2^{k}", color=GAIN, ha="center", va="center")
    axes.set_ylim(0, 1.04)
    axes.set_xlabel("loss scale", size=WORDS)
    _frame(axes, (low, high))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1.02), ncols=4, fontsize=WORDS, handlelength=2.6)


def _layers(axes: Axes, rows: Sequence[LayerGradients], limits: tuple[int, int]) -> None:
    """Draw a row per layer with a cell per power of two; the darker a cell, the larger its share."""
    low, high = limits
    shades = LinearSegmentedColormap.from_list("share", [PAPER, RAMPS["fp32"][1], RAMPS["fp32"][4]])
    cells, colours = [], []
    for i, row in enumerate(rows):
        n = max(1, row.magnitudes.non_zero)
        for exponent, count in enumerate(row.magnitudes.counts, start=row.magnitudes.lowest):
            level = min(1.0, round(count / n / _DARKEST * _SHADES) / _SHADES)
            if low <= exponent < high and level:
                cells.append((exponent, exponent + 1, i, i + 1))
                colours.append(to_hex(shades(level)))
    boxes(axes, cells, facecolors=colours, linewidth=0, antialiased=False, zorder=1)
    for border in (SMALLEST - 1, SMALLEST_NORMAL):
        axes.axvline(border, color=LOSS, linewidth=0.9, linestyle=(0, (3, 2)))
    axes.spines[:].set_visible(False)
    axes.set_ylim(max(len(rows), 1), 0)
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [drawable(row.layer) for row in rows])
    axes.tick_params(axis="y", labelsize=SMALL - 0.5)
    axes.grid(visible=False)
    _exponents(axes, limits)
