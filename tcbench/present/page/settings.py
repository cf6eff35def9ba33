"""Summaries that stand side by side: those of one setting (machine, device, input, ...), and the setting's name.

Knows nothing of what is shown of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tcbench.analysis.summary import CellSummary, Setting
from tcbench.present.charts.provenance import provenance_of


@dataclass(frozen=True)
class Here:
    """All cells of one setting. `name` tells it from the page's other settings, empty where there is only one."""

    setting: Setting
    name: str
    summaries: tuple[CellSummary, ...]

    @property
    def unit(self) -> str:
        """The name of what a step works on `batch_size` of."""
        return self.setting.cell.unit

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(sorted({summary.cell.batch_size for summary in self.summaries}))

    def at(self, batch_size: int) -> tuple[CellSummary, ...]:
        """The cells of a batch size, in the order of the results."""
        return tuple(summary for summary in self.summaries if summary.cell.batch_size == batch_size)


@dataclass(frozen=True)
class Settings:
    """A page's settings in order, and the facts that all share."""

    here: tuple[Here, ...]
    common: tuple[str, ...]

    @staticmethod
    def of(summaries: Sequence[CellSummary]) -> Settings:
        """Summaries of at least one cell, parted."""
        groups: dict[Setting, list[CellSummary]] = {}
        for summary in summaries:
            groups.setdefault(summary.setting, []).append(summary)
        provenance = provenance_of(groups)
        return Settings(
            tuple(Here(setting, provenance.names[setting], tuple(group)) for setting, group in groups.items()),
            tuple(provenance.common),
        )

    @property
    def several(self) -> bool:
        return len(self.here) > 1

    def name(self, setting: Setting) -> str:
        return next((here.name for here in self.here if here.setting == setting), "")
