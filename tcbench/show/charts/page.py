"""The page of a chart: title and legend above the panels, small print below, with room for all of it.

Matplotlib's constrained layout makes room for labels, and the page grows until each panel has its requested height.
It does without pyplot, which would keep figures alive."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter

from tcbench.show.charts.inline import tooltip
from tcbench.show.charts.palette import INK, PAPER, QUIET
from tcbench.show.charts.text import (
    DPI,
    LABEL,
    LEGEND,
    SMALL,
    SUBTITLE,
    TITLE,
    drawable,
    shortened,
    text_width,
    wrapped,
    wrapped_facts,
)

WIDTH, MARGIN = 10.0, 0.35
"""The width of a page, which may be wider if needed, and its margin, in inches."""

GROUND = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.4}
"""The background of text that is written over a grid."""

_GAP, _BETWEEN = 0.07, 0.17
_LINE_SPACING = 1.25


class ChartPage:
    """A figure to which panels and legends are added before `settle` lays it out. Only then are positions final."""

    def __init__(self, title: str, subtitle: str, small_print: Iterable[str], width: float = WIDTH) -> None:
        self.figure = Figure(figsize=(width, 5))
        FigureCanvasAgg(self.figure)
        self.room = width - 2 * MARGIN
        """The width between the margins, in inches."""
        self._above: list[Text | Legend] = [
            self._text(wrapped(title, TITLE, self.room, bold=True), fontsize=TITLE, weight="bold"),
            self._text(wrapped(drawable(subtitle), SUBTITLE, self.room), fontsize=SUBTITLE, color=QUIET),
        ]
        self._below = [
            self._text(wrapped_facts(note, SMALL, self.room), fontsize=SMALL, color=QUIET) for note in small_print
        ]
        self._headings: list[Text] = []

    def _text(self, lines: Sequence[str], **properties: Any) -> Text:
        return self.figure.text(0, 0, "\n".join(lines), va="top", linespacing=_LINE_SPACING, **properties)

    def panels(self, heights: Sequence[float], columns: int = 1) -> Any:
        """Add axes in rows of these heights in inches, and return them in an array shaped (rows, columns)."""
        self._heights = heights
        self._grid = self.figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
        return self._grid

    def heading(self, axes: Axes, name: str, right: str = "", below: str = "") -> None:
        """Write a heading above axes: a bold name from the left margin, a text at the right end, grey lines below."""
        under = "\n" * (below.count("\n") + 1) if below else ""
        self._headings.append(axes.set_title(name + under, loc="center", ha="left", weight="bold"))
        if right:
            # The added line breaks raise it to the first line of the name.
            axes.set_title(right + "\n" * name.count("\n") + under, loc="right", weight="bold")
        if below:
            self._headings.append(axes.set_title(below, loc="left", fontsize="medium", color=QUIET))

    def title_panel(self, axes: Axes, name: str, below: str = "") -> None:
        """Write the name of a panel above its axes, in as many lines as needed."""
        self.heading(axes, "\n".join(wrapped(name, LABEL, self.room, bold=True)), below=below)

    def legend(self, rows: Sequence[Sequence[Artist]], **options: Any) -> None:
        """Add a legend with aligned rows, or in as many columns as fit if the rows are too wide. `options` are those of
        matplotlib's `Figure.legend`."""
        handles = [handle for row in rows for handle in row]
        most = max(map(len, rows))
        grids = [rows, *([handles[i : i + n] for i in range(0, len(handles), n)] for n in range(most, 0, -1))]
        # Building a legend takes milliseconds per entry, so skip grids whose texts alone are too wide.
        for grid in [*(grid for grid in grids[:-1] if self._words_width(grid) <= self.room), grids[-1]]:
            legend = self._legend(grid, options)
            if legend.get_window_extent().width <= self.room * DPI or grid is grids[-1]:
                break
            legend.remove()
        self._above.append(legend)

    @staticmethod
    def _words_width(rows: Sequence[Sequence[Artist]]) -> float:
        """Return the width of the texts of a legend in inches, as the sum over its columns."""
        words = ([str(handle.get_label()) for handle in column if handle] for column in itertools.zip_longest(*rows))
        return sum(max(text_width(label, LEGEND) for label in labels) for labels in words)

    def _legend(self, rows: Sequence[Sequence[Artist]], options: dict[str, Any]) -> Legend:
        """Draw a legend with one line per row; a row that continues another begins with "…"."""
        columns = max(map(len, rows))
        blank = Line2D([], [], linestyle="none", label="")
        handles = [row[i] if i < len(row) else blank for i in range(columns) for row in rows]
        labels = [str(handle.get_label()) for handle in handles]
        # An entry that adds to the previous one, at the beginning of a row.
        labels[: len(rows)] = [f"… {label}" if label.startswith("+ ") else label for label in labels[: len(rows)]]
        # Set the texts afterwards, because matplotlib drops labels that begin with an underscore.
        legend = self.figure.legend(handles, ["…"] * len(handles), loc="upper left", ncols=columns, **options)
        for text, label in zip(legend.get_texts(), labels, strict=True):
            text.set_text(shortened(label, LEGEND, self.room - 0.3))
        return legend

    def settle(self) -> Figure:
        """Lay out the page, with panels of the requested heights, and return the figure."""
        above = sum(_height(artist) + _GAP for artist in self._above) + MARGIN + _GAP
        below = sum(_height(artist) for artist in self._below) + MARGIN
        width, height = self.figure.get_figwidth(), above + below + sum(self._heights) + 8 * len(self._heights)
        for _ in range(2):  # the first pass has room to spare, and measures the labels between panels
            self.figure.set_size_inches(width, height)
            left, foot = (MARGIN - _BETWEEN / 2) / width, below / height
            room = (left, foot, 1 - 2 * left, 1 - foot - above / height)
            ConstrainedLayoutEngine(w_pad=_BETWEEN / 2, h_pad=_BETWEEN / 2, rect=room).execute(self.figure)
            height += sum(self._heights) - sum(axes.bbox.height for axes in self._grid[:, 0]) / DPI
            height = round(height, 3)
        for axes in self.figure.axes:  # the last digits differ between processes
            axes.set_position(np.round(axes.get_position().bounds, 6).tolist())
        for text in self._headings:
            assert text.axes is not None
            text.set_x((MARGIN * DPI - text.axes.bbox.x0) / text.axes.bbox.width)
        self._stack(self._above, self.figure.get_figheight() - MARGIN, _GAP)
        self._stack(self._below, below, 0)
        return self.figure

    def _stack(self, artists: Sequence[Text | Legend], top: float, gap: float) -> None:
        """Place artists below each other, `gap` inches apart, beginning `top` inches above the bottom of the page."""
        width, height = self.figure.get_size_inches()
        for artist in artists:
            place = MARGIN / width, top / height
            if isinstance(artist, Text):
                artist.set_position(place)
            else:
                artist.set_bbox_to_anchor(place, self.figure.transFigure)
            top -= _height(artist) + gap


def _height(artist: Text | Legend) -> float:
    """Return the height of an artist in inches."""
    return float(artist.get_window_extent().height) / DPI


def put(
    axes: Axes,
    text: str,
    point: tuple[float, float],
    offset: tuple[float, float] = (0, 0),
    coordinates: Any = "data",
    **style: Any,
) -> Text:
    """Write a text at a point of the data, moved by `offset` points, with a background that hides the grid.

    `coordinates` names another coordinate system for the point, as in matplotlib's `annotate`."""
    words = axes.annotate(text, point, offset, coordinates, "offset points", annotation_clip=False)
    words.set(**{"color": INK, "ha": "center", "va": "center", "zorder": 4, "bbox": GROUND} | style)
    return words


def boxes(
    axes: Axes, rectangles: Iterable[tuple[float, float, float, float]], texts: Iterable[str] = (), **style: Any
) -> None:
    """Draw rectangles (left, right, bottom, top) as one artist, which is fast. `texts` are the tooltips: one for each
    rectangle, or one for all."""
    corners = [[(a, low), (b, low), (b, high), (a, high)] for a, b, low, high in rectangles]
    tooltip(axes.add_collection(PolyCollection(corners, **{"zorder": 2} | style), autolim=False), *texts)


def set_ticks(axis: Axis, values: Sequence[float], write: Callable[[float], str]) -> None:
    """Set ticks at these values of an axis, and no minor ticks."""
    axis.set_ticks(values, list(map(write, values)))
    axis.set_ticks([], minor=True)


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Prepare axes for horizontal bars below each other, each one unit high, with these names."""
    axes.set_ylim(len(labels), 0)
    axes.set_yticks([row + 0.5 for row in range(len(labels))], labels, size=LEGEND, color=INK)
    axes.grid(visible=False, axis="y")
    axes.spines[:].set_visible(False)
    axes.spines["left"].set_visible(True)


def set_rate_axis(axis: Axis, top: float) -> None:
    """Set the limits of an axis of images/s to 0 and `top`, with SI prefixes for very large or small numbers."""
    (axis.axes.set_xlim if axis is axis.axes.xaxis else axis.axes.set_ylim)(0, top)
    if not 0.1 <= top < 1e4:
        axis.set_major_formatter(EngFormatter(sep=""))
