"""The legend: one row per dtype, columns that line up rung by rung.

Owns which words stand beside each config's swatch, and where. Knows configs by name only, nothing of their results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tcbench.show.charts.palette import Fill, family, fill
from tcbench.show.charts.sheet import MARGIN, Sheet
from tcbench.show.charts.text import LEGEND, config_name, line_height, text_width, wrapped

_SWATCH, _GAP = 0.17, 0.06


@dataclass(frozen=True)
class _Entry:
    """A swatch and its words at a place relative to the legend's corner, inches."""

    look: Fill
    lines: tuple[str, ...]
    x: float
    y: float


@dataclass(frozen=True)
class Legend:
    """All entries in their places; `cumulative` when some are named by what they add to the one before."""

    entries: tuple[_Entry, ...]
    height: float
    cumulative: bool

    @staticmethod
    def of(rows: Sequence[Sequence[tuple[str, str]]], width: float, look: Callable[[str], Fill] = fill) -> Legend:
        """`rows` hold (config, words); `look` is how the bars of a config are filled. Columns line up where that fits;
        else each row flows over several lines."""
        room = width - 2 * MARGIN
        pad = _SWATCH + _GAP
        aligned_rows = [row for row in rows if len(row) > 1] or rows
        columns = [
            max(text_width(row[i][1], LEGEND) for row in aligned_rows if len(row) > i) + pad + 0.22
            for i in range(max(map(len, aligned_rows)))
        ]
        aligned = sum(columns) <= room
        entries, y = [], 0.0
        for row in rows:
            x = 0.0
            for i, (config, words) in enumerate(row):
                lines = tuple(wrapped(words, LEGEND, room - pad)) or ("",)
                needed = max(text_width(line, LEGEND) for line in lines) + pad
                if not aligned and x and x + needed > room:
                    x, y = 0.0, y + line_height(LEGEND)
                entries.append(_Entry(look(config), lines, x, y))
                x += columns[i] if aligned else needed + 0.22
                y += line_height(LEGEND) * (len(lines) - 1)
            y += line_height(LEGEND) + 0.03
        return Legend(tuple(entries), y, any(words.startswith("+") for row in rows for _, words in row))

    def draw(self, sheet: Sheet, top: float) -> float:
        for entry in self.entries:
            y = top + entry.y
            sheet.swatch(MARGIN + entry.x, y + line_height(LEGEND) / 2 - 0.06, _SWATCH, 0.12, entry.look)
            for line in entry.lines:
                x, middle = MARGIN + entry.x + _SWATCH + _GAP, y + line_height(LEGEND) / 2
                sheet.text(x, middle, line, LEGEND, va="center_baseline", gid="legend")
                y += line_height(LEGEND)
        return top + self.height


def legend_rows(configs: Sequence[str]) -> list[list[tuple[str, str]]]:
    """A row per backend and family; a config that goes on from the one before it is named by what it adds."""
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for config in configs:
        row = rows.setdefault((config.rpartition("/")[0], family(config)), [])
        before = row[-1][0] if row else None
        extends = before is not None and config.startswith(before + "+")
        words = config.removeprefix(before or "")[1:] if extends else config
        row.append((config, ("+ " if extends else "") + config_name(words)))
    return list(rows.values())
