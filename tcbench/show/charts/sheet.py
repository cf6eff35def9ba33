"""The page: a figure laid out from the top in inches, with its title above and its small print below.

Owns the page's width, its margin, and the change from inches to the figure's own fractions. No pyplot: a figure here
belongs to nobody else. Knows nothing of results or of what stands between title and small print.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from tcbench.show.charts.palette import INK, QUIET, Fill
from tcbench.show.charts.text import DPI, SMALL, SUBTITLE, TITLE, drawable, font, line_height, wrapped, wrapped_facts

WIDTH = 10.0

MARGIN = 0.35


@dataclass
class Sheet:
    """A figure laid out from the top in inches. Blocks are asked for their height first, then drawn."""

    width: float
    height: float
    figure: Figure = field(init=False)

    def __post_init__(self) -> None:
        self.figure = Figure(figsize=(self.width, self.height), dpi=DPI, facecolor="white")
        FigureCanvasAgg(self.figure)

    def text(self, x: float, y: float, text: str, size: float, **look: Any) -> None:
        """A text at x from the left and y from the top; `look` may hold bold, colour, ha, va, rotation, gid."""
        self.figure.text(
            x / self.width,
            1 - y / self.height,
            text,
            fontproperties=font(size, look.pop("bold", False)),
            color=look.pop("colour", INK),
            parse_math=False,
            **{"ha": "left", "va": "top", **look},
        )

    def axes(self, x: float, y: float, width: float, height: float) -> Axes:
        box = (x / self.width, 1 - (y + height) / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(box)

    def swatch(self, x: float, y: float, width: float, height: float, look: Fill) -> None:
        self.figure.add_artist(
            Rectangle(
                (x / self.width, 1 - (y + height) / self.height),
                width / self.width,
                height / self.height,
                transform=self.figure.transFigure,
                **look.patch,
            )
        )

    def better(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """The arrow that says which way is better."""
        (x0, y0), (x1, y1) = start, end
        self.figure.add_artist(
            FancyArrowPatch(
                (x0 / self.width, 1 - y0 / self.height),
                (x1 / self.width, 1 - y1 / self.height),
                transform=self.figure.transFigure,
                arrowstyle="-|>",
                mutation_scale=11,
                shrinkA=0,
                shrinkB=0,
                linewidth=1.4,
                color=QUIET,
            )
        )

    def lines(self, y: float, lines: Sequence[str], size: float, **look: Any) -> float:
        """Lines one below the other from the left margin; returns where the next may begin."""
        for line in lines:
            self.text(MARGIN, y, line, size, **look)
            y += line_height(size)
        return y


@dataclass(frozen=True)
class Header:
    """Title and subtitle, broken into lines."""

    title: list[str]
    subtitle: list[str]

    @staticmethod
    def of(title: str, subtitle: str, width: float) -> Header:
        room = width - 2 * MARGIN
        return Header(wrapped(title, TITLE, room, bold=True), wrapped(drawable(subtitle), SUBTITLE, room))

    @property
    def height(self) -> float:
        return len(self.title) * line_height(TITLE) + len(self.subtitle) * line_height(SUBTITLE)

    def draw(self, sheet: Sheet, y: float) -> float:
        y = sheet.lines(y, self.title, TITLE, bold=True)
        return sheet.lines(y, self.subtitle, SUBTITLE, colour=QUIET)


@dataclass(frozen=True)
class Footer:
    """The small print, broken into lines."""

    lines: list[str]

    @staticmethod
    def of(texts: Iterable[str], width: float) -> Footer:
        return Footer([line for text in texts for line in wrapped_facts(text, SMALL, width - 2 * MARGIN)])

    @property
    def height(self) -> float:
        return len(self.lines) * line_height(SMALL)

    def draw(self, sheet: Sheet, y: float) -> None:
        sheet.lines(y, self.lines, SMALL, colour=QUIET)
