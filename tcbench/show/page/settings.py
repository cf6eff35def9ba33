"""Summaries that stand side by side: those of one setting (machine, device, input, ...), and the setting's name.

Knows nothing of what is shown of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tcbench.analysis.summary import CellSummary, Setting
from tcbench.core.groups import grouped
from tcbench.show.charts.provenance import provenance_of
from tcbench.show.format import listed
from tcbench.show.page.page import AnyBlock, Heading

MOST_DRAWN = 24
"""Settings that have charts, and configs and batch sizes in each: bars, panels take milliseconds. Tables have all."""

MOST_LADDERS = 8
"""Ladders that are drawn of a setting; the table has all of them."""

MOST_TRIALS, MOST_RUNS = 5000, 1000
"""Rows: a page of 4 MB, which a browser still sorts at once."""


def left_out(there: Mapping[str, int]) -> list[str]:
    """A line on what a chart does not show of so many configs or the like; none where it shows all."""
    first = [f"the first {MOST_DRAWN} of {n:,} {what}" for what, n in there.items() if n > MOST_DRAWN]
    return [f"The chart shows {listed(first)}; the table has all."] if first else []


@dataclass(frozen=True)
class SettingCells:
    """All cells of one setting, by its place on the page. `name` tells it from others, empty where there is one."""

    setting: Setting
    name: str
    summaries: tuple[CellSummary, ...]
    place: int = 0

    def titled(self, title: str) -> str:
        """A title with the setting's name, where there is one."""
        return f"{title}, {self.name}" if self.name else title

    @functools.cached_property
    def by_batch_size(self) -> dict[int, tuple[CellSummary, ...]]:
        """The cells of each batch size, in the order of the results; sizes ascending."""
        groups = grouped((summary.cell.batch_size, summary) for summary in self.summaries)
        return {batch_size: tuple(groups[batch_size]) for batch_size in sorted(groups)}

    @functools.cached_property
    def configs(self) -> tuple[str, ...]:
        """In the order of the results."""
        return tuple(dict.fromkeys(summary.cell.config for summary in self.summaries))

    @functools.cached_property
    def drawn(self) -> tuple[CellSummary, ...]:
        """The cells that charts show."""
        configs, batch_sizes = {*self.configs[:MOST_DRAWN]}, {*[*self.by_batch_size][:MOST_DRAWN]}
        return tuple(s for s in self.summaries if s.cell.config in configs and s.cell.batch_size in batch_sizes)


@dataclass(frozen=True)
class Settings:
    """A page's settings in order, and the facts that all share."""

    parts: tuple[SettingCells, ...]
    common: tuple[str, ...]

    @staticmethod
    def of(summaries: Sequence[CellSummary]) -> Settings:
        """Summaries of at least one cell, parted."""
        groups = grouped((summary.setting, summary) for summary in summaries)
        provenance = provenance_of(groups)
        parts = (
            SettingCells(setting, provenance.names[setting], tuple(group), place)
            for place, (setting, group) in enumerate(groups.items())
        )
        return Settings(tuple(parts), provenance.common)

    def blocks(self, block: Callable[[SettingCells], AnyBlock | None]) -> tuple[AnyBlock, ...]:
        """A block for each setting that has one, under the setting's name where there are several."""
        made = [(part.name, made) for part in self.parts if (made := block(part)) is not None]
        return tuple(each for name, made in made for each in ([Heading(name), made] if name else [made]))
