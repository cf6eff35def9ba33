"""The settings of a page (machine, device, input, ...), with their names and cells."""

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
"""The number of settings with charts, and of configs and batch sizes in each, as drawing is slow. Tables show all."""

MOST_LADDERS = 8
"""The number of ladders drawn for a setting. The table shows all."""

MOST_TRIALS, MOST_RUNS = 5000, 1000
"""The number of rows in tables of trials and runs. This makes a page of 4 MB, which a browser still sorts quickly."""


def left_out(counts: Mapping[str, int]) -> list[str]:
    """Return a line on what a chart leaves out; an empty list if it shows everything. `counts` are the numbers of all
    configs, batch sizes and so on, by the plural noun."""
    first = [f"the first {MOST_DRAWN} of {n:,} {noun}" for noun, n in counts.items() if n > MOST_DRAWN]
    return [f"The chart shows {listed(first)}; the table has all."] if first else []


@dataclass(frozen=True)
class SettingCells:
    """All cells of a setting.

    `name` distinguishes the setting from others on the page; it is empty if there is only one. `place` is its index."""

    setting: Setting
    name: str
    summaries: tuple[CellSummary, ...]
    place: int = 0

    def titled(self, title: str) -> str:
        """Return a title with the setting's name, if it has one."""
        return f"{title}, {self.name}" if self.name else title

    @functools.cached_property
    def by_batch_size(self) -> dict[int, tuple[CellSummary, ...]]:
        """The cells by batch size, ascending. Cells of one batch size are in the order of the results."""
        groups = grouped((summary.cell.batch_size, summary) for summary in self.summaries)
        return {batch_size: tuple(groups[batch_size]) for batch_size in sorted(groups)}

    @functools.cached_property
    def configs(self) -> tuple[str, ...]:
        """The configs in the order of the results."""
        return tuple(dict.fromkeys(summary.cell.config for summary in self.summaries))

    @functools.cached_property
    def drawn(self) -> tuple[CellSummary, ...]:
        """The cells that charts show: those of the first MOST_DRAWN configs and batch sizes."""
        configs, batch_sizes = {*self.configs[:MOST_DRAWN]}, {*[*self.by_batch_size][:MOST_DRAWN]}
        return tuple(s for s in self.summaries if s.cell.config in configs and s.cell.batch_size in batch_sizes)


@dataclass(frozen=True)
class Settings:
    """The settings of a page in order, and the facts that all of them share."""

    parts: tuple[SettingCells, ...]
    common: tuple[str, ...]

    @staticmethod
    def from_summaries(summaries: Sequence[CellSummary]) -> Settings:
        """Group the summaries of one or more cells by setting."""
        groups = grouped((summary.setting, summary) for summary in summaries)
        provenance = provenance_of(groups)
        parts = (
            SettingCells(setting, provenance.names[setting], tuple(group), place)
            for place, (setting, group) in enumerate(groups.items())
        )
        return Settings(tuple(parts), provenance.common)

    def blocks(self, block: Callable[[SettingCells], AnyBlock | None]) -> tuple[AnyBlock, ...]:
        """Make a block for each setting, with the setting's name as heading if there are several. Settings for which
        `block` returns None are left out."""
        blocks: list[AnyBlock] = []
        for part in self.parts:
            if (setting_block := block(part)) is not None:
                blocks += [Heading(part.name), setting_block] if part.name else [setting_block]
        return tuple(blocks)
