"""The roofline as a picture: ceilings, and phases and layers as points below them, on logarithmic axes.

Owns the axes and what stands in them. Knows nothing of where rates come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import Bbox

from tcbench.analysis.roofline import Ceilings, CellRoofline, ConfigPrecision, WorkPart, base_and_fastest, worth_showing
from tcbench.analysis.summary import CellKey
from tcbench.core.errors import SelectionError
from tcbench.present.charts.labels import around, label
from tcbench.present.charts.page import Page
from tcbench.present.charts.palette import INK, OTHER, PAPER, PHASE_COLOURS, QUIET
from tcbench.present.charts.provenance import by_setting, first_panels, provenance_of, small_print
from tcbench.present.charts.text import DPI, LABEL, WORDS, config_name, drawable, wrapped
from tcbench.present.format import number, numbers
from tcbench.present.groups import grouped
from tcbench.present.simulated import marked

MAX_CELLS = 40
_HEIGHTS = {1: 4.6, 2: 3.8, 3: 3.4}
"""Inches of a panel, by the columns of the page."""
_POINT, _SMALL, _DOT = 6.0, 4.0, 3.2
"""Width of the mark of a phase, of one of neither the base nor the fastest cell, and of a layer, points."""
_NEAR = 20
"""Pixels between marks that share a label."""
_MARKS = {"forward": "o", "backward": "s", "update": "^", "replay": "D"}


Place = tuple[float, float]


@dataclass(frozen=True)
class _Mark:
    """A phase or a layer of a cell."""

    part: WorkPart
    size: float = _POINT
    name: str = ""
    hollow: bool = False

    @property
    def at(self) -> Place:
        """FLOP per byte, FLOP/s."""
        return self.part.intensity, self.part.flops_s or math.nan


@dataclass(frozen=True)
class _Panel:
    """What stands under the roof of one precision: of each batch size the base and the fastest cell, and the others."""

    name: str
    pairs: Sequence[tuple[CellRoofline, CellRoofline]]
    others: Sequence[CellRoofline]

    @property
    def cells(self) -> list[CellRoofline]:
        """Each once."""
        cells = [*(one for pair in self.pairs for one in pair), *self.others]
        return list({one.summary.key: one for one in cells}.values())


def roofline_chart(rooflines: Sequence[CellRoofline], *, every: bool = False) -> Figure:
    """Phases of cells, and the layers that have times, under the ceilings of their device: a panel for each precision
    of a setting.

    Of each batch size the base is hollow, and an arrow leads to the fastest cell of the precision; with `every`, other
    cells are small, and all bear their number in the legend. Of one cell, marks bear the names of phases and layers.
    Raises SelectionError for no cell, or for `every` of more than MAX_CELLS.
    """
    if not rooflines:
        raise SelectionError("no cell to draw a roofline of; `tcbench run` measures some")
    if every and len(rooflines) > MAX_CELLS:
        raise SelectionError(
            f"{len(rooflines)} cells do not fit in one roofline (at most {MAX_CELLS}); choose some (--bs)"
        )
    provenance = provenance_of(by_setting([one.summary for one in rooflines]))
    pairs = grouped(((pair[1].summary.setting, pair[1].precision), pair) for pair in base_and_fastest(rooflines))
    others = grouped(((one.summary.setting, one.precision), one) for one in rooflines if every)
    panels, more = first_panels(
        [
            _Panel(" · ".join(filter(None, (provenance.names[key[0]], key[1]))), pairs[key], others.get(key, ()))
            for key in pairs
        ],
        lambda panel: panel.name,
        "--config, or name fewer files",
    )
    cells = list({one.summary.key: one for panel in panels for one in panel.cells}.values())
    summaries = [one.summary for one in cells]
    single = len(cells) == 1
    facts = small_print(summaries, provenance.common, whiskers=False).split(" · ")
    notes = [
        *["Marks on the ceiling: where each layer could be at most. Dots below: layers that were timed."] * single,
        *more,
        "FLOP: a multiply-accumulate is two. Bytes: the least traffic, every operand once.",
        " · ".join(fact for fact in facts if not fact.startswith("pale:")),
    ]
    ceilings = dict.fromkeys(f"{one.ceilings.device_name} · ceilings: {one.ceilings.says}" for one in cells)
    bases = {base.summary.cell.config for panel in panels for base, fastest in panel.pairs if base is not fastest}
    base = config_name(*bases) if len(bases) == 1 else "the base"
    about = f": {drawable(summaries[0].cell.label)}" if single else f": from {base} to the fastest" if bases else ""
    page = Page(marked(f"Roofline{about}", (one.environment for one in summaries)), "; ".join(ceilings), notes)
    phases = dict.fromkeys(part.phase for one in cells for part in worth_showing(one.phases))
    entries = [_entry(phase, PHASE_COLOURS[phase], _MARKS[phase]) for phase in phases]
    if bases:
        sizes = "" if every else ", with its batch size"
        entries += [_entry(base, QUIET, "o", hollow=True), _entry(f"the fastest{sizes}", QUIET, "o")]
    page.legend([entries])
    numbered: dict[CellKey, str] = {}
    if every and not single:
        numbered = {summary.key: str(place) for place, summary in enumerate(summaries, start=1)}
        words = (drawable(f"{numbered[summary.key]}  {summary.cell.label}") for summary in summaries)
        page.legend(
            [[Line2D([], [], linestyle="none", label=entry) for entry in words]],
            handlelength=0,
            handletextpad=0,
            labelcolor=QUIET,
        )
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    grid = page.panels([_HEIGHTS[columns]] * math.ceil(len(panels) / columns), columns)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, panel in zip(grid.flat, panels, strict=False):
        _frame(axes, panels)
        axes.set_xlabel("arithmetic intensity, FLOP per byte")
        axes.tick_params(pad=6, labelleft=axes in grid[:, 0])
        if axes in grid[:, 0]:
            axes.set_ylabel("GFLOP/s")
    if not single:
        _head(grid.flat, panels, (page.room - 0.6) / columns - 0.2)
    page.settle()
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw(axes, panel, numbered, single=single)
    return page.figure


def _entry(words: str, colour: str, mark: str, *, hollow: bool = False) -> Line2D:
    inside = PAPER if hollow else colour
    return Line2D([], [], linestyle="none", marker=mark, color=colour, markerfacecolor=inside, label=words)


def _head(grid: Iterable[Axes], panels: Sequence[_Panel], width: float) -> None:
    """Above each panel its name, and the fastest configs, with their batch sizes where these differ."""
    names = [wrapped(panel.name, LABEL, width, bold=True) for panel in panels]
    below: list[list[str]] = []
    for panel in panels:
        fastest = grouped((one.summary.cell.config, one.summary.cell.batch_size) for _, one in panel.pairs)
        words = (f"{numbers(sizes)}: " * (len(fastest) > 1) + config_name(name) for name, sizes in fastest.items())
        below.append([line for entry in words for line in wrapped(f"⟶ {entry}", WORDS, width)])
    most = max(map(len, below))
    for axes, name, lines in zip(grid, names, below, strict=False):
        axes.set_title("\n".join(name) + "\n" * most, loc="center", ha="left", x=0, weight="bold")
        axes.set_title("\n".join(lines) + "\n" * (most - len(lines)), loc="left", fontsize=WORDS, color=QUIET)


def _frame(axes: Axes, panels: Iterable[_Panel]) -> None:
    """Logarithmic axes, FLOP per byte and FLOP/s, that hold all parts and ceilings of all panels."""
    cells = [one for panel in panels for one in panel.cells]
    parts = [part for one in cells for part in (*worth_showing(one.phases), *worth_showing(one.layers))]
    peaks = [peak for one in cells if math.isfinite(peak := one.ceilings.flops_s(one.precision))]
    ridges = [ridge for one in cells if 0 < (ridge := one.ceilings.ridge(one.precision)) < math.inf]
    x = [part.intensity for part in parts] + ridges or [1.0]
    y = [part.flops_s for part in parts if part.flops_s] + peaks or [1e9]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(x) / 1.6, max(x) * 2)
    axes.set_ylim(min(y) / 1.6, max(y) * 1.8)
    for axis, unit in ((axes.xaxis, 1.0), (axes.yaxis, 1e9)):
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 3) if high < 2e3 * low else (1,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _, unit=unit: f"{value / unit:.6g}"))
        axis.set_minor_locator(NullLocator())


def _draw(axes: Axes, panel: _Panel, numbered: Mapping[CellKey, str], *, single: bool) -> None:
    """Ceilings, marks and arrows, then their words: of ceilings, of phases, and of layers, what takes longest first."""
    marks, moves = [], []

    def mark(one: CellRoofline, part: WorkPart, size: float = _POINT, *, hollow: bool = False) -> _Mark:
        name = part.name if single else numbered.get(one.summary.key, "") if size > _DOT else ""
        marks.append(_Mark(part, size, name, hollow))
        return marks[-1]

    paired = {id(one) for pair in panel.pairs for one in pair}
    for one in panel.others:
        for part in worth_showing(one.phases) if id(one) not in paired else ():
            mark(one, part, _SMALL)
    for base, fastest in panel.pairs:
        starts = {} if base is fastest else {part.name: part for part in _beside(base, fastest)}
        for part in worth_showing(fastest.phases):
            end = mark(fastest, part)
            if part.name in starts:
                moves.append((mark(base, starts[part.name], hollow=True), end))
    for one in panel.cells:
        for part in sorted(worth_showing(one.layers), key=lambda part: -(part.time_s or 0)):
            mark(one, part, _DOT)
    if single:
        _draw_layers(axes, panel.pairs[0][0])
    roofs = list(dict.fromkeys((one.ceilings, one.precision) for pair in panel.pairs for one in pair[::-1]))
    taken: list[Bbox] = []
    for one in marks:
        _draw_mark(axes, one)
        taken += around([_pixels(axes, one.at)], one.size / 144 * DPI)
    for roof in roofs:
        taken += _draw_roof(axes, *roof, is_own=roof == roofs[0])
    on_arrows = [place for move in moves for place in _draw_arrow(axes, *move)]
    for ceilings, precision in roofs:
        if math.isfinite(peak := ceilings.flops_s(precision)):
            words = f"{precision}: {number(peak / 1e9)} GFLOP/s"
            label(axes, words, (axes.get_xlim()[1], peak), taken, gap=7, far=True, avoid=on_arrows)
    _name_slope(axes, *roofs[0], taken)
    sizes = [] if single or numbered else _batch_sizes(axes, panel.pairs)
    named = [(one.name, one.at, one.size) for one in marks if one.name]
    for name, at, size in [*sizes, *sorted(named, key=lambda entry: -entry[2])]:
        label(
            axes, drawable(name), at, taken, gap=size / 144 * DPI + 4, avoid=on_arrows, color=QUIET, zorder=5, bbox=None
        )


def _beside(base: CellRoofline, fastest: CellRoofline) -> list[WorkPart]:
    """The base's phases; beside those of a graph that replays them all, their sum."""
    parts = worth_showing(base.phases)
    if not any(part.name == "replay" for part in fastest.phases) or not parts:
        return parts
    flops, n_bytes, time_s = (sum(values) for values in zip(*((p.flops, p.bytes, p.time_s or 0) for p in parts)))
    return [*parts, WorkPart("replay", "replay", int(flops), int(n_bytes), time_s)]


def _batch_sizes(axes: Axes, pairs: Sequence[tuple[CellRoofline, CellRoofline]]) -> list[tuple[str, Place, float]]:
    """Beside each phase of the fastest cells their batch size; marks that lie near each other share theirs."""
    groups: list[list[tuple[int, _Mark]]] = []
    marks = [(part, one.summary.cell.batch_size) for _, one in pairs for part in worth_showing(one.phases)]
    for part, batch_size in sorted(marks, key=lambda entry: (entry[0].phase, entry[1])):
        mark = _Mark(part)
        last = groups[-1][-1][1] if groups else None
        if last and last.part.phase == part.phase and math.dist(_pixels(axes, last.at), _pixels(axes, mark.at)) < _NEAR:
            groups[-1].append((batch_size, mark))
        else:
            groups.append([(batch_size, mark)])
    return [(_span([size for size, _ in group]), group[-1][1].at, _POINT) for group in groups]


def _span(sizes: Sequence[int]) -> str:
    """The sizes of a group, in order: "8", "4 and 8", "32 to 256"."""
    return numbers(sizes) if len(sizes) < 3 else f"{sizes[0]} to {sizes[-1]}"


def _pixels(axes: Axes, at: Place) -> Place:
    return tuple(axes.transData.transform(at))


def _draw_mark(axes: Axes, mark: _Mark) -> None:
    colour = PHASE_COLOURS.get(mark.part.phase, OTHER)
    axes.scatter(
        *mark.at,
        s=mark.size**2,
        marker=_MARKS[mark.part.phase],
        facecolor=PAPER if mark.hollow else colour,
        edgecolor=colour if mark.hollow or mark.size == _DOT else PAPER,
        linewidth=1.2 if mark.hollow else 0.6,
        zorder=3 if mark.hollow else 3.1,
        clip_on=False,
    )


def _draw_arrow(axes: Axes, start: _Mark, end: _Mark) -> list[Place]:
    """Where the two stand apart; returns places on it, in pixels."""
    a, b = _pixels(axes, start.at), _pixels(axes, end.at)
    if math.dist(a, b) < 1.5 * _POINT / 72 * DPI:
        return []
    shrink, colour = _POINT / 2 + 1, PHASE_COLOURS[end.part.phase]
    arrow = FancyArrowPatch(
        start.at, end.at, arrowstyle="-|>", mutation_scale=8, shrinkA=shrink, shrinkB=shrink, color=colour, zorder=2.9
    )
    axes.add_patch(arrow)
    return [tuple(place) for place in np.linspace(a, b, 12)]


def _draw_roof(axes: Axes, ceilings: Ceilings, precision: ConfigPrecision, *, is_own: bool) -> list[Bbox]:
    """Bandwidth up to the ridge, then the peak, where they stand; the base's quieter. Returns what it covers, in
    pixels."""
    x = np.geomspace(*axes.get_xlim(), 160)
    x = np.union1d(x, np.clip(ceilings.ridge(precision), x[0], x[-1]))
    y = [ceilings.attainable_flops_s(float(intensity), precision) for intensity in x]
    if not all(map(math.isfinite, y)):
        return []
    style = {"color": INK, "linewidth": 1.4} if is_own else {"color": QUIET, "linewidth": 0.9, "linestyle": (0, (5, 2))}
    axes.plot(x, y, zorder=2.5 if is_own else 2.4, **style)
    return around([tuple(place) for place in axes.transData.transform(np.column_stack([x, y]))], 5)


def _name_slope(axes: Axes, ceilings: Ceilings, precision: ConfigPrecision, taken: list[Bbox]) -> None:
    """The bandwidth's words, at the middle of its slope."""
    (low, high), bandwidth = axes.get_xlim(), ceilings.bandwidth_bytes_s
    low, high = max(low, axes.get_ylim()[0] / bandwidth), min(ceilings.ridge(precision), high)
    if low < high:
        middle = math.sqrt(low * high)
        label(axes, f"{number(bandwidth / 1e9)} GB/s", (middle, bandwidth * middle), taken, gap=7, far=True)


def _draw_layers(axes: Axes, one: CellRoofline) -> None:
    """On the ceiling, where each layer that computes could be."""
    for phase in ("forward", "backward"):
        parts = [part for part in one.layers if part.phase == phase and part.flops and part.bytes]
        y = [one.ceilings.attainable_flops_s(part.intensity, one.precision) for part in parts]
        if all(map(math.isfinite, y)):  # else there is no ceiling to stand on
            x = [part.intensity for part in parts]
            axes.scatter(x, y, s=20, marker="|", color=PHASE_COLOURS[phase], linewidth=0.8, zorder=2.7)
