"""The chart that both `tcbench run` and `tcbench plot` leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tcbench.analysis.summary import CellSummary


def throughput_chart(summaries: Sequence[CellSummary]) -> Any:
    """The chart of all cells, by batch size."""
    from tcbench.show import charts

    scenarios = ", ".join(dict.fromkeys(summary.cell.scenario for summary in summaries))
    return charts.throughput_chart(summaries, title="Training throughput", subtitle=f"Scenario {scenarios}")
