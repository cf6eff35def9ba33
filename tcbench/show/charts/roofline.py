"""The roofline as a picture: ceilings, and phases and layers as points below them, on logarithmic axes.

Owns the axes, and where words find room: each label takes the first of some places around its point where it covers no
other label, no point and no ceiling; where there is none, it is left out. Knows nothing of where rates come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from tcbench.analysis.roofline import Ceilings, CellRoofline, Part, Precision, worth_showing
from tcbench.core.errors import SelectionError
from tcbench.show.charts.palette import FAINT, INK, QUIET, Fill
from tcbench.show.charts.sheet import MARGIN, WIDTH, Footer, Header, Sheet
from tcbench.show.charts.text import LABEL, LEGEND, WORDS, drawable, font, line_height, shortened, text_width
from tcbench.show.charts.timeline import OTHER, PHASE_COLOURS

MAX_CELLS = 40
_LEFT, _HEIGHT = 1.0, 4.6
_POINT, _DOT = 0.065, 0.03
"""Half the width of a phase's and of a layer's mark, inches."""
_STYLES: dict[Precision, Any] = {"fp32": "-", "tf32": (0, (5, 2)), "fp16": (0, (2, 1.5))}


def roofline_chart(found: Sequence[CellRoofline]) -> Figure:
    """Phases of all cells, and the layers that have times, under the ceilings of their device.

    With one cell, points bear the names of phases and layers; with more, the number of their cell in the legend.
    Raises SelectionError for no cell, cells of several devices, or more than MAX_CELLS.
    """
    if not found:
        raise SelectionError("no cell to draw a roofline of; `tcbench run` measures some")
    devices = list(dict.fromkeys(one.ceilings for one in found))
    if len(devices) > 1:
        names = " and ".join(dict.fromkeys(device.device_name for device in devices))
        raise SelectionError(f"a roofline is one device's, these results are of {names}; name fewer files")
    if len(found) > MAX_CELLS:
        raise SelectionError(f"{len(found)} cells do not fit in one roofline (at most {MAX_CELLS}); choose some (--bs)")
    [ceilings] = devices
    precisions: list[Precision] = list(dict.fromkeys(one.precision for one in found))
    single = len(found) == 1
    title = f"Roofline: {drawable(found[0].summary.cell.label)}" if single else "Roofline"
    header = Header.of(title, f"{ceilings.device_name} · ceilings: {ceilings.says}", WIDTH)
    cells = [] if single else [f"{i}  {one.summary.cell.label}" for i, one in enumerate(found, start=1)]
    columns = _columns(cells)
    phases = list(dict.fromkeys(part.phase for one in found for part in worth_showing(one.phases)))
    cell = found[0].summary.cell
    notes = [
        f"FLOP: a multiply-accumulate is two. Bytes: the least traffic, every operand once. "
        f"{cell.model} {cell.variant} · {cell.image_size} × {cell.image_size} images",
    ]
    if single:
        notes.append("Marks on the ceiling: where each layer could be at most. Dots below: layers that were timed.")
    footer = Footer.of(notes, WIDTH)
    rows = -(-len(cells) // columns) if cells else 0
    legend_height = line_height(LEGEND) * (1 + rows) + 0.1
    height = 0.3 + header.height + 0.12 + legend_height + 0.1 + _HEIGHT + 0.7 + footer.height + 0.22
    sheet = Sheet(WIDTH, height)
    y = header.draw(sheet, 0.3) + 0.12
    _draw_legend(sheet, y, phases, cells, columns)
    y += legend_height + 0.1
    axes = sheet.axes(_LEFT, y, WIDTH - _LEFT - MARGIN, _HEIGHT)
    frame = _Frame.of(found, ceilings, precisions)
    _style(axes, frame)
    _draw_all(axes, frame, found, ceilings, precisions)
    sheet.text(0.42, y + _HEIGHT / 2, "GFLOP/s", LABEL, rotation=90, va="center", ha="center", colour=QUIET)
    centre = (_LEFT + WIDTH - MARGIN) / 2
    sheet.text(centre, y + _HEIGHT + 0.36, "arithmetic intensity, FLOP per byte", LABEL, ha="center", colour=QUIET)
    footer.draw(sheet, y + _HEIGHT + 0.7)
    return sheet.figure


def _columns(cells: Sequence[str]) -> int:
    widest = max((text_width(drawable(words), LEGEND) for words in cells), default=1.0)
    return max(1, int((WIDTH - 2 * MARGIN) / (widest + 0.25)))


def _draw_legend(sheet: Sheet, y: float, phases: Sequence[str], cells: Sequence[str], columns: int) -> None:
    x = MARGIN
    for phase in phases:
        sheet.swatch(x, y + line_height(LEGEND) / 2 - 0.06, 0.17, 0.12, Fill(PHASE_COLOURS.get(phase, OTHER)))
        sheet.text(x + 0.23, y + line_height(LEGEND) / 2, phase, LEGEND, va="center_baseline", gid="legend")
        x += 0.23 + text_width(phase, LEGEND) + 0.24
    y += line_height(LEGEND) + 0.05
    pitch = (WIDTH - 2 * MARGIN) / columns
    for i, words in enumerate(cells):
        row, column = divmod(i, columns)
        text = shortened(drawable(words), LEGEND, pitch - 0.1)
        middle = y + (row + 0.5) * line_height(LEGEND)
        sheet.text(MARGIN + column * pitch, middle, text, LEGEND, va="center_baseline", gid="legend", colour=QUIET)


@dataclass(frozen=True)
class _Frame:
    """The axes' limits (FLOP per byte; FLOP/s), and places on them in inches from the lower left."""

    low_x: float
    high_x: float
    low_y: float
    high_y: float

    @staticmethod
    def of(found: Sequence[CellRoofline], ceilings: Ceilings, precisions: Sequence[Precision]) -> _Frame:
        parts = [part for one in found for part in (*worth_showing(one.phases), *worth_showing(one.layers))]
        ridges = [ceilings.ridge(p) for p in precisions]
        peaks = [ceilings.flops_s(p) for p in precisions]
        x = [part.intensity for part in parts] + ridges
        y = [part.flops_s or peaks[0] for part in parts] + peaks
        return _Frame(
            10 ** math.floor(math.log10(min(x) / 1.5)),
            10 ** math.ceil(math.log10(max(x) * 2)),
            10 ** (math.floor(2 * math.log10(min(y) / 2)) / 2),
            max(y) * 2,
        )

    def place(self, intensity: float, flops_s: float) -> tuple[float, float]:
        width = WIDTH - _LEFT - MARGIN
        x = math.log(intensity / self.low_x) / math.log(self.high_x / self.low_x) * width
        return x, math.log(flops_s / self.low_y) / math.log(self.high_y / self.low_y) * _HEIGHT


def _style(axes: Axes, frame: _Frame) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(frame.low_x, frame.high_x)
    axes.set_ylim(frame.low_y, frame.high_y)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(QUIET)
        spine.set_linewidth(0.8)
    axes.grid(which="major", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for axis, unit in ((axes.xaxis, 1.0), (axes.yaxis, 1e9)):
        axis.set_major_locator(LogLocator(10))
        axis.set_major_formatter(FuncFormatter(lambda value, _, unit=unit: f"{value / unit:.6g}"))
        axis.set_minor_formatter(NullFormatter())
        for label in axis.get_ticklabels():
            label.set_fontproperties(font(LABEL))
    axes.tick_params(which="both", length=0, pad=4, labelcolor=QUIET)
    axes.tick_params(axis="x", which="both", pad=9)  # below the lowest number of the other axis


@dataclass(frozen=True)
class _Box:
    """Something that takes room, inches."""

    x0: float
    y0: float
    x1: float
    y1: float

    def overlaps(self, other: _Box) -> bool:
        return self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1


def _around(x: float, y: float, half: float) -> _Box:
    return _Box(x - half, y - half, x + half, y + half)


def _draw_all(
    axes: Axes,
    frame: _Frame,
    found: Sequence[CellRoofline],
    ceilings: Ceilings,
    precisions: Sequence[Precision],
) -> None:
    single = len(found) == 1
    taken: list[_Box] = []
    for precision in precisions:
        taken += _draw_roof(axes, frame, ceilings, precision)
    names: list[tuple[str, float, float, float]] = []
    for number, one in enumerate(found, start=1):
        if single:
            _draw_marks(axes, one)
        for parts, half, size in ((worth_showing(one.layers), _DOT, 14), (worth_showing(one.phases), _POINT, 62)):
            # What takes long is named first.
            for part in sorted(parts, key=lambda part: -(part.time_s or 0)):
                assert part.flops_s is not None
                x, y = frame.place(part.intensity, part.flops_s)
                taken.append(_around(x, y, half))
                colour = PHASE_COLOURS.get(part.phase, OTHER)
                edge = "white" if half == _POINT else colour
                look: dict[str, Any] = {"s": size, "color": colour, "edgecolor": edge, "linewidth": 0.6, "zorder": 3}
                axes.scatter([part.intensity], [part.flops_s], clip_on=False, **look)
                names.append((_name(part, number, single), x, y, half))
    for name, x, y, half in sorted(names, key=lambda entry: -entry[3]):
        _place(axes, name, x, y, half, taken)


def _name(part: Part, number: int, single: bool) -> str:
    return drawable(part.name) if single else str(number)


def _draw_roof(axes: Axes, frame: _Frame, ceilings: Ceilings, precision: Precision) -> Iterator[_Box]:
    """Bandwidth up to the ridge, then the peak; each with its words. Yields what they cover."""
    peak, ridge = ceilings.flops_s(precision), ceilings.ridge(precision)
    x = [frame.low_x, min(max(ridge, frame.low_x), frame.high_x), frame.high_x]
    y = [ceilings.attainable_flops_s(value, precision) for value in x]
    axes.plot(x, y, color=INK, linewidth=1.4, linestyle=_STYLES[precision], zorder=2.5)
    for intensity in np.geomspace(frame.low_x, frame.high_x, 160):
        at = frame.place(float(intensity), ceilings.attainable_flops_s(float(intensity), precision))
        yield _around(*at, 0.035)
    width = WIDTH - _LEFT - MARGIN
    words = f"{precision}: {peak / 1e9:.4g} GFLOP/s"
    _, at_y = frame.place(frame.high_x, peak)
    room = text_width(words, WORDS)
    box = _Box(width - room - 0.05, at_y + 0.04, width, at_y + 0.04 + line_height(WORDS))
    _write(axes, words, box, colour=INK)
    yield box
    # The bandwidth's words lie along the slope, on its lower end.
    x0, y0 = frame.place(frame.low_x, peak / ridge * frame.low_x)
    x1, y1 = frame.place(ridge, peak)
    if y1 <= 0 or x1 <= 0:
        return
    words = f"{ceilings.bandwidth_bytes_s / 1e9:.4g} GB/s"
    start_x = x0 if y0 >= 0 else x0 - y0 * (x1 - x0) / (y1 - y0)
    at_x = start_x + (x1 - start_x) * 0.5
    at_y = y0 + (at_x - x0) * (y1 - y0) / (x1 - x0)
    room = text_width(words, WORDS)
    box = _Box(at_x - room - 0.12, at_y + 0.02, at_x - 0.08, at_y + 0.02 + line_height(WORDS))
    if box.x0 > 0.02 and box.y1 < _HEIGHT and precision == _lowest(ceilings):
        _write(axes, words, box, colour=INK)
        yield box


def _lowest(ceilings: Ceilings) -> Precision:
    """The precision whose words for the bandwidth stand for all: they share it."""
    return ceilings.rates[0][0]


def _draw_marks(axes: Axes, one: CellRoofline) -> None:
    """On the ceiling, where each layer that computes could be."""
    for phase in ("forward", "backward"):
        x = [part.intensity for part in one.layers if part.phase == phase and part.flops and part.bytes]
        y = [one.ceilings.attainable_flops_s(intensity, one.precision) for intensity in x]
        axes.scatter(x, y, s=20, marker="|", color=PHASE_COLOURS[phase], linewidth=0.8, zorder=2.7)


def _places(x: float, y: float, half: float, width: float) -> Iterable[_Box]:
    """Right, left, above, below, then the corners."""
    gap, high = half + 0.03, line_height(WORDS) * 0.8
    for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)):
        x0 = x + gap if dx > 0 else x - gap - width if dx < 0 else x - width / 2
        y0 = y - high / 2 if dy == 0 else y + gap if dy > 0 else y - gap - high
        yield _Box(x0, y0, x0 + width, y0 + high)


def _place(axes: Axes, name: str, x: float, y: float, half: float, taken: list[_Box]) -> None:
    """Write a name beside its point, or not at all."""
    page = WIDTH - _LEFT - MARGIN
    for box in _places(x, y, half, text_width(name, WORDS)):
        inside = box.x0 > 0.02 and box.x1 < page and box.y0 > 0.02 and box.y1 < _HEIGHT
        if inside and not any(box.overlaps(other) for other in taken):
            _write(axes, name, box, colour=QUIET)
            taken.append(box)
            return


def _write(axes: Axes, words: str, box: _Box, colour: str) -> None:
    width = WIDTH - _LEFT - MARGIN
    axes.text(
        (box.x0 + box.x1) / 2 / width,
        (box.y0 + box.y1) / 2 / _HEIGHT,
        words,
        transform=axes.transAxes,
        fontproperties=font(WORDS),
        color=colour,
        ha="center",
        va="center",
        parse_math=False,
        zorder=5,
        gid="label",
    )
