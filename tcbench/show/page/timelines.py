"""Timelines under each other on one time scale: the input's threads, the host's phases, the GPU and its gaps.

What is too fine to be drawn by itself is merged: a row is then as high as the share of each bin that is covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tcbench.analysis import intervals
from tcbench.analysis.bottleneck import Bottleneck, PhaseCost, summarise, waits
from tcbench.core.timeline import Span, Timeline
from tcbench.show.charts.palette import PHASE_COLOURS
from tcbench.show.charts.timeline import DEFAULT_STEPS
from tcbench.show.explain import lines_of
from tcbench.show.format import milliseconds, number
from tcbench.show.page.colours import phase_look
from tcbench.show.page.page import Area, Block, Field, Key, Lane, Section, Strip, Table, Tick, Timelines
from tcbench.show.page.scale import Scale
from tcbench.show.page.wording import columns, figure, one_line

MOST = 8
"""Timelines on one page."""

_SINGLE = 150
"""At most so many blocks of a row are drawn one by one."""
_BINS = 500
_HEIGHT = 100
_LEAST_WORD = 4.0
"""Per cent of the width that a block needs for its word."""
_LEAST_WAIT = 0.1

_WORDS = {"io": "IO", "forward": "FWD", "backward": "BWD", "update": "UPD", "replay": "REPLAY"}


def section(found: Sequence[Timeline]) -> Section | None:
    """The first MOST timelines; None without one that has a step."""
    shown = [timeline for timeline in found if timeline.steps][:MOST]
    if not shown:
        return None
    windows = [_Window.of(timeline) for timeline in shown]
    scale = Scale(0.0, max(window.length_s for window in windows) * 1e3)
    bottlenecks = [summarise(timeline) for timeline in shown]
    strips = tuple(
        _strip(timeline, bottleneck, window, scale)
        for timeline, bottleneck, window in zip(shown, bottlenecks, windows, strict=True)
    )
    lanes = [lane for strip in strips for lane in strip.lanes]
    looks = {block.look for lane in lanes for block in lane.blocks} | {a.look for lane in lanes for a in lane.areas}
    keys = [Key(name, phase_look(name)) for name in PHASE_COLOURS if phase_look(name) in looks]
    keys += [Key(name, f"p-{css}") for name, css in (("copies", "copy"), ("other", "other")) if f"p-{css}" in looks]
    if any(lane.waiting for lane in lanes):
        keys.append(Key("the host waits for the GPU", "waiting", "h-waiting"))
    notes = ["A profiler makes steps slower than they are; images/s are those of all recorded steps."]
    if any(lane.areas for lane in lanes):
        notes.append("Where work is too fine to draw, a row is as high as the share of the time that is covered.")
    if len(found) > MOST:
        notes.append(f"{len(found) - MOST} more timelines are not shown; name those to show.")
    block = Timelines("Timelines", strips, _table(bottlenecks), tuple(keys), tuple(notes))
    return Section("timelines", "Timelines", (block,))


@dataclass(frozen=True)
class _Window:
    """The part of a timeline that is shown: a few whole steps. The first that was recorded is left out where there are
    enough others, since it starts with an empty GPU."""

    begin_s: float
    end_s: float

    @staticmethod
    def of(timeline: Timeline) -> _Window:
        steps = timeline.steps
        shown = min(DEFAULT_STEPS, len(steps))
        first = min(1, len(steps) - shown)
        return _Window(steps[first].begin_s, steps[first + shown - 1].end_s)

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    def visible(self, spans: Iterable[Span]) -> list[Span]:
        return [span for span in spans if span.end_s > self.begin_s and span.begin_s < self.end_s]


@dataclass(frozen=True)
class _Sheet:
    """Places of a window on the scale."""

    window: _Window
    scale: Scale

    def places(self, span: Span) -> tuple[float, float]:
        """Begin and width of what is visible of a span, per cent."""
        return self.between(span.begin_s, span.end_s)

    def between(self, begin_s: float, end_s: float) -> tuple[float, float]:
        begin = self.scale.place((max(begin_s, self.window.begin_s) - self.window.begin_s) * 1e3)
        end = self.scale.place((min(end_s, self.window.end_s) - self.window.begin_s) * 1e3)
        return begin, round(max(end - begin, 0.0), 3)


def _strip(timeline: Timeline, found: Bottleneck, window: _Window, scale: Scale) -> Strip:
    sheet = _Sheet(window, scale)
    name = one_line(timeline.label)
    busy = f" · GPU busy {found.device.busy_share:.0%}" if found.device else ""
    steps = []
    for place, step in enumerate(timeline.steps):
        if window.begin_s <= step.begin_s < window.end_s:
            steps.append(Tick(sheet.places(step)[0], f"step {place if step.step is None else step.step}"))
    return Strip(
        heading=name,
        aside=f"{one_line(timeline.device_name)} · {number(found.images_per_s)} images/s{busy} · ms",
        says=one_line(found.sentence),
        title=f"Timeline of {name}",
        desc=one_line(f"{len(steps)} steps. {found.sentence}. The table has the times of each phase."),
        lanes=tuple(_lanes(timeline, sheet)),
        steps=tuple(steps),
        ticks=scale.ticks(6),
    )


def _lanes(timeline: Timeline, sheet: _Sheet) -> Iterable[Lane]:
    window = sheet.window
    threads = sorted({span.row for span in timeline.of("io")})
    spans = window.visible(timeline.of("io"))
    if threads:
        few = len(threads) == 1 and len(spans) <= _SINGLE
        yield Lane("IO", *_drawn(spans, sheet, few), tip=f"input, {len(threads)} thread{'s' * (len(threads) > 1)}")
    phases = window.visible(timeline.of("host", "phase"))
    waiting = [
        Block(*place, "waiting", hatch="h-waiting")
        for span in window.visible(s for s in timeline.of("host", "api") if waits(s.name))
        if (place := sheet.places(span))[1] > _LEAST_WAIT
    ]
    yield Lane("CPU", *_drawn(phases, sheet, len(phases) <= _SINGLE), waiting=tuple(waiting), tip="phases of the host")
    if timeline.of("gpu"):
        spans = window.visible(timeline.of("gpu"))
        yield Lane("GPU", *_drawn(spans, sheet, len(spans) <= _SINGLE), tip="work of the GPU by the phase it is of")


def _drawn(spans: Sequence[Span], sheet: _Sheet, singly: bool) -> tuple[tuple[Block, ...], tuple[Area, ...]]:
    return (tuple(_block(span, sheet) for span in spans), ()) if singly else ((), tuple(_areas(spans, sheet)))


def _block(span: Span, sheet: _Sheet) -> Block:
    x, width = sheet.places(span)
    key = _key(span)
    word = _WORDS.get(key, "") if span.lane != "gpu" and width >= _LEAST_WORD else ""
    step = "" if span.step is None else f", step {span.step}"
    return Block(x, width, phase_look(key) if key != "copy" else "p-copy", (_tip(span) + step,), word)


def _tip(span: Span) -> str:
    return one_line(f"{span.name}: {milliseconds(span.duration_s)}")


def _key(span: Span) -> str:
    """What colours a span: its phase, or what else it is."""
    if span.kind in ("copy", "memset"):
        return "copy"
    if span.lane == "io":
        return "io"
    return (span.name if span.kind == "phase" else span.phase) or "other"


def _areas(spans: Sequence[Span], sheet: _Sheet) -> Iterable[Area]:
    """What is covered, bin by bin, colours on top of each other."""
    bin_s = sheet.scale.high / 1e3 / _BINS
    begin_s = sheet.window.begin_s
    n = max(1, round(sheet.window.length_s / bin_s))
    edges_s = [begin_s + place * bin_s for place in range(n + 1)]
    keys = list(dict.fromkeys([*PHASE_COLOURS, *map(_key, spans)]))
    level, before = [0.0] * n, list[tuple[float, float]]()
    for key in keys:
        covered = intervals.union((span.begin_s, span.end_s) for span in spans if _key(span) == key)
        if not covered:
            continue
        shares = _shares(intervals.difference(covered, before), edges_s)
        before = intervals.union([*before, *covered])
        top = [min(1.0, below + share) for below, share in zip(level, shares, strict=True)]
        yield Area(_outline(level, top), "p-copy" if key == "copy" else phase_look(key))
        level = top


def _shares(covered: Sequence[tuple[float, float]], edges_s: Sequence[float]) -> list[float]:
    """Which share of each bin is covered."""
    shares = [0.0] * (len(edges_s) - 1)
    bin_s = edges_s[1] - edges_s[0]
    for begin_s, end_s in covered:
        first = max(0, int((begin_s - edges_s[0]) / bin_s))
        last = min(len(shares) - 1, int((end_s - edges_s[0]) / bin_s))
        for place in range(first, last + 1):
            low, high = max(begin_s, edges_s[place]), min(end_s, edges_s[place + 1])
            shares[place] += max(0.0, high - low) / bin_s
    return shares


def _outline(low: Sequence[float], high: Sequence[float]) -> str:
    """The area between two stairs of bins, as a path in units of 2 per bin and 100 from top to foot; runs of bins
    without area are left out."""
    width = 1000 // _BINS
    parts = []
    place = 0
    while place < len(low):
        if high[place] - low[place] < 0.005:
            place += 1
            continue
        end = place
        while end < len(low) and high[end] - low[end] >= 0.005:
            end += 1
        run = range(place, end)
        upper = "".join(f"V{_y(high[i])}H{(i + 1) * width}" for i in run)
        lower = "".join(f"V{_y(low[i])}H{i * width}" for i in reversed(run))
        parts.append(f"M{place * width},{_y(low[place])}{upper}{lower}Z")
        place = end
    return "".join(parts)


def _y(share: float) -> int:
    return round(_HEIGHT * (1 - share))


def _table(found: Sequence[Bottleneck]) -> Table:
    names = ("timeline", "phase", "#host per step", "#GPU per step")
    rows = [_fields(one, phase) for one in found for phase in one.phases]
    return Table("Phases of the timelines", columns(*names), tuple(rows))


def _fields(found: Bottleneck, phase: PhaseCost) -> tuple[Field, ...]:
    device = figure(phase.device_s, None if phase.device_s is None else milliseconds(phase.device_s))
    return (
        Field(one_line(found.label)),
        Field(one_line(phase.name)),
        figure(phase.host_s, milliseconds(phase.host_s)),
        device,
    )


def says(timeline: Timeline) -> tuple[str, ...]:
    """A timeline in lines, as `tcbench explain` tells it."""
    return tuple(one_line(line) for line in lines_of(summarise(timeline)))
