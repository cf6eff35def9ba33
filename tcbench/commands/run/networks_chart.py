"""A comparison of networks: throughput of the base and the best config of each, as bars and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, base_config, best
from tcbench.analysis.summary import ratio as ratio_of
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.engine.api import known_models
from tcbench.show.format import factor, listed, ratio
from tcbench.show.tables import COUNT, RATE, Column, Table

if TYPE_CHECKING:  # the table does not need matplotlib
    from matplotlib.figure import Figure

    from tcbench.show.charts.bars import BarGroup


@dataclass(frozen=True)
class NetworkResult:
    """A network in one setting at one batch size.

    `base` and `best` are None if they were not measured. `speedup` is the best over the base."""

    model: str
    batch_size: int
    image_size: int
    parameters: int
    macs_per_image: int
    base: CellSummary | None
    best: CellSummary | None
    speedup: Interval | None


def network_results(summaries: Sequence[CellSummary]) -> tuple[NetworkResult, ...]:
    """Return a result per network, setting and batch size, in the order of the summaries. Empty if the summaries have
    fewer than two networks of `tcbench.engine.models`."""
    cells = [summary for summary in summaries if summary.cell.model in known_models()]
    if len({summary.cell.model for summary in cells}) < 2:
        return ()
    groups = grouped(((summary.setting, summary.cell.batch_size), summary) for summary in cells)
    return tuple(_result(group) for group in groups.values())


def _result(group: Sequence[CellSummary]) -> NetworkResult:
    """Return the result of a network from its cells of one setting and batch size."""
    cell, model = group[0].cell, known_models()[group[0].cell.model]
    base_name = base_config(group)
    base = next((s for s in group if s.cell.config == base_name and s.images_per_s), None)
    fastest = best(group)
    return NetworkResult(
        cell.model,
        cell.batch_size,
        cell.image_size,
        model.parameters(cell.n_classes),
        model.macs(cell.variant, cell.image_size, cell.n_classes),
        base,
        fastest,
        ratio_of(fastest, base) if fastest and base and fastest is not base else None,
    )


def networks_chart(summaries: Sequence[CellSummary]) -> Figure:
    """Draw a panel per batch size with base and best config of each network. Raises SelectionError for one network."""
    from tcbench.show.charts.bars import panel_chart
    from tcbench.show.charts.provenance import by_setting, provenance_of
    from tcbench.show.charts.text import config_name

    results = network_results(summaries)
    if not results:
        raise SelectionError("results of one network: expected several, such as those of `tcbench run networks`")
    shown = [s for result in results for s in (result.base, result.best) if s is not None]
    # Give all cells the same model, so that the facts common to all networks are found.
    model = f"{len({result.model for result in results})} networks"
    alike = [replace(summary, cell=msgspec.structs.replace(summary.cell, model=model)) for summary in shown]
    provenance = provenance_of(by_setting(alike))
    panels = [
        (f"batch size {batch_size}", [_group(result) for result in results if result.batch_size == batch_size])
        for batch_size in sorted({result.batch_size for result in results})
    ]
    rows = [[(config, config_name(config))] for config in dict.fromkeys(summary.cell.config for summary in shown)]
    scenarios = listed(list(dict.fromkeys(summary.cell.scenario for summary in shown)))
    note = "below each network: MACs of one image's forward pass; above its best config: the speed-up over the base"
    title, subtitle = "Throughput by network", f"Scenario {scenarios}"
    return panel_chart(panels, rows, provenance.common, title, subtitle, [note], axis="network")


def _group(result: NetworkResult) -> BarGroup:
    """Return the label of a network, with its MACs, and the bars of its base and best config."""
    from tcbench.show.charts.bars import Bar

    bars = [Bar(result.base.cell.config, result.base)] if result.base else []
    if result.best is not None and result.best is not result.base:
        note = factor(result.speedup.value) if result.speedup else ""
        bars.append(Bar(result.best.cell.config, result.best, note))
    return f"{result.model}\n{result.macs_per_image / 1e9:.2f} G", bars or [Bar("fp32", None)]  # drawn as "not run"


def table(results: Sequence[NetworkResult]) -> Table[NetworkResult]:
    """Return a table with a row per network: parameters, MACs per image, and throughput of base and best config."""
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
