"""The chart of timelines, as in the talk: input threads, host and GPU in a few steps; and the page's section on them.

Cells are drawn below each other on one time scale, which begins at each cell's first shown step. Spans too short to be
drawn are merged: the height of a GPU's row is then the share of each pixel in which the GPU was busy, so that gaps
between kernels show even if they are smaller than a pixel."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tcbench.analysis import intervals
from tcbench.analysis.bottleneck import Bottleneck, explain_timeline, waits
from tcbench.analysis.kernel_names import short_kernel_name
from tcbench.analysis.phases import PhaseCost
from tcbench.analysis.summary import CellSummary
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.core.timeline import COMMUNICATION, WINDOW, Span, Timeline
from tcbench.show.bottlenecks import limit_sentence
from tcbench.show.charts.inline import tooltip
from tcbench.show.charts.page import MARGIN, WIDTH, ChartPage, boxes
from tcbench.show.charts.palette import COPY, INK, OTHER, PAPER, PHASE_COLOURS, QUIET, RECORDED, Fill
from tcbench.show.charts.provenance import first_panels
from tcbench.show.charts.text import DPI, LABEL, SMALL, WORDS, drawable, shortened, text_width, wrapped
from tcbench.show.format import milliseconds, number
from tcbench.show.naming import another_session, mark_simulated
from tcbench.show.page import drawings
from tcbench.show.page.page import Section
from tcbench.show.tables import SECONDS, Column, Table

DEFAULT_STEPS = 3
MAX_SINGLE = 300
"""The number of spans in a row that are drawn one by one. More are merged."""
READABLE = 12
"""The approximate number of spans in a row that have room for their names."""

_WORDS = {
    "io": ("IO",),
    "forward": ("FWD",),
    "backward": ("BWD",),
    "allreduce": ("AR",),
    "factors": ("FACTORS", "FAC"),
    "inverse": ("INVERSE", "INV"),
    "precondition": ("PRECONDITION", "PRE"),
    "update": ("UPD",),
    "replay": ("REPLAY", "RPL"),
}
_SOURCES = {
    "nsys": "recorded by Nsight Systems",
    "cupti": "recorded through CUPTI",
    "simulated": "recorded by the simulation",
    "ranges": "recorded by tcbench's own ranges",
    "pytorch": "recorded by PyTorch's profiler",
}
_COLOURS = {**PHASE_COLOURS, "other": OTHER, COMMUNICATION: PHASE_COLOURS["allreduce"], "copy": COPY}
_ROOM = WIDTH - 2 * MARGIN - 0.55  # inches of a panel without the names of its rows
_FACTS = 2.4  # inches for the figures to the right of a name
_WAITING = Fill(PAPER, "//////")
_PAD = 0.05
_GAP = 0.05
_BIN_PIXELS = 2
_EDGED = 0.06  # inches; narrower blocks have no edge
_FEWEST = 5  # the least length of a shortened name


@dataclass(frozen=True)
class Caption:
    """The words of a panel on a trace of another profiler: figures beside its name, and a sentence below it."""

    figures: str
    sentence: str


def timeline_chart(
    timelines: Sequence[Timeline],
    zoom: tuple[float, float] | None = None,
    steps: int | None = None,
    *,
    step: int | None = None,
    captions: Sequence[Caption | None] = (),
) -> Figure:
    """Draw timelines below each other.

    - `zoom`: begin and end of the part to draw, in ms on the time axis of the whole picture.
    - `steps`: the number of steps of the slowest cell to draw (default 3). If enough steps were recorded, the first one
      is left out, because it starts with an idle GPU.
    - `step`: the number of the first step to draw.
    - `captions`: the words of each timeline, None for those of its bottleneck.

    Raises SelectionError if there is nothing to draw, or for a step or part that was not recorded."""
    if not timelines:
        raise SelectionError("no timeline to draw; `tcbench profile` records one")
    timelines, more = first_panels(timelines, lambda timeline: timeline.label, "--config or --bs, or name fewer files")
    window = _window(timelines, zoom, steps, step)
    panels = [
        _Panel(timeline, caption or explain_timeline(timeline), _first(timeline, steps, step).begin_s, *window)
        for timeline, caption in zip(timelines, captions or [None] * len(timelines), strict=False)
    ]
    return _page(panels, zoom, more)


def close_up(timeline: Timeline) -> tuple[float, float] | None:
    """Return the zoom, in ms, that shows READABLE consecutive kernels or layers with room for their names.

    It covers those that take longest in the first step shown. Layers count only if no kernels were recorded.
    Return None if there are neither."""
    step = _first(timeline, None, None)
    spans = [s for s in timeline.spans_in("gpu", "kernel") or timeline.spans_in("host", "layer") if s.step == step.step]
    if not spans:
        return None
    rows = zip(spans, spans[READABLE - 1 :] or spans[-1:], strict=False)
    first, last = max(rows, key=lambda row: row[1].end_s - row[0].begin_s)
    return round((first.begin_s - step.begin_s) * 1e3, 2), round((last.end_s - step.begin_s) * 1e3, 2)


def _first(timeline: Timeline, steps: int | None, number: int | None) -> Span:
    """Return the first step to draw: the step `number`, or the one that a chart of `steps` steps begins with.

    That is the second recorded step, or the first if too few steps were recorded. Raises SelectionError if there is no
    such step."""
    recorded = timeline.steps
    if not recorded:
        raise SelectionError(f"{timeline.label}: no steps in this timeline; nothing to draw")
    if number is not None:
        step = next((span for span in recorded if span.step == number), None)
        if step is None:
            numbers = [span.step for span in recorded if span.step is not None]
            steps_words = f"{numbers[0]} to {numbers[-1]}" if numbers else "steps without numbers"
            raise SelectionError(f"--step {number}: {timeline.label} has {steps_words}")
        return step
    shown = min(steps or DEFAULT_STEPS, len(recorded))
    return recorded[min(1, len(recorded) - shown)]


def _window(
    timelines: Sequence[Timeline], zoom: tuple[float, float] | None, steps: int | None, step: int | None
) -> tuple[float, float]:
    """Return begin and end of the part to draw, in seconds after the begin of each timeline's first drawn step.

    `zoom` gives the part in ms; without it, the part ends with the last drawn step of the slowest cell. Raises
    SelectionError if nothing was recorded there."""
    ends_s, recorded_s = [], []
    for timeline in timelines:
        first = _first(timeline, steps, step)
        place = timeline.steps.index(first)
        shown = steps or (1 if step is not None else DEFAULT_STEPS)
        steps_shown = timeline.steps[place : place + shown]
        ends = [steps_shown[-1].end_s]
        if not timeline.batch_size:  # the host of another program may run far ahead of the GPU
            numbers = {span.step for span in steps_shown}
            ends += [span.end_s for span in timeline.spans_in("gpu") if span.step in numbers]
        ends_s.append(max(ends) - first.begin_s)
        recorded_s.append(max(s.end_s for s in timeline.spans) - first.begin_s)
    if zoom is None:
        return 0.0, max(ends_s)
    begin_s, end_s = zoom[0] / 1e3, zoom[1] / 1e3
    if not (math.isfinite(begin_s) and math.isfinite(end_s)) or begin_s >= end_s:
        raise SelectionError(f"zoom {zoom[0]:g}:{zoom[1]:g}: expected begin and end in ms, begin before end")
    if begin_s >= max(recorded_s) or end_s <= 0:
        raise SelectionError(
            f"zoom {zoom[0]:g}:{zoom[1]:g}: nothing recorded there; expected a part of 0:{max(recorded_s) * 1e3:.4g}"
        )
    return begin_s, end_s


@dataclass(frozen=True)
class _Lane:
    """A row of a panel. `height` is in inches; `style` selects the function that draws it."""

    name: str
    height: float
    spans: tuple[Span, ...]
    style: str


@dataclass(frozen=True)
class _Panel:
    """A cell's timeline, drawn from `begin_s` to `end_s` after `zero_s`, the time that is 0 on the axis."""

    timeline: Timeline
    verdict: Bottleneck | Caption
    zero_s: float
    begin_s: float
    end_s: float

    @property
    def caption(self) -> Caption:
        """The words of the panel."""
        if isinstance(self.verdict, Caption):
            return self.verdict
        figures = f"{number(self.verdict.images_per_s)} {self.timeline.unit}/s"
        if self.verdict.device is not None:
            figures += f" · GPU busy {self.verdict.device.busy_share:.0%}"
        return Caption(figures, limit_sentence(self.verdict))

    def ms(self, time_s: float) -> float:
        """Convert a time of the timeline to a place on the axis in ms."""
        return (time_s - self.zero_s) * 1e3

    def clipped(self, span: Span) -> tuple[float, float]:
        """Return begin and end of the visible part of a span, in ms."""
        return max(self.ms(span.begin_s), self.begin_s * 1e3), min(self.ms(span.end_s), self.end_s * 1e3)

    def free(self, begin_ms: float, end_ms: float) -> tuple[float, float]:
        """Return the widest part of a block that no step's line crosses, in ms."""
        starts = (self.ms(step.begin_s) for step in self.timeline.steps)
        cuts = [begin_ms, *sorted(start for start in starts if begin_ms < start < end_ms), end_ms]
        return max(itertools.pairwise(cuts), key=lambda part: part[1] - part[0])

    def inches(self, begin_ms: float, end_ms: float) -> float:
        """Return the width of a part of the axis in inches."""
        return (end_ms - begin_ms) * _ROOM / (self.end_s - self.begin_s) / 1e3

    def _visible(self, spans: Iterable[Span]) -> tuple[Span, ...]:
        low, high = self.zero_s + self.begin_s, self.zero_s + self.end_s
        return tuple(span for span in spans if span.end_s > low and span.begin_s < high)

    @cached_property
    def rows(self) -> tuple[_Lane, ...]:
        """The rows of the panel from top to bottom: input threads, CPU, layers, GPU."""
        timeline = self.timeline
        rows = []
        threads = sorted({span.row for span in timeline.spans_in("io")})
        if 0 < len(threads) <= 3:
            for i, thread in enumerate(threads):
                spans = self._visible(span for span in timeline.spans_in("io") if span.row == thread)
                rows.append(_Lane("IO" if i == 0 else "", 0.2, spans, "io"))
        elif threads:
            rows.append(_Lane("IO", 0.25, self._visible(timeline.spans_in("io")), "density"))
        rows.append(_Lane("CPU", 0.3, self._visible(timeline.spans_in("host", "phase")), "phases"))
        layers = self._visible(timeline.spans_in("host", "layer"))
        if layers and len(layers) <= MAX_SINGLE:
            rows.append(_Lane("layers", 0.2, layers, "names"))
        if timeline.spans_in("gpu"):
            spans = self._visible(timeline.spans_in("gpu"))
            only_phases = all(span.kind == "phase" for span in timeline.spans_in("gpu"))
            style = "phases" if only_phases else "names" if len(spans) <= MAX_SINGLE else "density"
            rows.append(_Lane("GPU", 0.34, spans, style))
        return tuple(rows)

    @property
    def placed(self) -> list[tuple[_Lane, float]]:
        """The rows, each with its distance from the top in inches."""
        tops = itertools.accumulate((row.height + _GAP for row in self.rows), initial=_GAP)
        return list(zip(self.rows, tops, strict=False))

    @property
    def rows_height(self) -> float:
        """The height of all rows and gaps in inches."""
        return sum(row.height for row in self.rows) + _GAP * (len(self.rows) + 1)

    @property
    def visible_phases(self) -> set[str]:
        """The keys of the legend that this panel needs."""
        keys = {_colour_key(span) for row in self.rows for span in row.spans if row.name != "layers"}
        return keys | ({"waiting"} if self.waiting else set())

    @cached_property
    def waiting(self) -> tuple[Span, ...]:
        """The visible calls in which the host waits for the GPU."""
        return self._visible(span for span in self.timeline.spans_in("host", "api") if waits(span.name))


def _page(panels: Sequence[_Panel], zoom: tuple[float, float] | None, more: Sequence[str]) -> Figure:
    """Compose the page with its notes, legend and panels. `more` are notes on timelines that have no panel."""
    names = list(dict.fromkeys(panel.timeline.device_name for panel in panels))
    sources = list(dict.fromkeys(_SOURCES[panel.timeline.source] for panel in panels))
    part = f"from {zoom[0]:g} to {zoom[1]:g} ms of the steps shown · " if zoom else ""
    merged = any(row.style == "density" and row.name == "GPU" for panel in panels for row in panel.rows)
    notes = ["CPU blocks: the phases of a step; dashed lines: where a step begins."]
    on_gpu = [row.style for panel in panels for row in panel.rows if row.name == "GPU"]
    if "phases" in on_gpu:
        notes[0] += " GPU phases include waits for the CPU."
    if set(on_gpu) - {"phases"}:
        notes[0] += " Colour of the GPU's work: the phase that launched it."
    if merged:
        notes[0] += " Its height: the share of the time in which the GPU was busy."
    measured = [panel.verdict for panel in panels if isinstance(panel.verdict, Bottleneck)]
    of_records = [bottleneck for bottleneck in measured if bottleneck.source == "record"]
    if len(of_records) < len(panels):
        notes.append("Figures are those of all recorded steps; profiling slows steps down.")
    timed = [bottleneck.phases_are_timed for bottleneck in of_records]
    if any(timed):
        notes.append("Phases of a record are those of its timed steps, laid end to end.")
    if not all(timed):
        notes.append("Throughput and verdict of a record are from its timed steps, measured before the recorded ones.")
    title = mark_simulated("Timeline", (panel.timeline for panel in panels))
    page = ChartPage(title, f"{part}{', '.join(names)} · {', '.join(sources)}", [*notes, *more])
    page.legend([_legend(panels)])
    column = page.panels([panel.rows_height for panel in panels])[:, 0]
    for axes, panel in zip(column, panels, strict=True):
        name = wrapped(drawable(panel.timeline.label), LABEL, page.room - _FACTS, bold=True)
        below = wrapped(drawable(panel.timeline.device_name), LABEL, page.room) if len(names) > 1 else []
        below += wrapped(drawable(panel.caption.sentence), WORDS, page.room)
        page.heading(axes, "\n".join(name), panel.caption.figures, "\n".join(below) + "\n")
        _draw_panel(axes, panel)
        axes.tick_params(axis="x", labelbottom=axes is column[-1])
    column[-1].set_xlabel("ms")
    return page.settle()


def _legend(panels: Sequence[_Panel]) -> list[Patch]:
    """Return a patch for each phase or kind of work that is visible in the panels, and for waits for the GPU."""
    visible = set().union(*(panel.visible_phases for panel in panels))
    words = {"io": "IO: input", COMMUNICATION: COMMUNICATION, "copy": "copies", "other": "other"}
    patches = [
        Patch(color=_colour(key), label=words.get(key) or f"{_WORDS[key][0]}: {key}")
        for key in (*PHASE_COLOURS, COMMUNICATION, "copy", "other")
        if key in visible
    ]
    if "waiting" in visible:
        patches.append(Patch(label="waiting for the GPU", **_WAITING.patch))
    return patches


def _draw_panel(axes: Axes, panel: _Panel) -> None:
    """Draw the rows of a panel over an axis in ms."""
    axes.set_xlim(panel.begin_s * 1e3, panel.end_s * 1e3)
    axes.set_ylim(panel.rows_height, 0)
    axes.spines["left"].set_visible(False)
    ticks = [(top + row.height / 2, row.name) for row, top in panel.placed if row.name]
    axes.set_yticks([y for y, _ in ticks], [name for _, name in ticks])
    axes.grid(visible=False, axis="y")
    low, high = axes.get_xlim()
    begin = max(low, panel.ms(min(s.begin_s for s in panel.timeline.spans)))
    end = min(high, panel.ms(max(s.end_s for s in panel.timeline.spans)))
    draw = {"density": _draw_density, "names": _draw_named}
    for row, y in panel.placed:
        axes.fill_between([begin, end], y, y + row.height, color=RECORDED, linewidth=0, zorder=0.5)
        draw.get(row.style, _draw_blocks)(axes, panel, row, y)
        if row.name == "CPU":  # a hatched strip at the bottom while it waits for the GPU
            places = [place for span in panel.waiting if panel.inches(*(place := panel.clipped(span))) > 1 / DPI]
            strips = [(begin, end, y + row.height - 0.07, y + row.height) for begin, end in places]
            if strips:
                boxes(axes, strips, ["waiting for the GPU"], zorder=3, **_WAITING.patch)
    _draw_steps(axes, panel)


def _colour_key(span: Span) -> str:
    """Return the key of a span's colour and legend: "copy", "io", its phase, or "other" for an unknown phase."""
    if span.kind in ("copy", "memset"):
        return "copy"
    if span.lane == "io":
        return "io"
    phase = span.name if span.kind == "phase" else span.phase
    return phase if phase in _COLOURS else "other"


def _colour(key: str) -> str:
    return _COLOURS.get(key, OTHER)


def _bars(
    axes: Axes, spans: Sequence[Span], places: Sequence[tuple[float, float]], y: float, height: float, **style: Any
) -> None:
    """Draw spans as rectangles of one style, each with its name and duration as tooltip.

    `places` are their begins and ends in ms; `y` and `height` are in inches from the top of the panel."""
    texts = [f"{span.name}\n{milliseconds(span.duration_s)}" for span in spans]
    boxes(axes, [(begin, end, y, y + height) for begin, end in places], texts, **style)


def _by_colour(spans: Iterable[Span]) -> dict[str, list[Span]]:
    return grouped((_colour_key(span), span) for span in spans)


def _draw_blocks(axes: Axes, panel: _Panel, row: _Lane, y: float) -> None:
    """Draw the phases of the host or the work of an input thread, with a label in each block that has room."""
    for key, spans in _by_colour(row.spans).items():
        places = [panel.clipped(span) for span in spans]
        _bars(axes, spans, places, y, row.height, facecolor=_colour(key), edgecolor=PAPER, linewidth=0.3)
        for span, place in zip(spans, places, strict=True):
            name = "io" if span.lane == "io" else span.name
            _label(axes, panel, place, y + row.height / 2, _WORDS.get(name, (name.upper(), name[:3].upper())), key)


def _label(axes: Axes, panel: _Panel, place: tuple[float, float], y: float, options: Sequence[str], key: str) -> None:
    """Write the first of the texts `options` that fits into a block from `place` (begin and end in ms), if any does."""
    begin, end = panel.free(*place)
    room = panel.inches(begin, end) - 2 * _PAD
    if word := next((word for word in options if word and text_width(word, WORDS) <= room), None):
        colour = Fill(_colour(key)).hatch_colour
        axes.text((begin + end) / 2, y, word, color=colour, ha="center", va="center", zorder=4, gid="block")


def _draw_named(axes: Axes, panel: _Panel, row: _Lane, y: float) -> None:
    """Draw single kernels or layers with as much of their names as fits; concurrent ones in lines of their own."""
    lines = _lines(row.spans)
    n = max(lines.values(), default=0) + 1
    height = row.height / n
    for key, spans in _by_colour(row.spans).items():
        for line in range(n):
            line_spans = [span for span in spans if lines[span] == line]
            places = [panel.clipped(span) for span in line_spans]
            # An edge between narrow blocks would look like a gap.
            widths = [0.4 if panel.inches(*place) > _EDGED else 0.0 for place in places]
            edge = {"edgecolor": PAPER, "linewidth": widths}
            _bars(axes, line_spans, places, y + line * height, height, facecolor=_colour(key), **edge)
        if height * 72 < WORDS:
            continue
        for span in spans:
            place = panel.clipped(span)
            name = drawable(span.name if span.kind == "layer" else short_kernel_name(span.name))
            words = shortened(name, WORDS, panel.inches(*panel.free(*place)) - 2 * _PAD)
            # Layers differ by the end of their names, so write the whole name or nothing.
            if words == name or (span.kind != "layer" and len(words) > _FEWEST):
                _label(axes, panel, place, y + (lines[span] + 0.5) * height, (words,), key)


def _lines(spans: Sequence[Span]) -> dict[Span, int]:
    """Return for each span the first line that is free when it begins. A layer inside another is thus below it."""
    free_s: list[float] = []
    lines = {}
    for span in sorted(spans):
        line = next((i for i, end_s in enumerate(free_s) if end_s <= span.begin_s), len(free_s))
        free_s[line : line + 1] = [span.end_s]
        lines[span] = line
    return lines


def _draw_density(axes: Axes, panel: _Panel, row: _Lane, y: float) -> None:
    """Draw merged spans, stacked by colour. The height in each bin of pixels is the share of its time that spans cover;
    time that several colours cover counts for the first."""
    bins = round(_ROOM * DPI / _BIN_PIXELS)
    edges_ms = np.linspace(panel.begin_s * 1e3, panel.end_s * 1e3, bins + 1)
    edges_s = edges_ms / 1e3 + panel.zero_s
    bottom, before = np.zeros(bins), list[tuple[float, float]]()
    order = list(_COLOURS)
    for key, spans in sorted(_by_colour(row.spans).items(), key=lambda group: order.index(group[0])):
        covered = intervals.union((span.begin_s, span.end_s) for span in spans)
        share = _share_per_bin(intervals.difference(covered, before), edges_s)
        before = intervals.union([*before, *covered])
        top = np.minimum(1.0, bottom + share)
        low, high = (y + row.height - row.height * np.append(ends, ends[-1]) for ends in (bottom, top))
        area = axes.fill_between(edges_ms, low, high, step="post", facecolor=_colour(key), linewidth=0, zorder=2)
        tooltip(area, f"{row.name}: {key}, busy {milliseconds(sum(end - begin for begin, end in covered))}")
        bottom = top


def _share_per_bin(covered: intervals.Intervals, edges_s: Any) -> Any:
    """Return the covered share of each bin, from the borders of the bins."""
    if not covered:
        return np.zeros(len(edges_s) - 1)
    points = np.array(covered).ravel()
    lengths = np.zeros(len(points))
    lengths[1::2] = np.diff(points)[::2]
    cumulative = np.interp(edges_s, points, np.cumsum(lengths))  # the covered time up to each border
    return np.clip(np.diff(cumulative) / np.diff(edges_s), 0, 1)


def _draw_steps(axes: Axes, panel: _Panel) -> None:
    """Draw a line where each step begins, and its number above the visible part."""
    for i, step in enumerate(panel.timeline.steps):
        begin, end = panel.clipped(step)
        if begin >= end or step.name == WINDOW:
            continue
        if begin == panel.ms(step.begin_s):
            axes.axvline(begin, color=INK, linewidth=0.8, linestyle=(0, (3, 2)), zorder=3.5)
        name = str(i if step.step is None else step.step)
        room = panel.inches(begin, end) - 2 * _PAD
        if words := next((w for w in (f"step {name}", name) if text_width(w, SMALL) <= room), None):
            style: Any = {"size": SMALL, "color": QUIET, "ha": "center", "va": "bottom", "clip_on": False}
            axes.text((begin + end) / 2, -0.03, words, **style)


def timeline_section(timelines: Sequence[Timeline], summaries: Sequence[CellSummary] = ()) -> Section | None:
    """Return the page's section on timelines; None if no timeline has a step.

    A note names each timeline that seems to be from another session than the cell's run in `summaries`."""
    shown = [timeline for timeline in timelines if timeline.steps]
    if not shown:
        return None
    bottlenecks = list(map(explain_timeline, shown))
    rows = [(cell, phase) for cell in bottlenecks for phase in cell.phases]
    notes: list[str] = []
    for timeline, bottleneck in zip(shown, bottlenecks, strict=True):
        runs = [
            run
            for run in summaries
            if (run.cell.label, run.cell.device) == (timeline.label, timeline.device)
            and timeline.device_name.startswith(run.environment.device_name if run.environment else "")
        ]
        taken_at = timeline.record.started_at if timeline.record else None
        notes += filter(None, [another_session(taken_at, bottleneck.step_s, run) for run in runs])
    phases = Table(_COLUMNS, rows, "Phases of the timelines")
    block = drawings.figure(lambda: timeline_chart(shown), "Timelines", "timelines", phases, notes)
    return Section("timelines", "Timelines", (block,))


_COLUMNS: tuple[Column[tuple[Bottleneck, PhaseCost]], ...] = (
    Column("timeline", lambda row: row[0].label),
    Column("phase", lambda row: row[1].name),
    Column("host per step", lambda row: row[1].host_s, SECONDS),
    Column("GPU per step", lambda row: row[1].device_s, SECONDS),
)
