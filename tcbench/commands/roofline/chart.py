"""The roofline chart: phases and layers as points below the ceilings of their device, on logarithmic axes."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import Bbox

from tcbench.analysis.summary import Setting
from tcbench.commands.roofline.roofline import CellRoofline, ConfigPrecision, WorkPart, base_and_fastest, worth_showing
from tcbench.commands.roofline.table import raised_ceilings
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.engine.api import Ceilings
from tcbench.show.charts.labels import label, squares_around
from tcbench.show.charts.page import ChartPage
from tcbench.show.charts.palette import INK, PAPER, QUIET, phase_colour
from tcbench.show.charts.provenance import by_setting, first_panels, provenance_of, small_print
from tcbench.show.charts.text import DPI, LABEL, WORDS, config_name, drawable, wrapped
from tcbench.show.format import number, numbers
from tcbench.show.naming import mark_simulated

_HEIGHTS, _LOW = {1: 4.6, 2: 3.8, 3: 3.4}, 2.6
"""The height of a panel in inches, by the number of columns, and for more than two rows."""
_POINT, _SMALL, _DOT = 6.0, 4.0, 3.2
"""Sizes in points of the marks of a phase, of a phase of a cell between base and fastest, and of a layer."""
_NEAR = 20
"""The greatest distance in pixels between marks of a phase that share a label."""
_MARKERS = {"forward": "o", "backward": "s", "update": "^", "replay": "D"}

Point = tuple[float, float]
_Pairs = Sequence[tuple[CellRoofline, CellRoofline]]


@dataclass(frozen=True)
class _Mark:
    """A mark for a phase or a layer of a cell."""

    cell: CellRoofline
    part: WorkPart
    size: float = _POINT
    hollow: bool = False

    @property
    def point(self) -> Point:
        """The position of the mark: FLOP per byte and FLOP/s."""
        return self.part.intensity, self.part.flops_s or math.nan


def roofline_chart(rooflines: Sequence[CellRoofline], *, all_cells: bool = False) -> Figure:
    """Draw phases and timed layers of cells under the ceilings of their device, with a panel for each precision.

    For each batch size, hollow marks show the base, and arrows lead to the fastest cell of the precision. With
    `all_cells`, the other cells have small marks, and numbers refer to the legend. A single cell's marks are labelled
    with the names of phases and layers. Raises SelectionError for no cell."""
    if not rooflines:
        raise SelectionError("no cell to draw a roofline of; `tcbench run` measures some")
    provenance = provenance_of(by_setting([cell.summary for cell in rooflines]))
    pairs = grouped((_roof(fastest), (base, fastest)) for base, fastest in base_and_fastest(rooflines))
    names = {roof: " · ".join(filter(None, (provenance.names[roof[0]], roof[1]))) for roof in pairs}
    roofs, more = first_panels(list(pairs), names.__getitem__, "--config, or name fewer files")
    paired = {cell.summary.key for roof in roofs for pair in pairs[roof] for cell in pair}
    cells = [cell for cell in rooflines if cell.summary.key in paired or (all_cells and _roof(cell) in roofs)]
    summaries = [cell.summary for cell in cells]
    single = len(cells) == 1
    bases = {base.summary.cell.config for roof in roofs for base, fastest in pairs[roof] if base is not fastest}
    base = config_name(*bases) if len(bases) == 1 else "the base" if bases else ""
    about = f": {drawable(summaries[0].cell.label)}" if single else f": from {base} to the fastest" if bases else ""
    ceilings = dict.fromkeys(f"{cell.ceilings.device_name} · ceilings: {cell.ceilings.says}" for cell in cells)
    raised = dict.fromkeys(f"{line[0].upper()}{line[1:]}." for cell in cells for line in raised_ceilings(cell.ceilings))
    facts = small_print(summaries, provenance.common, whiskers=False).split(" · ")
    notes = [
        *["Marks on the ceiling: the limit of each layer. Small marks below: timed layers."] * single,
        *[*more, *raised],
        "FLOP: a multiply-accumulate is two. Bytes: the least traffic, every operand once.",
        " · ".join(fact for fact in facts if not fact.startswith("pale:")),
    ]
    page = ChartPage(
        mark_simulated(f"Roofline{about}", (summary.environment for summary in summaries)), "; ".join(ceilings), notes
    )
    name_of = _legend(page, cells, base, all_cells=all_cells)
    columns = 2 if len({precision for _, precision in roofs}) in (2, 4) else min(3, len(roofs))
    rows = math.ceil(len(roofs) / columns)
    grid = page.panels([_HEIGHTS[columns] if rows < 3 else _LOW] * rows, columns)
    for axes in grid.flat[len(roofs) :]:
        axes.remove()
    for axes in grid.flat[: len(roofs)]:
        _frame(axes, cells)
        axes.set_xlabel("arithmetic intensity, FLOP per byte")
        axes.set_ylabel("GFLOP/s" if axes in grid[:, 0] else "")
        axes.tick_params(pad=6, labelleft=axes in grid[:, 0])
    if not single:
        _head(grid.flat, [(names[roof], pairs[roof]) for roof in roofs], (page.room - 0.6) / columns - 0.2)
    page.settle()
    for axes, roof in zip(grid.flat, roofs, strict=False):
        if single:
            _draw_layers(axes, cells[0])
        _draw(axes, pairs[roof], [cell for cell in cells if _roof(cell) == roof], name_of, all_cells=all_cells)
    return page.figure


def _roof(cell: CellRoofline) -> tuple[Setting, ConfigPrecision]:
    return cell.summary.setting, cell.precision


def _legend(page: ChartPage, cells: Sequence[CellRoofline], base: str, *, all_cells: bool) -> Callable[[_Mark], str]:
    """Add the legend: phases, base and fastest cell, and with `all_cells` a number for each cell. Return a function
    that gives the label of a mark, or an empty text."""
    phases = dict.fromkeys(part.phase for cell in cells for part in worth_showing(cell.phases))
    handles = [_handle(phase, phase_colour(phase), _MARKERS.get(phase, "P")) for phase in phases]
    sizes = {cell.summary.cell.batch_size for cell in cells}
    if base or len(sizes) > 1:
        size = "" if all_cells else f", batch size {min(sizes)}" if len(sizes) == 1 else ", with its batch size"
        handles += [_handle(base, QUIET, "o", inside=PAPER)] * bool(base) + [_handle(f"the fastest{size}", QUIET, "o")]
    page.legend([handles])
    if len(cells) == 1:
        return lambda mark: mark.part.name
    if not all_cells:
        names = "{0.part.name}" if len(sizes) == 1 else "{0.cell.summary.cell.batch_size}"
        return lambda mark: "" if mark.hollow or mark.size < _POINT else names.format(mark)
    numbered = {cell.summary.key: str(place) for place, cell in enumerate(cells, start=1)}
    lines = [drawable(f"{numbered[cell.summary.key]}  {cell.summary.cell.label}") for cell in cells]
    page.legend([[_handle(line, QUIET, "") for line in lines]], handlelength=0, handletextpad=0, labelcolor=QUIET)
    return lambda mark: numbered[mark.cell.summary.key]


def _handle(words: str, colour: str, mark: str, inside: str | None = None) -> Line2D:
    return Line2D([], [], linestyle="", marker=mark, color=colour, markerfacecolor=inside or colour, label=words)


def _head(grid: Iterable[Axes], panels: Sequence[tuple[str, _Pairs]], width: float) -> None:
    """Write above each panel its name, and the configs that arrows lead to."""
    below: list[list[str]] = []
    for _, pairs in panels:
        ends = [fastest.summary.cell for base, fastest in pairs if base is not fastest]
        configs = grouped((cell.config, cell.batch_size) for cell in ends)
        words = (f"{numbers(sizes)}: " * (len(configs) > 1) + config_name(name) for name, sizes in configs.items())
        below.append([line for text in words for line in wrapped(f"⟶ {text}", WORDS, width)])
    most = max(map(len, below))
    for axes, (name, _), lines in zip(grid, panels, below, strict=False):
        first = "\n".join(wrapped(name, LABEL, width, bold=True))
        axes.set_title(first + "\n" * most, loc="center", ha="left", x=0, weight="bold")
        axes.set_title("\n".join(lines) + "\n" * (most - len(lines)), loc="left", fontsize=WORDS, color=QUIET)


def _frame(axes: Axes, cells: Sequence[CellRoofline]) -> None:
    """Set logarithmic axes of FLOP per byte and FLOP/s whose limits include all parts and ceilings of the cells."""
    parts = [part for cell in cells for part in (*worth_showing(cell.phases), *worth_showing(cell.layers))]
    peaks = [peak for cell in cells if math.isfinite(peak := cell.ceilings.peak_flops_s(cell.precision))]
    ridges = [ridge for cell in cells if 0 < (ridge := cell.ceilings.ridge(cell.precision)) < math.inf]
    x = [part.intensity for part in parts] + ridges or [1.0]
    x += [part.intensity for part in cells[0].layers if len(cells) == 1 and part.flops and part.bytes]
    y = [part.flops_s for part in parts if part.flops_s] + peaks or [1e9]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(x) / 1.6, max(x) * 2)
    axes.set_ylim(min(y) / 1.6, max(y) * 1.8)
    for axis, unit in ((axes.xaxis, 1.0), (axes.yaxis, 1e9)):
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 3) if high < 2e3 * low else (1,)))
        axis.set_major_formatter(FuncFormatter(lambda tick, _, unit=unit: f"{tick / unit:.6g}"))
        axis.set_minor_locator(NullLocator())


def _draw(
    axes: Axes, pairs: _Pairs, cells: Sequence[CellRoofline], name_of: Callable[[_Mark], str], *, all_cells: bool
) -> None:
    """Draw a panel: ceilings, marks and arrows, then labels of ceilings, phases and layers, the longest parts first.

    An arrow leads from the base to the fastest cell of each pair. `name_of` returns the label of a mark, or ""."""
    paired = {id(cell) for pair in pairs for cell in pair}
    unpaired = [cell for cell in cells if id(cell) not in paired]
    marks = [_Mark(cell, part, _SMALL) for cell in unpaired for part in worth_showing(cell.phases)]
    moves: list[tuple[_Mark, _Mark]] = []
    for base, fastest in pairs:
        starts = {} if base is fastest else {part.name: part for part in _base_phases(base, fastest)}
        for end in (_Mark(fastest, part) for part in worth_showing(fastest.phases)):
            marks.append(end)
            if end.part.name in starts:
                marks.append(_Mark(base, starts[end.part.name], hollow=True))
                moves.append((marks[-1], end))
    marks += [_Mark(cell, part, _DOT) for cell in cells for part in worth_showing(cell.layers)]
    marks.sort(key=lambda mark: (-mark.size, -(mark.part.time_s or 0)))
    roofs = list(dict.fromkeys((cell.ceilings, cell.precision) for pair in pairs for cell in pair[::-1]))
    occupied = [box for mark in marks for box in _draw_mark(axes, mark)]
    occupied += [box for roof in roofs for box in _draw_roof(axes, *roof, is_main=roof == roofs[0])]
    arrows = [point for move in moves for point in _draw_arrow(axes, *move)]
    for words, *ends in _roof_labels(axes, roofs):
        blocked = [*occupied, *squares_around(arrows, 5)]
        if any(label(axes, words, end, blocked, gap=7, far=True) for end in ends):
            occupied.append(blocked[-1])  # the box that `label` appended
    for group in _label_groups([mark for mark in marks if name_of(mark)], axes):
        names = sorted({name_of(mark) for mark in group}, key=lambda words: (len(words), words))
        words = ", ".join(names) if all_cells or len(names) < 3 else f"{names[0]} to {names[-1]}"
        gap = group[0].size / 144 * DPI + 4
        label(axes, drawable(words), group[0].point, occupied, gap=gap, avoid=arrows, color=QUIET, zorder=5, bbox=None)


def _roof_labels(axes: Axes, roofs: Sequence[tuple[Ceilings, ConfigPrecision]]) -> Iterator[tuple[str, Point, Point]]:
    """Yield labels of ceilings, each with the two points at which it may stand.

    A peak rate is labelled at an end of its horizontal line, the bandwidth in the middle or at the foot of its slope.
    """
    for ceilings, precision in roofs:
        peak, ridge = ceilings.peak_flops_s(precision), max(ceilings.ridge(precision), axes.get_xlim()[0])
        yield f"{precision}: {number(peak / 1e9)} GFLOP/s", (axes.get_xlim()[1], peak), (ridge, peak)
    (low, high), bandwidth = axes.get_xlim(), roofs[0][0].memory_bytes_s
    low, high = max(low, axes.get_ylim()[0] / bandwidth), min(roofs[0][0].ridge(roofs[0][1]), high)
    if low < high:
        middle = math.sqrt(low * high)
        yield f"{number(bandwidth / 1e9)} GB/s", (middle, bandwidth * middle), (low, bandwidth * low)


def _base_phases(base: CellRoofline, fastest: CellRoofline) -> list[WorkPart]:
    """Return the base's phases that a chart can show; if the fastest cell replays a graph, also their sum, "replay"."""
    parts = worth_showing(base.phases)
    if not any(part.name == "replay" for part in fastest.phases):
        return parts
    flops, n_bytes, time_s = (sum(getattr(part, name) for part in parts) for name in ("flops", "bytes", "time_s"))
    return [*parts, WorkPart("replay", "replay", flops, n_bytes, time_s)]


def _label_groups(marks: Iterable[_Mark], axes: Axes) -> list[list[_Mark]]:
    """Group marks that share a label: marks of the same phase that are close to each other."""
    groups: list[list[_Mark]] = []
    for mark in marks:
        alike = (group for group in groups if mark.size > _DOT and group[0].part.phase == mark.part.phase)
        near = (group for group in alike if math.dist(_pixels(axes, group[-1]), _pixels(axes, mark)) < _NEAR)
        group = next(near, [])
        group.append(mark)
        groups += [group] * (len(group) == 1)  # a new group
    return groups


def _pixels(axes: Axes, mark: _Mark) -> Point:
    x, y = axes.transData.transform(mark.point)
    return x, y


def _draw_mark(axes: Axes, mark: _Mark) -> list[Bbox]:
    """Draw a mark, and return the boxes that it covers, in pixels."""
    colour = phase_colour(mark.part.phase)
    axes.scatter(
        *mark.point,
        s=mark.size**2,
        marker=_MARKERS.get(mark.part.phase, "P"),
        facecolor=PAPER if mark.hollow else colour,
        edgecolor=colour if mark.hollow or mark.size == _DOT else PAPER,
        linewidth=1.2 if mark.hollow else 0.6,
        zorder=3 if mark.hollow else 3.1,
        clip_on=False,
    )
    return squares_around([_pixels(axes, mark)], mark.size / 144 * DPI)


def _draw_arrow(axes: Axes, start: _Mark, end: _Mark) -> list[Point]:
    """Draw an arrow between marks that are not too close, and return points on it, in pixels."""
    a, b = _pixels(axes, start), _pixels(axes, end)
    if math.dist(a, b) < 1.5 * _POINT / 72 * DPI:
        return []
    gaps: Any = dict.fromkeys(("shrinkA", "shrinkB"), _POINT / 2 + 1)
    colour = phase_colour(end.part.phase)
    arrow = FancyArrowPatch(
        start.point, end.point, arrowstyle="-|>", mutation_scale=8, color=colour, zorder=2.9, **gaps
    )
    axes.add_patch(arrow)
    return [(x, y) for x, y in np.linspace(a, b, 12)]


def _draw_roof(axes: Axes, ceilings: Ceilings, precision: ConfigPrecision, *, is_main: bool) -> list[Bbox]:
    """Draw a roof: bandwidth up to the ridge, then the peak; dashed unless it is the main one. Return the boxes that it
    covers, in pixels."""
    x = np.geomspace(*axes.get_xlim(), 160)
    x = np.union1d(x, np.clip(ceilings.ridge(precision), x[0], x[-1]))
    y = [ceilings.attainable_flops_s(float(intensity), precision) for intensity in x]
    if not all(map(math.isfinite, y)):
        return []
    style: Any = {"color": INK, "lw": 1.4, "zorder": 2.5} if is_main else {"color": QUIET, "lw": 0.9, "ls": (0, (5, 2))}
    axes.plot(x, y, **style)
    return squares_around([(x, y) for x, y in axes.transData.transform(np.column_stack([x, y]))], 5)


def _draw_layers(axes: Axes, cell: CellRoofline) -> None:
    """Mark on the ceiling the attainable rate of each layer that computes."""
    for phase in ("forward", "backward"):
        parts = [part for part in cell.layers if part.phase == phase and part.flops and part.bytes]
        y = [cell.ceilings.attainable_flops_s(part.intensity, cell.precision) for part in parts]
        if all(map(math.isfinite, y)):  # otherwise the ceiling is unknown
            x = [part.intensity for part in parts]
            axes.scatter(x, y, s=20, marker="|", color=phase_colour(phase), linewidth=0.8, zorder=2.7)
