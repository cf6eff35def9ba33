"""Matplotlib's figures as blocks of the page, and the swatches that stand for configs in tables."""

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
"""Of a chart that the page's width can hold."""


def figure(
    make: Callable[[], Drawing], title: str, prefix: str, table: Table[Any], notes: Sequence[str] = ()
) -> Figure:
    """A chart with its table; `prefix` begins its ids, which are those of one chart of the page. Where nothing can be
    drawn (SelectionError), a line that says why."""

    def draw() -> Drawn:
        try:
            drawing = make()
        except SelectionError as error:
            return Drawn(f"<p>{html.escape(str(error))}</p>", wide=False)
        label = f"{title}. The table below has every number."
        # What stands at a chart's margin may reach a little beyond: ends of axes, antialiased edges.
        svg = inline.svg(drawing, label=label, prefix=prefix, trim=MARGIN - 0.03)
        return Drawn(svg, wide=bool(drawing.get_figwidth() > _WIDEST_INCHES))

    return Figure(title, draw, table, tuple(notes))


def of_setting(
    part: SettingCells, make: Callable[[], Drawing], title: str, section: str, table: Table[Any], notes: Sequence[str]
) -> Figure | Data:
    """The chart of a section for a setting; of those beyond the first MOST_DRAWN the table alone."""
    if part.place < MOST_DRAWN:
        return figure(make, title, f"{section}-{part.place}", table, notes)
    return Data(table, notes=(f"Charts show the first {MOST_DRAWN} settings; tables have all.", *notes))


@dataclass(frozen=True)
class Swatches:
    """The paints of a page's configs, as charts fill their bars."""

    configs: tuple[str, ...]

    @functools.cached_property
    def hatches(self) -> str:
        """The patterns of hatched configs, as markup that shows nothing."""
        drawing = Drawing(figsize=(1, 1))
        for config in self._hatched:
            drawing.add_artist(Rectangle((0, 0), 1, 1, **fill(config).patch))
        return inline.svg(drawing, label="", prefix="swatch")

    @property
    def _hatched(self) -> list[str]:
        return [config for config in self.configs if fill(config).hatch]

    @functools.cached_property
    def _patterns(self) -> dict[str, str]:
        paints = re.findall(r'<path [^>]*?fill="(url\([^"]*\))"', self.hatches)
        return dict(zip(self._hatched, paints, strict=True))

    def paint(self, config: str) -> str:
        """The value of a fill attribute."""
        return self._patterns.get(config) or inline.variable(fill(config).colour)

    def config(self, name: str, *, strong: bool = False, of: str | None = None) -> Field:
        """A config's entry in a table. `of`: the config, where the name is shortened."""
        return Field(name, swatch=self.paint(of or name), strong=strong)
