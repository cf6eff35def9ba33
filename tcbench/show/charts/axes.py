"""How axes look: a value axis from 0 with its grid and ticks, and words at a point of the data.

Owns the look that all charts share. Knows nothing of configs or results, nor of the page around the axes.
"""

from __future__ import annotations

from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tcbench.show.charts.palette import FAINT, INK, QUIET
from tcbench.show.charts.text import DPI, LABEL, WORDS, font
from tcbench.show.format import prefix_of


def style(axes: Axes, value_axis: Literal["x", "y"], top: float) -> None:
    """A value axis from 0 with a light grid behind the bars, and no frame but the base line."""
    for name, spine in axes.spines.items():
        spine.set_visible(name == ("bottom" if value_axis == "y" else "left"))
        spine.set_color(QUIET)
        spine.set_linewidth(0.8)
    axis = axes.yaxis if value_axis == "y" else axes.xaxis
    (axes.set_ylim if value_axis == "y" else axes.set_xlim)(0, top)
    axis.set_major_locator(MaxNLocator(6 if value_axis == "y" else 3, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(_ticks(top))
    axes.grid(axis=value_axis, color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis=value_axis, length=0, pad=4, labelcolor=QUIET)
    for label in axis.get_ticklabels():
        label.set_fontproperties(font(LABEL if value_axis == "y" else WORDS))


def _ticks(top: float) -> FuncFormatter:
    """Numbers of an axis that ends at `top`, all with one prefix."""
    unit, prefix = prefix_of(top / 10)
    return FuncFormatter(lambda value, _: f"{value / unit:.6g}{prefix if value else ''}")


def size_in_inches(axes: Axes) -> tuple[float, float]:
    """Width and height of an axes, inches."""
    box = axes.get_window_extent()
    return box.width / DPI, box.height / DPI


def annotate(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], size: float, **look: Any
) -> None:
    """A text at a point of the data, moved by `offset` points."""
    axes.annotate(
        text,
        at,
        xytext=offset,
        textcoords="offset points",
        fontproperties=font(size),
        color=look.pop("colour", INK),
        parse_math=False,
        annotation_clip=False,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},  # the grid does not run through words
        **{"ha": "center", "va": "center", "zorder": 4, **look},
    )
