"""Networks beside each other in words: one table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from tcbench.analysis.networks import NetworkResult
from tcbench.analysis.summary import CellSummary
from tcbench.present.format import rate, ratio
from tcbench.present.tables import open_table


def table(results: Sequence[NetworkResult]) -> Table:
    """A row per network: its parameters, its arithmetic for one image of this size, images/s of base and best."""
    table = open_table(gap=1)
    table.add_column("network", no_wrap=True)
    for heading in ("parameters", "MACs", "batch", "base", "best", "best/base"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("the best", overflow="fold")
    for result in results:
        table.add_row(
            f"{result.model} {result.image_size}²",
            f"{result.parameters:,}",
            f"{result.macs_per_image / 1e9:.2f} G",
            str(result.batch_size),
            _rate(result.base),
            _rate(result.best),
            ratio(result.speedup),
            Text(result.best.cell.config if result.best else ""),
        )
    return table


def _rate(summary: CellSummary | None) -> str:
    return "" if summary is None or summary.images_per_s is None else rate(summary.images_per_s)
