"""The forecast of a scenario on a GPU that is not here: plans, kernels, memory, launches, and the time of each cell."""

import collections
from dataclasses import dataclass
from typing import ClassVar

from tcbench.core.errors import SelectionError
from tcbench.core.progress import Progress
from tcbench.core.record import Cell
from tcbench.engine.api import Prospects, Way, Work, attained
from tcbench.hardware.gpus import ALLOWANCE_BYTES, GpuFile
from tcbench.run.demand import Demand, trace_all
from tcbench.run.devices import absent_device
from tcbench.run.plan import Plan

PROCESSES = 2
_NOTHING = Demand({}, 0, (), 0)


@dataclass(frozen=True)
class WorkForecast:
    """One distinct work of a step: `by` cuDNN's plan tag (engine and knobs), the older call's or the kernel's name.
    `floor_s` and `expected_s` are one launch's: the least that the roofline allows, and what such cards attain."""

    work: Work
    count: int
    way: Way
    floor_s: float
    expected_s: float


@dataclass(frozen=True)
class CellForecast:
    """A cell on that GPU. `cannot_run`: why the config does not run there at all; `untraced`: why nothing is known of
    it. In either case there is nothing else."""

    cell: Cell
    gpu: GpuFile
    cannot_run: str | None = None
    untraced: str | None = None
    works: tuple[WorkForecast, ...] = ()
    demand: Demand = _NOTHING
    allowance_bytes: ClassVar[int] = ALLOWANCE_BYTES

    @property
    def is_known(self) -> bool:
        return self.cannot_run is None and self.untraced is None

    def of_kind(self, kind: str) -> tuple[WorkForecast, ...]:
        """The works that are done by a cuDNN graph ("graph"), one of its older calls ("call"), or a kernel of ours."""
        return tuple(work for work in self.works if work.work.kind == kind)

    @property
    def workspace_bytes(self) -> int:
        """cuDNN's largest."""
        return max((work.way.workspace_bytes for work in self.works), default=0)

    @property
    def memory_bytes(self) -> int:
        """The need of the card's memory: all arrays at their peak (weights and velocities among them), the workspace,
        and the allowance for context and libraries."""
        return self.demand.peak_bytes + self.workspace_bytes + self.allowance_bytes

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.gpu.memory_bytes

    @property
    def flops(self) -> int:
        return sum(work.count * work.work.flops for work in self.works)

    @property
    def bytes(self) -> int:
        return sum(work.count * work.work.bytes for work in self.works)

    @property
    def floor_s(self) -> float:
        """The least time of a whole step: the sum of the bounds of all launches. It is no prediction. Each launch is
        counted as doing its sums directly and its traffic with device memory once, so that only data still in the L2
        cache, or a convolution by Winograd's method, can be faster."""
        return sum(work.count * work.floor_s for work in self.works)

    @property
    def floor_in_arithmetic_s(self) -> float:
        """The part of it in launches that arithmetic bounds; the rest waits for memory."""
        bandwidth = self.gpu.memory_bandwidth_bytes_s
        bound = (work for work in self.works if work.floor_s > work.work.bytes / bandwidth)
        return sum((work.count * work.floor_s for work in bound), 0.0)

    @property
    def images_per_s_at_most(self) -> float:
        return self.cell.batch_size / self.floor_s

    @property
    def expected_s(self) -> float:
        """The time that the GPU is busy with a step, by what such cards attain
        (`tcbench.engine.accelerators.attained`). The host may take longer."""
        return sum(work.count * work.expected_s for work in self.works)

    @property
    def images_per_s_expected(self) -> float:
        return self.cell.batch_size / self.expected_s

    @property
    def problems(self) -> tuple[str, ...]:
        """Why some of its works cannot be done, each reason once."""
        return tuple(dict.fromkeys(work.way.problem for work in self.works if work.way.problem))

    @property
    def engines(self) -> dict[str, int]:
        """cuDNN's engines, without their knobs, and for how many graphs of the cell each is chosen, most first."""
        tags = (work.way.by for work in self.of_kind("graph") if work.way.by)
        return dict(collections.Counter(tag.partition("_")[0] for tag in tags).most_common())


@dataclass(frozen=True)
class Forecast:
    """All cells of a plan; `prospects`: of their works, with the library whose plans they are."""

    plan: Plan
    gpu: GpuFile
    cells: tuple[CellForecast, ...]
    prospects: Prospects


def forecast(
    plan: Plan, gpu: GpuFile, *, fresh: bool = False, processes: int = PROCESSES, progress: Progress = lambda *_: None
) -> Forecast:
    """Forecast every cell that can run there. `fresh` ignores what is kept. Raises SelectionError for a GPU whose peak
    rates are not known, or that the cuDNN here has no code for: its plans would be none of that GPU's."""
    rates = attained(gpu)
    kind, _ = absent_device(gpu)
    if misfit := kind.misfit(gpu):
        raise SelectionError(f"GPU {gpu.name}: {misfit}")
    runnable = [planned.cell for planned in plan.cells if planned.skip_reason is None]
    traced = trace_all(runnable, gpu.properties(), fresh=fresh, processes=processes, progress=progress)
    demands = [(cell, demand) for cell, demand in traced.items() if not isinstance(demand, str)]
    asked = [(work, cell.cudnn.workspace_bytes) for cell, demand in demands for work, _ in demand.works]
    prospects = kind.prospects(asked, gpu, fresh=fresh, processes=processes, progress=progress)

    def of(cell: Cell, skip_reason: str | None) -> CellForecast:
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

    return Forecast(plan, gpu, tuple(of(each.cell, each.skip_reason) for each in plan.cells), prospects)
