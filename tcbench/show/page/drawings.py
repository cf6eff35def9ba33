"""Figures as blocks of the page, and the colour swatches of configs in tables."""

import functools
import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle

from tcbench.core.errors import SelectionError
from tcbench.show.charts import inline
from tcbench.show.charts.page import MARGIN
from tcbench.show.charts.palette import fill
from tcbench.show.page.page import Data, Drawn, Figure
from tcbench.show.page.settings import MOST_DRAWN, SettingCells
from tcbench.show.tables import Field, Table

_WIDEST_INCHES = 10.5
"""The width of the widest chart that fits into the page."""


def figure(
    make: Callable[[], Drawing], title: str, prefix: str, table: Table[Any], notes: Sequence[str] = ()
) -> Figure:
    """Return a block with the chart that `make` draws, and its table. If `make` raises SelectionError, the message
    replaces the chart. `prefix` makes the ids of the chart's markup unique on the page."""

    def draw() -> Drawn:
        """Return the figure as inline SVG, or a paragraph with the reason if there is nothing to draw."""
        try:
            drawing = make()
        except SelectionError as error:
            return Drawn(f"<p>{html.escape(str(error))}</p>", wide=False)
        label = f"{title}. The table below has every number."
        # Ends of axes and antialiased edges may reach a little into the margin.
        svg = inline.svg(drawing, label=label, prefix=prefix, trim=MARGIN - 0.03)
        return Drawn(svg, wide=bool(drawing.get_figwidth() > _WIDEST_INCHES))

    return Figure(title, draw, table, tuple(notes))


def setting_block(
    part: SettingCells, make: Callable[[], Drawing], title: str, section: str, table: Table[Any], notes: Sequence[str]
) -> Figure | Data:
    """Return a block with a setting's chart, drawn by `make`, and table; after MOST_DRAWN settings the table only."""
    if part.place < MOST_DRAWN:
        return figure(make, title, f"{section}-{part.place}", table, notes)
    return Data(table, notes=(f"Charts show the first {MOST_DRAWN} settings; tables have all.", *notes))


@dataclass(frozen=True)
class Swatches:
    """The fills of a page's configs, the same as in charts."""

    configs: tuple[str, ...]

    @functools.cached_property
    def hatches(self) -> str:
        """The patterns of hatched configs as invisible markup."""
        drawing = Drawing(figsize=(1, 1))
        for config in self._hatched:
            drawing.add_artist(Rectangle((0, 0), 1, 1, **fill(config).patch))
        return inline.svg(drawing, label="", prefix="swatch")

    @property
    def _hatched(self) -> list[str]:
        return [config for config in self.configs if fill(config).hatch]

    @functools.cached_property
    def _patterns(self) -> dict[str, str]:
        """The fill attribute of each hatched config, which refers to its pattern in `hatches`."""
        paints = re.findall(r'<path [^>]*?fill="(url\([^"]*\))"', self.hatches)
        return dict(zip(self._hatched, paints, strict=True))

    def paint(self, config: str) -> str:
        """Return the value of the fill attribute for a config."""
        return self._patterns.get(config) or inline.variable(fill(config).colour)

    def config(self, name: str, *, strong: bool = False, full_name: str | None = None) -> Field:
        """Return a table field with a config's name and swatch. `full_name` is the config if `name` is shortened."""
        return Field(name, swatch=self.paint(full_name or name), strong=strong)
