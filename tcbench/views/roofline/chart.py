"""The roofline as a picture: ceilings, and phases and layers as points below them, on logarithmic axes.

Owns the axes and what stands in them. Knows nothing of where rates come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator
from matplotlib.transforms import Bbox

from tcbench.analysis.roofline import Ceilings, CellRoofline, ConfigPrecision, WorkPart, worth_showing
from tcbench.core.errors import SelectionError
from tcbench.present.charts.labels import around, label
from tcbench.present.charts.page import Page, put
from tcbench.present.charts.palette import INK, OTHER, PAPER, PHASE_COLOURS, QUIET
from tcbench.present.charts.text import DPI, LABEL, drawable
from tcbench.present.format import number
from tcbench.present.simulated import marked

MAX_CELLS = 40
_HEIGHT = 4.6
_POINT, _DOT = 7.9, 3.7
"""Width of a phase's and of a layer's mark, points."""
_STYLES: dict[ConfigPrecision, Any] = {"fp32": "-", "tf32": (0, (5, 2)), "fp16": (0, (2, 1.5)), "bf16": (0, (1, 1))}


def roofline_chart(rooflines: Sequence[CellRoofline]) -> Figure:
    """Phases of all cells, and the layers that have times, under the ceilings of their device.

    With one cell, points bear the names of phases and layers; with more, the number of their cell in the legend.
    Raises SelectionError for no cell, cells of several devices, or more than MAX_CELLS.
    """
    if not rooflines:
        raise SelectionError("no cell to draw a roofline of; `tcbench run` measures some")
    devices = list(dict.fromkeys(one.ceilings for one in rooflines))
    if len(devices) > 1:
        names = " and ".join(dict.fromkeys(device.device_name for device in devices))
        raise SelectionError(f"a roofline is one device's, these results are of {names}; name fewer files")
    if len(rooflines) > MAX_CELLS:
        raise SelectionError(
            f"{len(rooflines)} cells do not fit in one roofline (at most {MAX_CELLS}); choose some (--bs)"
        )
    [ceilings] = devices
    precisions: list[ConfigPrecision] = list(dict.fromkeys(one.precision for one in rooflines))
    single = len(rooflines) == 1
    title = f"Roofline: {drawable(rooflines[0].summary.cell.label)}" if single else "Roofline"
    cells = [] if single else [f"{i}  {one.summary.cell.label}" for i, one in enumerate(rooflines, start=1)]
    phases = list(dict.fromkeys(part.phase for one in rooflines for part in worth_showing(one.phases)))
    cell = rooflines[0].summary.cell
    notes = [
        f"FLOP: a multiply-accumulate is two. Bytes: the least traffic, every operand once. "
        f"{cell.model} {cell.variant} · {cell.image_size} × {cell.image_size} images",
    ]
    if single:
        notes.append("Marks on the ceiling: where each layer could be at most. Dots below: layers that were timed.")
    title = marked(title, (one.summary.environment for one in rooflines))
    page = Page(title, f"{ceilings.device_name} · ceilings: {ceilings.says}", notes)
    page.legend([[Patch(color=PHASE_COLOURS.get(phase, OTHER), label=phase) for phase in phases]])
    if cells:
        entries = [Line2D([], [], linestyle="none", label=drawable(cell)) for cell in cells]
        page.legend([entries], handlelength=0, handletextpad=0, labelcolor=QUIET)
    [[axes]] = page.panels([_HEIGHT])
    _frame(axes, rooflines, ceilings, precisions)
    page.settle()
    _draw(axes, rooflines, ceilings, precisions)
    return page.figure


def _frame(
    axes: Axes, rooflines: Sequence[CellRoofline], ceilings: Ceilings, precisions: Sequence[ConfigPrecision]
) -> None:
    """Logarithmic axes, FLOP per byte and FLOP/s, that hold all parts and ceilings."""
    parts = [part for one in rooflines for part in (*worth_showing(one.phases), *worth_showing(one.layers))]
    peaks = [peak for peak in map(ceilings.flops_s, precisions) if math.isfinite(peak)]
    ridges = [ridge for ridge in map(ceilings.ridge, precisions) if 0 < ridge < math.inf]
    x = [part.intensity for part in parts] + ridges or [1.0]
    y = [part.flops_s for part in parts if part.flops_s] + peaks or [1e9]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(10 ** math.floor(math.log10(min(x) / 1.5)), 10 ** math.ceil(math.log10(max(x) * 2)))
    axes.set_ylim(10 ** (math.floor(2 * math.log10(min(y) / 2)) / 2), max(y) * 2)
    for axis, unit in ((axes.xaxis, 1.0), (axes.yaxis, 1e9)):
        axis.set_major_formatter(FuncFormatter(lambda value, _, unit=unit: f"{value / unit:.6g}"))
        axis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=LABEL, pad=6)
    axes.set_xlabel("arithmetic intensity, FLOP per byte")
    axes.set_ylabel("GFLOP/s")


def _draw(
    axes: Axes, rooflines: Sequence[CellRoofline], ceilings: Ceilings, precisions: Sequence[ConfigPrecision]
) -> None:
    """Ceilings, parts, and the parts' names; large marks and what takes long are named first."""
    single = len(rooflines) == 1
    taken: list[Bbox] = []
    for precision in precisions:
        taken += _draw_roof(axes, ceilings, precision, is_first=precision == precisions[0])
    names: list[tuple[str, tuple[float, float], float]] = []
    if single:
        _draw_marks(axes, rooflines[0])
    for size, kind in ((_POINT, "phases"), (_DOT, "layers")):
        parts = [(i, part) for i, one in enumerate(rooflines, start=1) for part in worth_showing(getattr(one, kind))]
        parts.sort(key=lambda entry: -(entry[1].time_s or 0))
        for phase in dict.fromkeys(part.phase for _, part in parts):
            _draw_points(axes, [part for _, part in parts if part.phase == phase], size)
        for place, part in parts:
            assert part.flops_s is not None
            at = part.intensity, part.flops_s
            taken += around([tuple(axes.transData.transform(at))], size / 144 * DPI)
            names.append((drawable(part.name) if single else str(place), at, size))
    for name, at, size in names:
        label(axes, name, at, taken, gap=size / 144 * DPI + 4, color=QUIET, zorder=5, bbox=None)


def _draw_points(axes: Axes, parts: Sequence[WorkPart], size: float) -> None:
    """Marks of one phase, `size` points wide."""
    colour = PHASE_COLOURS.get(parts[0].phase, OTHER)
    axes.scatter(
        [part.intensity for part in parts],
        [part.flops_s or math.nan for part in parts],
        s=size**2,
        color=colour,
        edgecolor=PAPER if size == _POINT else colour,
        linewidth=0.6,
        zorder=3,
        clip_on=False,
    )


def _draw_roof(axes: Axes, ceilings: Ceilings, precision: ConfigPrecision, *, is_first: bool) -> list[Bbox]:
    """Bandwidth up to the ridge, then the peak, where they stand, each with its words; returns what they cover, in
    pixels."""
    peak, ridge = ceilings.flops_s(precision), ceilings.ridge(precision)
    low, high = axes.get_xlim()
    x = np.union1d(np.geomspace(low, high, 160), np.clip(ridge, low, high))
    y = [ceilings.attainable_flops_s(float(intensity), precision) for intensity in x]
    if not all(map(math.isfinite, y)):
        return []
    axes.plot(x, y, color=INK, linewidth=1.4, linestyle=_STYLES[precision], zorder=2.5)
    texts = []
    if math.isfinite(peak):
        words = f"{precision}: {number(peak / 1e9)} GFLOP/s"
        texts.append(put(axes, words, (high, peak), (0, 3), ha="right", va="bottom"))
    ridge = min(ridge, high)
    bottom = max(low, axes.get_ylim()[0] / ceilings.bandwidth_bytes_s)
    # Precisions share the bandwidth, so that its words stand once: left of the middle of the first one's slope.
    if is_first and bottom < ridge:
        middle = math.sqrt(bottom * ridge)
        at = middle, ceilings.bandwidth_bytes_s * middle
        texts.append(
            put(axes, f"{number(ceilings.bandwidth_bytes_s / 1e9)} GB/s", at, (-6, 1), ha="right", va="bottom")
        )
    line = axes.transData.transform(np.column_stack([x, y]))
    return [*around([(float(x), float(y)) for x, y in line], 5), *(text.get_window_extent() for text in texts)]


def _draw_marks(axes: Axes, one: CellRoofline) -> None:
    """On the ceiling, where each layer that computes could be."""
    for phase in ("forward", "backward"):
        parts = [part for part in one.layers if part.phase == phase and part.flops and part.bytes]
        if not all(math.isfinite(one.ceilings.attainable_flops_s(p.intensity, one.precision)) for p in parts):
            return  # no ceiling to stand on
        y = [one.ceilings.attainable_flops_s(part.intensity, one.precision) for part in parts]
        x = [part.intensity for part in parts]
        axes.scatter(x, y, s=20, marker="|", color=PHASE_COLOURS[phase], linewidth=0.8, zorder=2.7)
