"""The steps that a model of many ranks stands on: measured ones of records, or those of a forecast."""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tcbench.analysis.scale_out import ALGORITHMS, OVERLAP, RankStep, Scaled, gradient_bytes, scaled
from tcbench.analysis.summary import by_code, summarise
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.core.record import Cell, Record
from tcbench.engine.models import MODELS
from tcbench.hardware.networks import RankNetwork
from tcbench.run.forecast import Forecast

Source = Literal["measured", "simulated", "forecast"]


@dataclass(frozen=True)
class Basis:
    """A cell's step on one rank, and the device that it is of."""

    cell: Cell
    device_name: str
    step: RankStep
    source: Source


@dataclass(frozen=True)
class Size:
    """A basis on so many ranks: by each algorithm without overlap and with it."""

    ranks: int
    ways: tuple[Scaled, ...]

    @property
    def fastest(self) -> Scaled:
        return min(self.ways, key=lambda scaled: scaled.step_s)

    @property
    def slowest(self) -> Scaled:
        return max(self.ways, key=lambda scaled: scaled.step_s)


@dataclass(frozen=True)
class ScaleOut:
    """Every basis on every number of ranks. `left_out`: cells that are no basis, and why."""

    network: RankNetwork
    bases: dict[Basis, list[Size]]
    left_out: Sequence[str] = ()


def scale_out(
    bases: Sequence[Basis], ranks: Sequence[int], network: RankNetwork, left_out: Sequence[str] = ()
) -> ScaleOut:
    """Every basis on every number of ranks."""

    def size(basis: Basis, n: int) -> Size:
        ways = itertools.product(ALGORITHMS, (0.0, OVERLAP))
        return Size(n, tuple(scaled(basis.step, n, network, *way) for way in ways))

    return ScaleOut(network, {basis: [size(basis, n) for n in ranks] for basis in bases}, left_out)


def measured(records: Iterable[Record], *, all_configs: bool) -> list[Basis]:
    """Cells of one rank that were measured; of each machine and batch size the fastest alone, unless `all_configs`.
    Raises SelectionError where there is none."""
    records = tuple(records)
    groups = by_code(records)
    bases = []
    for summary in summarise(records):
        cell, environment, trials = summary.cell, summary.environment, groups[summary.key]
        n_parameters = next((record.measurement.parameters for record in trials if record.measurement), None)
        if summary.step_time_s is None or n_parameters is None or environment is None or cell.ranks > 1:
            continue  # the step of many ranks has an all-reduce in it
        gpus = (record.gpu for record in trials if record.status == "ok" and record.gpu)
        known_w = [power_w for gpu in gpus if (power_w := gpu.mean_power_w) is not None]
        step = RankStep(
            time_s=summary.step_time_s.value,
            images=cell.batch_size,
            gradient_bytes=gradient_bytes(cell, n_parameters),
            power_w=statistics.fmean(known_w) if known_w else None,
        )
        source: Source = "simulated" if environment.simulated else "measured"
        bases.append(Basis(cell, environment.device_name, step, source))
    if not bases:
        raise SelectionError("no measured cell of one rank in these results to scale out; `tcbench run` makes some")
    return bases if all_configs else _fastest(bases)


def forecast(of: Forecast, *, all_configs: bool) -> tuple[list[Basis], list[str]]:
    """Cells that run there and fit, by the time that is expected of their device, and why others are left out; of each
    batch size the fastest alone, unless `all_configs`. Raises SelectionError where there is none."""
    bases, left_out = [], []
    for cell in of.cells:
        too_large = None if cell.fits else f"does not fit into the memory of {of.gpu.name}"
        if why := cell.cannot_run or cell.untraced or too_large:
            left_out.append(f"{cell.cell.label}: {why}")
            continue
        n_bytes = gradient_bytes(cell.cell, MODELS[cell.cell.model].parameters(cell.cell.n_classes))
        step = RankStep(cell.expected_s, cell.cell.batch_size, n_bytes, of.gpu.power_limit_w)
        bases.append(Basis(cell.cell, of.gpu.device_name, step, "forecast"))
    if not bases:
        raise SelectionError(f"no cell to scale out on {of.gpu.name}: {left_out[0]}")
    return (bases, left_out) if all_configs else (_fastest(bases), [])


def _fastest(bases: Iterable[Basis]) -> list[Basis]:
    """Of each device and batch size the cell with the shortest step."""
    alike = grouped(((basis.source, basis.device_name, basis.cell.batch_size), basis) for basis in bases)
    return [min(group, key=lambda basis: basis.step.time_s) for group in alike.values()]
