"""Networks beside each other in words: one table."""

from collections.abc import Sequence

from tcbench.analysis.networks import NetworkResult
from tcbench.present.format import ratio
from tcbench.present.tables import COUNT, RATE, Column, Table


def table(results: Sequence[NetworkResult]) -> Table[NetworkResult]:
    """A row per network: its parameters, its arithmetic for one image of this size, images/s of base and best."""
    return Table(_COLUMNS, results, gap=1)


_COLUMNS: tuple[Column[NetworkResult], ...] = (
    Column("network", lambda result: f"{result.model} {result.image_size}²", wraps=False),
    Column("parameters", lambda result: f"{result.parameters:,}", COUNT),
    Column("MACs", lambda result: f"{result.macs_per_image / 1e9:.2f} G", COUNT),
    Column("batch", lambda result: result.batch_size, COUNT),
    Column("base", lambda result: result.base and result.base.images_per_s, RATE),
    Column("best", lambda result: result.best and result.best.images_per_s, RATE),
    Column("best/base", lambda result: ratio(result.speedup), COUNT),
    Column("the best", lambda result: result.best and result.best.cell.config),
)
