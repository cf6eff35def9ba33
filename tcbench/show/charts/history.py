"""Cells over commits: a strip per cell with its line and whiskers, all strips on one axis of commits.

A strip has its own range of images/s, but every strip spans the same factor from bottom to top, so that a loss of 5% is
as high in one as in any other. Owns strips, their marks and words, and the axis of commits. Knows nothing of how steps
are judged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tcbench.analysis.compare import Verdict
from tcbench.analysis.history import CellHistory, History, Point, Revision
from tcbench.analysis.summary import CellSummary
from tcbench.core.errors import SelectionError
from tcbench.show.charts.axes import annotate, size_in_inches
from tcbench.show.charts.palette import FAINT, GAIN, INK, LOSS, QUIET, fill
from tcbench.show.charts.provenance import provenance_of
from tcbench.show.charts.sheet import MARGIN, WIDTH, Footer, Header, Sheet
from tcbench.show.charts.text import (
    LABEL,
    LEGEND,
    SMALL,
    WORDS,
    config_name,
    drawable,
    font,
    line_height,
    text_width,
    wrapped,
)
from tcbench.show.charts.wording import ended
from tcbench.show.comparison.wording import difference, several
from tcbench.show.format import change, number
from tcbench.show.verdicts import FORMS

MAX_STRIPS, MAX_REVISIONS = 200, 120
"""More cells are refused; of more commits the newest are drawn, and the small print says so."""

_NAMES = 2.2  # inches for configs
_TICKS = 0.5  # for the numbers of images/s
_NEWEST = 0.75  # for the newest figure
_PITCH = 0.15  # from commit to commit at least
_STRIP, _LOW_STRIP, _MANY = 0.74, 0.52, 24
_PAD = 0.1
_LEAST_SPAN = 1.12
_CUT = 1.5  # whiskers are cut at this factor from the figures

_Box = tuple[float, float, float, float]
"""Left, bottom, right, top: inches from a strip's lower left corner."""

_INKS: dict[Verdict, str] = {"regression": LOSS, "improved": GAIN}
"""Of what is said beside a point."""


def history_chart(history: History, *, title: str = "Throughput over commits") -> Figure:
    """A strip per cell, by setting, then batch size. Raises SelectionError for nothing to draw or too many cells."""
    if not history.cells:
        raise SelectionError("no results to plot; `tcbench run` makes some")
    if len(history.cells) > MAX_STRIPS:
        raise SelectionError(
            f"{len(history.cells)} cells do not fit in one chart (at most {MAX_STRIPS}); choose with --config and --bs"
        )
    revisions = history.revisions[-MAX_REVISIONS:]
    cells = [cell for cell in history.cells if _within(cell, revisions)]
    groups = _groups(cells)
    scale = _Scale.of([_within(cell, revisions) for cell in cells], _STRIP if len(cells) <= _MANY else _LOW_STRIP)
    commits = _Commits.of(revisions)
    width = max(WIDTH, _left() + commits.least_width + _NEWEST + MARGIN)
    room = width - _left() - _NEWEST - MARGIN
    upright = commits.upright(room)

    header = Header.of(drawable(title), _subtitle(history, groups), width)
    footer = Footer.of(_small_print(history, cells, revisions), width)
    # Tall pages show the commits above the strips too.
    both_ends = len(cells) > 12
    label_height = commits.height(upright)
    height = 0.3 + header.height + 0.1 + (label_height + 0.1) * (1 + both_ends)
    height += sum(group.height(scale, width) for group in groups) + 0.12 + footer.height + 0.22

    sheet = Sheet(width, height)
    y = header.draw(sheet, 0.3) + 0.1
    if both_ends:
        commits.draw(sheet, y + label_height, room, upright, above=True)
        y += label_height + 0.1
    for group in groups:
        y += 0.08
        for line in group.title(width):
            sheet.text(MARGIN, y + 0.06, line, LABEL, bold=True)
            y += line_height(LABEL)
        y += group.heading_height(width)
        sheet.text(_left() - 0.05, y + 0.06, "images/s", SMALL, ha="right", va="bottom", colour=QUIET)
        sheet.text(width - MARGIN, y + 0.06, "newest", SMALL, ha="right", va="bottom", colour=QUIET)
        y += 0.12
        for cell in group.cells:
            _draw_strip(sheet, y, cell, _within(cell, revisions), revisions, scale, room)
            y += scale.height
    commits.draw(sheet, y + 0.06, room, upright, above=False)
    footer.draw(sheet, y + label_height + 0.22)
    return sheet.figure


@dataclass(frozen=True)
class _Group:
    """The strips of one setting and batch size."""

    name: str
    cells: tuple[CellHistory, ...]

    def title(self, width: float) -> list[str]:
        return wrapped(self.name, LABEL, width - 2 * MARGIN, bold=True)

    def heading_height(self, width: float) -> float:
        """A line for the columns' headings, where a long name leaves no room beside it; inches."""
        beside = text_width(self.title(width)[-1], LABEL, bold=True) < _NAMES - 0.1
        return 0.0 if beside else line_height(SMALL)

    def height(self, scale: _Scale, width: float) -> float:
        title = len(self.title(width)) * line_height(LABEL) + self.heading_height(width)
        return 0.2 + title + len(self.cells) * scale.height


@dataclass(frozen=True)
class _Scale:
    """What all strips share: their height in inches, and the factor from bottom to top, as a logarithm."""

    height: float
    span: float

    @staticmethod
    def of(cells: Iterable[Sequence[Point]], height: float) -> _Scale:
        spans = [math.log(high / low) for low, high in map(_ends, cells)]
        return _Scale(height, max([*spans, math.log(_LEAST_SPAN)]) * 1.12)

    def limits(self, points: Sequence[Point]) -> tuple[float, float]:
        """Logarithms of images/s at a strip's bottom and top."""
        low, high = _ends(points)
        middle = (math.log(low) + math.log(high)) / 2
        return middle - self.span / 2, middle + self.span / 2


@dataclass(frozen=True)
class _Commits:
    """The axis of commits: short names above dates, or both upright where there are many."""

    revisions: tuple[Revision, ...]

    @staticmethod
    def of(revisions: Sequence[Revision]) -> _Commits:
        return _Commits(tuple(revisions))

    @property
    def least_width(self) -> float:
        return _PITCH * len(self.revisions)

    def upright(self, room: float) -> bool:
        return max(max(_width(r.short), _width(r.date)) for r in self.revisions) + 0.12 > room / len(self.revisions)

    def height(self, upright: bool) -> float:
        if not upright:
            return 2 * line_height(WORDS)
        return max(_width(self._line(revision)) for revision in self.revisions) + 0.04

    def draw(self, sheet: Sheet, y: float, room: float, upright: bool, above: bool) -> None:
        for place, revision in enumerate(self.revisions):
            x = _left() + (place + 0.5) * room / len(self.revisions)
            if upright:
                va = "bottom" if above else "top"
                line = self._line(revision)
                sheet.text(x, y, line, WORDS, ha="center", va=va, rotation=90, colour=QUIET)
                continue
            top = y - 2 * line_height(WORDS) if above else y
            sheet.text(x, top, drawable(revision.short), WORDS, ha="center")
            sheet.text(x, top + line_height(WORDS), drawable(revision.date), WORDS, ha="center", colour=QUIET)

    @staticmethod
    def _line(revision: Revision) -> str:
        return drawable(f"{revision.date} {revision.short}")


def _groups(cells: Sequence[CellHistory]) -> list[_Group]:
    summaries = {id(cell): _as_summary(cell) for cell in cells}
    settings = dict.fromkeys(summary.setting for summary in summaries.values())
    names = provenance_of({s: [x for x in summaries.values() if x.setting == s] for s in settings}).names
    groups = []
    for setting in settings:
        here = [cell for cell in cells if summaries[id(cell)].setting == setting]
        for batch_size in sorted({cell.cell.batch_size for cell in here}):
            name = f"batch size {batch_size}" + (f" · {names[setting]}" if names[setting] else "")
            groups.append(_Group(name, tuple(cell for cell in here if cell.cell.batch_size == batch_size)))
    return groups


def _as_summary(cell: CellHistory) -> CellSummary:
    """As far as a setting and its name need it."""
    return CellSummary(cell.cell, cell.machine, cell.environment, "ok", None, 0, 0)


def _subtitle(history: History, groups: Sequence[_Group]) -> str:
    summaries = [_as_summary(cell) for group in groups for cell in group.cells]
    settings: dict[object, list[CellSummary]] = {}
    for summary in summaries:
        settings.setdefault(summary.setting, []).append(summary)
    common = provenance_of(settings).common  # type: ignore[arg-type]
    commits = len(history.revisions)
    return " · ".join([*common, f"{commits} commit{'s' * (commits != 1)}"])


def _small_print(history: History, cells: Sequence[CellHistory], revisions: Sequence[Revision]) -> list[str]:
    points = [(cell, point) for cell in cells for point in _within(cell, revisions)]
    lines = [
        f"images/s over total time, geometric mean over trials · whisker: its 95% confidence interval over trials · "
        f"{FORMS['regression'].sign} regression: surely slower than the commit before by more than "
        f"{history.rule.threshold * 100:.3g}% · hollow: inconclusive, or nothing to compare with · every strip spans "
        f"the same factor"
    ]
    words = _regressions(points)
    if words:
        lines.append(f"{FORMS['regression'].sign} {words}")
    breaks: dict[tuple[Revision, str], int] = {}
    for _, point in points:
        if point.broken_by:
            says = "; ".join(map(difference, point.broken_by))
            breaks[point.revision, says] = breaks.get((point.revision, says), 0) + 1
    told = [f"{revision.short} ({n} cell{'s' * (n != 1)}): {says}" for (revision, says), n in breaks.items()]
    if told:
        lines.append("new line, not compared with what was before, at " + drawable(several(told, 6)))
    if len(revisions) < len(history.revisions):
        lines.append(f"the newest {len(revisions)} of {len(history.revisions)} commits")
    return lines


def _regressions(points: Sequence[tuple[CellHistory, Point]]) -> str:
    """All of them in words, the first ones by name."""
    told = []
    for cell, point in points:
        if not point.regressed or point.change is None:
            continue
        what = change(point.change.ratio.value) if point.change.ratio else ended(point.status)
        phase = f" in {point.change.culprit.name}" if point.change.culprit else ""
        told.append(f"{cell.cell.label} at {point.revision.short}: {what}{phase}")
    return drawable(several(told, 12))


def _within(cell: CellHistory, revisions: Sequence[Revision]) -> tuple[Point, ...]:
    there = set(revisions)
    return tuple(point for point in cell.points if point.revision in there)


def _ends(points: Sequence[Point]) -> tuple[float, float]:
    """The lowest and highest of what a strip has to show, images/s; whiskers out of all proportion are cut."""
    rates = [point.images_per_s for point in points if point.images_per_s is not None]
    if not rates:
        return 1.0, 1.0
    low, high = min(rates), max(rates)
    intervals = [point.interval for point in points if point.interval is not None]
    lows = [max(interval.low, low / _CUT) for interval in intervals]
    highs = [min(interval.high, high * _CUT) for interval in intervals]
    return min([low, *lows]), max([high, *highs])


def _left() -> float:
    return MARGIN + _NAMES + _TICKS


def _width(text: str) -> float:
    return text_width(drawable(text), WORDS)


def _draw_strip(
    sheet: Sheet,
    y: float,
    cell: CellHistory,
    points: Sequence[Point],
    revisions: Sequence[Revision],
    scale: _Scale,
    room: float,
) -> None:
    names = wrapped(config_name(cell.cell.config), LEGEND, _NAMES - 0.1)[: _lines(scale)]
    top = y + scale.height / 2 - len(names) * line_height(LEGEND) / 2
    for line in names:
        sheet.text(MARGIN, top, line, LEGEND)
        top += line_height(LEGEND)
    axes = sheet.axes(_left(), y + _PAD / 2, room, scale.height - _PAD)
    low, high = scale.limits(points)
    axes.set_xlim(-0.5, len(revisions) - 0.5)
    axes.set_ylim(low, high)
    axes.set_xticks([])
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left",))
        spine.set_color(QUIET)
        spine.set_linewidth(0.8)
    _ticks(axes, low, high, has_figures=any(point.figures for point in points))
    axes.hlines(low, -0.5, len(revisions) - 0.5, color=FAINT, linewidth=0.7, clip_on=False)
    if not points:
        return
    _draw_lines(axes, cell.cell.config, points, revisions, (low, high))
    _Words(axes, room, scale.height - _PAD, len(revisions), (low, high)).write(points, revisions)
    newest = next((point for point in reversed(points) if point.images_per_s is not None), None)
    if newest is not None and newest.images_per_s is not None:
        sheet.text(
            sheet.width - MARGIN, y + scale.height / 2, number(newest.images_per_s), LEGEND, ha="right", va="center"
        )


def _lines(scale: _Scale) -> int:
    """How many lines of a name a strip has room for."""
    return int((scale.height + 0.02) / line_height(LEGEND))


def _ticks(axes: Axes, low: float, high: float, has_figures: bool) -> None:
    """Two to four round numbers of images/s."""
    axes.tick_params(axis="y", length=0, pad=4, labelcolor=QUIET)
    if not has_figures:
        axes.set_yticks([])
        return
    bottom, top = math.exp(low), math.exp(high)
    # A label stands half its height above and below its place.
    edge = line_height(SMALL) / 2 / size_in_inches(axes)[1] * (high - low)
    values: list[float] = []
    for bins in (3, 4, 5, 6):
        found = MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10]).tick_values(bottom, top)
        values = [value for value in found if value > 0 and low + edge <= math.log(value) <= high - edge]
        if len(values) > 1:
            break
    places = [math.log(value) for value in values]
    if any(other - one < 2 * edge for one, other in itertools.pairwise(places)):
        values = values[::2]
    axes.set_yticks([math.log(value) for value in values], [number(value) for value in values])
    for label in axes.get_yticklabels():
        label.set_fontproperties(font(SMALL))
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)


def _draw_lines(
    axes: Axes, config: str, points: Sequence[Point], revisions: Sequence[Revision], limits: tuple[float, float]
) -> None:
    """Lines that end where a new one begins, whiskers, and marks whose form says the verdict."""
    places = {revision: place for place, revision in enumerate(revisions)}
    colour = fill(config).colour
    line: list[tuple[int, float]] = []
    lines = [line]
    for point in points:
        if point.broken_by:
            axes.axvline(places[point.revision] - 0.5, color=QUIET, linewidth=0.9, linestyle=(0, (3, 2)))
            lines.append(line := [])
        if point.images_per_s is not None:
            line.append((places[point.revision], math.log(point.images_per_s)))
        else:
            lines.append(line := [])
    for one in lines:
        if len(one) > 1:
            xs, ys = zip(*one, strict=True)
            # A darker edge, for light colours on white.
            axes.plot(xs, ys, color=QUIET, linewidth=2.4, zorder=2, solid_capstyle="round")
            axes.plot(xs, ys, color=colour, linewidth=1.5, zorder=2.1, solid_capstyle="round")
    for point in points:
        x = places[point.revision]
        if point.images_per_s is None:
            axes.plot([x], [limits[0]], "x", color=LOSS if point.regressed else QUIET, markersize=5, clip_on=False)
            continue
        at = math.log(point.images_per_s)
        if point.interval is not None:
            ends = [max(math.log(point.interval.low), limits[0]) if point.interval.low > 0 else limits[0]]
            ends.append(min(math.log(point.interval.high), limits[1]))
            axes.plot([x, x], ends, color=INK, linewidth=0.9, zorder=3, solid_capstyle="butt")
        verdict = point.change.verdict if point.change else None
        form, size, face = "o", 4.2, "white"
        if verdict == "regression":
            form, size, face = "v", 6.5, LOSS
        elif verdict == "improved":
            form, size, face = "^", 6.5, GAIN
        elif verdict == "pass":
            face = colour
        axes.plot(
            [x],
            [at],
            form,
            markersize=size,
            markerfacecolor=face,
            markeredgecolor=INK,
            markeredgewidth=0.8,
            zorder=4,
            clip_on=False,
        )


@dataclass
class _Words:
    """The words of a strip's marks, each where it covers no other; a mark whose words find no room stands alone, and
    the small print names it."""

    axes: Axes
    width: float
    height: float
    n: int
    limits: tuple[float, float]
    _line: list[tuple[float, float]] = field(default_factory=list)

    def write(self, points: Sequence[Point], revisions: Sequence[Revision]) -> None:
        places = {revision: place for place, revision in enumerate(revisions)}
        taken = [self._mark(places[point.revision], point) for point in points]
        self._line = [at for one, other in itertools.pairwise(points) for at in self._between(places, one, other)]
        urgent = sorted(points, key=lambda point: (not point.regressed, bool(point.broken_by)))
        for point in urgent:
            words, colour = _said(point)
            if words:
                self._place(words, colour, places[point.revision], point, taken)

    def _between(self, places: dict[Revision, int], one: Point, other: Point) -> Iterable[tuple[float, float]]:
        """Places along the line from one point to the next, inches."""
        if one.images_per_s is None or other.images_per_s is None or other.broken_by:
            return
        (x0, y0), (x1, y1) = self._at(places[one.revision], one), self._at(places[other.revision], other)
        n = max(int((x1 - x0) / 0.04), 1)
        yield from ((x0 + (x1 - x0) * i / n, y0 + (y1 - y0) * i / n) for i in range(n + 1))

    def _at(self, place: int, point: Point) -> tuple[float, float]:
        """Inches from the strip's lower left corner."""
        x = (place + 0.5) / self.n * self.width
        low, high = self.limits
        rate = point.images_per_s
        return x, 0.0 if rate is None else (math.log(rate) - low) / (high - low) * self.height

    def _mark(self, place: int, point: Point) -> _Box:
        x, y = self._at(place, point)
        return x - 0.05, y - 0.05, x + 0.05, y + 0.05

    def _place(self, words: str, colour: str, place: int, point: Point, taken: list[_Box]) -> None:
        x, y = self._at(place, point)
        width, height = text_width(words, WORDS), line_height(WORDS) * 0.85
        beside, over = 0.08, 0.07
        corners = [
            (x + beside, y - height / 2),
            (x - beside - width, y - height / 2),
            *((x + shift, y + rise) for rise in (over, -over - height) for shift in (-width / 2, 0.0, -width)),
            *((x + shift, y + rise) for rise in (2 * over, -2 * over - height) for shift in (beside, -beside - width)),
        ]
        free = [
            (left, bottom, left + width, bottom + height)
            for left, bottom in corners
            if left >= 0 and left + width <= self.width and bottom >= 0 and bottom + height <= self.height
        ]
        free = [box for box in free if not any(_cross(box, other) for other in taken)]
        if not free:
            return
        left, bottom, right, top = min(free, key=lambda box: sum(_holds(box, at) for at in self._line))
        taken.append((left - 0.03, bottom - 0.01, right + 0.03, top + 0.01))
        low, high = self.limits
        at = (left / self.width * self.n - 0.5, low + (bottom + height / 2) / self.height * (high - low))
        annotate(self.axes, words, at, (0, 0), WORDS, ha="left", colour=colour, zorder=5)


def _cross(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _holds(box: _Box, at: tuple[float, float]) -> bool:
    return box[0] <= at[0] <= box[2] and box[1] <= at[1] <= box[3]


def _said(point: Point) -> tuple[str, str]:
    """Words at a point, and their ink."""
    if point.images_per_s is None:
        return f"{FORMS['changed status'].sign} {ended(point.status)}", LOSS if point.regressed else QUIET
    if point.change is not None and point.change.verdict in _INKS and point.change.ratio is not None:
        verdict = point.change.verdict
        return f"{FORMS[verdict].signed} {change(point.change.ratio.value)}", _INKS[verdict]
    if point.broken_by:
        facets = dict.fromkeys(difference.facet for difference in point.broken_by)
        return drawable("new " + ", ".join(facets)), QUIET
    return "", INK
