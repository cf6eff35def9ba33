"""Networks beside each other: the base and the best config of each. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, base_config, best, ratio
from tcbench.core.groups import grouped
from tcbench.engine.models import MODELS


@dataclass(frozen=True)
class NetworkResult:
    """One network in one setting at one batch size. `base` and `best`: None where nothing was measured. `speedup`: the
    best over the base."""

    model: str
    batch_size: int
    image_size: int
    parameters: int
    macs_per_image: int
    base: CellSummary | None
    best: CellSummary | None
    speedup: Interval | None


def networks(summaries: Sequence[CellSummary]) -> tuple[NetworkResult, ...]:
    """One result per network, setting and batch size, in the order of the summaries; none where they are of fewer than
    two networks that `tcbench.engine.models` knows."""
    known = [summary for summary in summaries if summary.cell.model in MODELS]
    if len({summary.cell.model for summary in known}) < 2:
        return ()
    groups = grouped(((summary.setting, summary.cell.batch_size), summary) for summary in known)
    return tuple(_result(group) for group in groups.values())


def _result(group: Sequence[CellSummary]) -> NetworkResult:
    cell, model = group[0].cell, MODELS[group[0].cell.model]
    named = base_config(group)
    base = next((s for s in group if s.cell.config == named and s.images_per_s), None)
    fastest = best(group)
    return NetworkResult(
        cell.model,
        cell.batch_size,
        cell.image_size,
        model.parameters(cell.n_classes),
        model.macs(cell.variant, cell.image_size, cell.n_classes),
        base,
        fastest,
        ratio(fastest, base) if fastest and base and fastest is not base else None,
    )
