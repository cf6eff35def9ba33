"""The page of a chart: its title and legend above the panels, its small print below, and room for all of it.

matplotlib's constrained layout makes room for labels, and the page grows until each panel is as high as was asked for.
No pyplot: a figure here belongs to nobody else. Knows nothing of results or of what stands in a panel.
"""

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
"""Inches; a page may be wider."""

GROUND = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.4}
"""Behind words, so that the grid does not run through them."""

_GAP, _BETWEEN = 0.07, 0.17
_SPACING = 1.25  # of lines


class ChartPage:
    """A figure that is put together, then settled: positions in inches or pixels hold from then on."""

    def __init__(self, title: str, subtitle: str, small_print: Iterable[str], width: float = WIDTH) -> None:
        self.figure = Figure(figsize=(width, 5))
        FigureCanvasAgg(self.figure)
        self.room = width - 2 * MARGIN
        """Inches between the margins."""
        self._above: list[Text | Legend] = [
            self._text(wrapped(title, TITLE, self.room, bold=True), fontsize=TITLE, weight="bold"),
            self._text(wrapped(drawable(subtitle), SUBTITLE, self.room), fontsize=SUBTITLE, color=QUIET),
        ]
        self._below = [
            self._text(wrapped_facts(note, SMALL, self.room), fontsize=SMALL, color=QUIET) for note in small_print
        ]
        self._headings: list[Text] = []

    def _text(self, lines: Sequence[str], **properties: Any) -> Text:
        return self.figure.text(0, 0, "\n".join(lines), va="top", linespacing=_SPACING, **properties)

    def panels(self, heights: Sequence[float], columns: int = 1) -> Any:
        """Axes in rows of these heights (inches), an array shaped (rows, columns)."""
        self._heights = heights
        self._grid = self.figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
        return self._grid

    def heading(self, axes: Axes, name: str, beside: str = "", below: str = "") -> None:
        """Above an axes, from the page's margin on: its name in bold, words at the right end, and quiet lines below."""
        under = "\n" * (below.count("\n") + 1) if below else ""
        self._headings.append(axes.set_title(name + under, loc="center", ha="left", weight="bold"))
        if beside:
            # At the first line of a name of several.
            axes.set_title(beside + "\n" * name.count("\n") + under, loc="right", weight="bold")
        if below:
            self._headings.append(axes.set_title(below, loc="left", fontsize="medium", color=QUIET))

    def named(self, axes: Axes, name: str, below: str = "") -> None:
        """Above an axes its name, in as many lines as it takes."""
        self.heading(axes, "\n".join(wrapped(name, LABEL, self.room, bold=True)), below=below)

    def legend(self, rows: Sequence[Sequence[Artist]], **options: Any) -> None:
        """Entries by their labels: a line per row, columns aligned, where there is room; else what columns fit."""
        entries = [entry for row in rows for entry in row]
        most = max(map(len, rows))
        grids = [rows, *([entries[i : i + n] for i in range(0, len(entries), n)] for n in range(most, 0, -1))]
        # Matplotlib takes milliseconds for an entry: what is too wide by its words alone is not put together.
        for grid in [*(grid for grid in grids[:-1] if self._words_width(grid) <= self.room), grids[-1]]:
            legend = self._legend(grid, options)
            if legend.get_window_extent().width <= self.room * DPI or grid is grids[-1]:
                break
            legend.remove()
        self._above.append(legend)

    @staticmethod
    def _words_width(rows: Sequence[Sequence[Artist]]) -> float:
        """Inches of the words of a legend, column by column."""
        words = ([str(entry.get_label()) for entry in column if entry] for column in itertools.zip_longest(*rows))
        return sum(max(text_width(label, LEGEND) for label in labels) for labels in words)

    def _legend(self, rows: Sequence[Sequence[Artist]], options: dict[str, Any]) -> Legend:
        columns = max(map(len, rows))
        blank = Line2D([], [], linestyle="none", label="")
        handles = [row[i] if i < len(row) else blank for i in range(columns) for row in rows]
        labels = [str(handle.get_label()) for handle in handles]
        # An entry that adds to the one before it, at the begin of a line that was broken.
        labels[: len(rows)] = [f"… {label}" if label.startswith("+ ") else label for label in labels[: len(rows)]]
        # Words come last: matplotlib leaves out labels that begin with an underscore.
        legend = self.figure.legend(handles, ["…"] * len(handles), loc="upper left", ncols=columns, **options)
        for text, label in zip(legend.get_texts(), labels, strict=True):
            text.set_text(shortened(label, LEGEND, self.room - 0.3))
        return legend

    def settle(self) -> Figure:
        """Lay everything out, with panels as high as asked and as wide as their labels leave; returns the figure."""
        above = sum(_height(artist) + _GAP for artist in self._above) + MARGIN + _GAP
        below = sum(_height(artist) for artist in self._below) + MARGIN
        width, height = self.figure.get_figwidth(), above + below + sum(self._heights) + 8 * len(self._heights)
        for _ in range(2):  # what labels take above and below panels is known after the first
            self.figure.set_size_inches(width, height)
            left, foot = (MARGIN - _BETWEEN / 2) / width, below / height
            room = (left, foot, 1 - 2 * left, 1 - foot - above / height)
            ConstrainedLayoutEngine(w_pad=_BETWEEN / 2, h_pad=_BETWEEN / 2, rect=room).execute(self.figure)
            height += sum(self._heights) - sum(axes.bbox.height for axes in self._grid[:, 0]) / DPI
            height = round(height, 3)
        for axes in self.figure.axes:  # the solver's last digits differ from one process to the next
            axes.set_position(np.round(axes.get_position().bounds, 6).tolist())
        for text in self._headings:
            assert text.axes is not None
            text.set_x((MARGIN * DPI - text.axes.bbox.x0) / text.axes.bbox.width)
        self._stack(self._above, self.figure.get_figheight() - MARGIN, _GAP)
        self._stack(self._below, below, 0)
        return self.figure

    def _stack(self, artists: Sequence[Text | Legend], top: float, gap: float) -> None:
        """Place artists below each other, from `top` inches above the page's foot on."""
        width, height = self.figure.get_size_inches()
        for artist in artists:
            place = MARGIN / width, top / height
            if isinstance(artist, Text):
                artist.set_position(place)
            else:
                artist.set_bbox_to_anchor(place, self.figure.transFigure)
            top -= _height(artist) + gap


def _height(artist: Text | Legend) -> float:
    """Inches."""
    return float(artist.get_window_extent().height) / DPI


def put(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float] = (0, 0),
    coordinates: Any = "data",
    **style: Any,
) -> Text:
    """Words at a point of the data, or of the `coordinates` that are named, moved by `offset` points; the grid does not
    run through them."""
    words = axes.annotate(text, at, offset, coordinates, "offset points", annotation_clip=False)
    words.set(**{"color": INK, "ha": "center", "va": "center", "zorder": 4, "bbox": GROUND} | style)
    return words


def boxes(
    axes: Axes, places: Iterable[tuple[float, float, float, float]], texts: Iterable[str] = (), **style: Any
) -> None:
    """Rectangles (left, right, bottom, top) as one artist, which is fast; with a tooltip for each, or one for all."""
    corners = [[(a, low), (b, low), (b, high), (a, high)] for a, b, low, high in places]
    tooltip(axes.add_collection(PolyCollection(corners, **{"zorder": 2} | style), autolim=False), *texts)


def set_ticks(axis: Axis, values: Sequence[float], write: Callable[[float], str]) -> None:
    """Ticks at these values of an axis, and none between."""
    axis.set_ticks(values, list(map(write, values)))
    axis.set_ticks([], minor=True)


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Axes of bars that lie below each other, one unit high each, by these names."""
    axes.set_ylim(len(labels), 0)
    axes.set_yticks([row + 0.5 for row in range(len(labels))], labels, size=LEGEND, color=INK)
    axes.grid(visible=False, axis="y")
    axes.spines[:].set_visible(False)
    axes.spines["left"].set_visible(True)


def rates(axis: Axis, top: float) -> None:
    """An axis of images/s from 0 to `top`; with SI prefixes where plain digits would be too many."""
    (axis.axes.set_xlim if axis is axis.axes.xaxis else axis.axes.set_ylim)(0, top)
    if not 0.1 <= top < 1e4:
        axis.set_major_formatter(EngFormatter(sep=""))
