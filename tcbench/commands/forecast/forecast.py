"""The forecast of a scenario on a GPU that is not here: plans, kernels, memory, launches, and the time of each cell."""

import collections
from dataclasses import dataclass
from typing import ClassVar

from tcbench.core.errors import SelectionError
from tcbench.core.progress import Progress
from tcbench.core.record import Cell
from tcbench.engine.api import Prospects, Way, Work, timing_model
from tcbench.hardware.gpus import ALLOWANCE_BYTES, GpuFile
from tcbench.run.demand import Demand, trace_all
from tcbench.run.devices import absent_device
from tcbench.run.plan import Plan

PROCESSES = 2
"""Number of processes that trace cells."""
_NOTHING = Demand({}, 0, (), 0)


@dataclass(frozen=True)
class WorkForecast:
    """A distinct operation of a step, which is launched `count` times.

    `floor_s` and `expected_s` are per launch: the least time by the roofline, and the time expected from the share of
    their peak rates that such GPUs attain."""

    work: Work
    count: int
    way: Way
    floor_s: float
    expected_s: float


@dataclass(frozen=True)
class CellForecast:
    """The forecast of one cell. `cannot_run` is why the config does not run on the GPU at all, `untraced` why its
    demand is unknown; in either case the other fields are empty."""

    cell: Cell
    gpu: GpuFile
    cannot_run: str | None = None
    untraced: str | None = None
    works: tuple[WorkForecast, ...] = ()
    demand: Demand = _NOTHING
    allowance_bytes: ClassVar[int] = ALLOWANCE_BYTES

    @property
    def is_known(self) -> bool:
        """Whether there is a forecast for the cell."""
        return self.cannot_run is None and self.untraced is None

    def of_kind(self, kind: str) -> tuple[WorkForecast, ...]:
        """Return the operations of a kind: run by cuDNN graphs ("graph"), by cuDNN's older calls ("call"), or by
        tcbench's own kernels ("kernel")."""
        return tuple(work for work in self.works if work.work.kind == kind)

    @property
    def workspace_bytes(self) -> int:
        """The largest workspace that cuDNN needs."""
        return max((work.way.workspace_bytes for work in self.works), default=0)

    @property
    def memory_bytes(self) -> int:
        """The GPU memory that a step needs: the peak of all arrays (including weights and velocities), the workspace,
        and the allowance for context and libraries."""
        return self.demand.peak_bytes + self.workspace_bytes + self.allowance_bytes

    @property
    def fits(self) -> bool:
        """Whether a step fits into the GPU's memory."""
        return self.memory_bytes <= self.gpu.memory_bytes

    @property
    def flops(self) -> int:
        """Floating-point operations of a step."""
        return sum(work.count * work.work.flops for work in self.works)

    @property
    def bytes(self) -> int:
        """The least memory traffic of a step in bytes: each launch moves every operand once."""
        return sum(work.count * work.work.bytes for work in self.works)

    @property
    def floor_s(self) -> float:
        """Lower bound of the step's time: the sum of the bounds of all launches. It is not a prediction. Each launch is
        assumed to compute directly and to read and write device memory once, so only data still in the L2 cache or a
        Winograd convolution can be faster."""
        return sum(work.count * work.floor_s for work in self.works)

    @property
    def floor_in_arithmetic_s(self) -> float:
        """The part of `floor_s` in launches that are bound by arithmetic. The rest is bound by memory."""
        bandwidth = self.gpu.memory_bandwidth_bytes_s
        bound = (work for work in self.works if work.floor_s > work.work.bytes / bandwidth)
        return sum((work.count * work.floor_s for work in bound), 0.0)

    @property
    def images_per_s_at_most(self) -> float:
        """Upper bound of the rate, from `floor_s`."""
        return self.cell.batch_size / self.floor_s

    @property
    def expected_s(self) -> float:
        """The expected GPU time of a step, from what such GPUs attain (`tcbench.engine.accelerators.attained`). The
        host may take longer."""
        return sum(work.count * work.expected_s for work in self.works)

    @property
    def images_per_s_expected(self) -> float:
        """The rate that follows from `expected_s`."""
        return self.cell.batch_size / self.expected_s

    @property
    def problems(self) -> tuple[str, ...]:
        """Why some operations cannot run on the GPU, each reason once; empty if all can."""
        return tuple(dict.fromkeys(work.way.problem for work in self.works if work.way.problem))

    @property
    def engines(self) -> dict[str, int]:
        """cuDNN's engines without their knobs, and the number of the cell's graphs that use each, the most frequent
        first."""
        tags = (work.way.implementation for work in self.of_kind("graph") if work.way.implementation)
        return dict(collections.Counter(tag.partition("_")[0] for tag in tags).most_common())


@dataclass(frozen=True)
class Forecast:
    """The forecast of all cells of a plan. `prospects` holds the cuDNN plans and kernels of their operations."""

    plan: Plan
    gpu: GpuFile
    cells: tuple[CellForecast, ...]
    prospects: Prospects


def forecast(
    plan: Plan, gpu: GpuFile, *, fresh: bool = False, processes: int = PROCESSES, progress: Progress = lambda *_: None
) -> Forecast:
    """Return the forecast of every cell of a plan on a GPU, or the reason why a cell has none.

    `fresh` ignores cached results, and `processes` is the number of processes that trace cells. Raises SelectionError
    if the GPU's peak rates are unknown, or if the installed cuDNN has no code for it, since its plans would not be
    those of the GPU."""
    rates = timing_model(gpu)
    kind, _ = absent_device(gpu)
    if misfit := kind.misfit(gpu):
        raise SelectionError(f"GPU {gpu.name}: {misfit}")
    runnable = [planned.cell for planned in plan.cells if planned.skip_reason is None]
    traced = trace_all(runnable, gpu.properties(), fresh=fresh, processes=processes, progress=progress)
    works_to_plan = [
        (work, cell.cudnn.workspace_bytes)
        for cell, demand in traced.items()
        if not isinstance(demand, str)
        for work, _ in demand.works
    ]
    prospects = kind.prospects(works_to_plan, gpu, fresh=fresh, processes=processes, progress=progress)

    def forecast_cell(cell: Cell, skip_reason: str | None) -> CellForecast:
        """Return the forecast of one cell, or why there is none."""
        if skip_reason is not None:
            return CellForecast(cell, gpu, cannot_run=skip_reason)
        demand = traced[cell]
        if isinstance(demand, str):
            return CellForecast(cell, gpu, untraced=demand)
        works = []
        for work, count in demand.works:
            way = prospects.way(work, cell.cudnn.workspace_bytes)
            works.append(WorkForecast(work, count, way, rates.peaks.floor_s(work), rates.expected_s(work)))
        return CellForecast(cell, gpu, works=tuple(works), demand=demand)

    cells = tuple(forecast_cell(planned.cell, planned.skip_reason) for planned in plan.cells)
    return Forecast(plan, gpu, cells, prospects)
