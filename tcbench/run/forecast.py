"""The forecast of a scenario on a GPU that is not here: plans, kernels, memory, launches and the floor of each cell."""

import collections
from dataclasses import dataclass

from tcbench.analysis.floor import Floor, MemoryNeed, step_floor
from tcbench.core.errors import SelectionError
from tcbench.core.record import Cell
from tcbench.engine.accelerators import device
from tcbench.engine.accelerators.attained import expected_s
from tcbench.engine.accelerators.device import Progress, Prospects
from tcbench.engine.accelerators.peaks import peak_rates, work_floor_s
from tcbench.engine.work import Work
from tcbench.hardware.gpus import GpuFile
from tcbench.run.demand import Demand, PhaseRequests, trace_all
from tcbench.run.plan import Plan

PROCESSES = 2


@dataclass(frozen=True)
class WorkForecast:
    """One distinct work of a step. `by`: cuDNN's plan tag (engine and knobs), the older call's or the kernel's name;
    None where nothing does it (`problem` says why) or it was not checked. `floor_s` and `expected_s` are one
    launch's."""

    work: Work
    count: int
    by: str | None
    workspace_bytes: int
    problem: str | None
    floor_s: float
    expected_s: float

    @property
    def engine(self) -> str | None:
        """cuDNN's engine, without the knobs."""
        return self.by.partition("_")[0] if self.by and self.work.kind == "graph" else None


@dataclass(frozen=True)
class CellForecast:
    """A cell on that GPU. `cannot_run`: why the config does not run there at all; `untraced`: why nothing is known of
    it. In either case there is nothing else."""

    cell: Cell
    cannot_run: str | None = None
    untraced: str | None = None
    works: tuple[WorkForecast, ...] = ()
    phases: tuple[PhaseRequests, ...] = ()
    replayed: int = 0
    memory: MemoryNeed | None = None
    floor: Floor | None = None

    def of_kind(self, kind: str) -> tuple[WorkForecast, ...]:
        """The works that are done by a cuDNN graph ("graph"), one of its older calls ("call"), or a kernel of ours."""
        return tuple(work for work in self.works if work.work.kind == kind)

    @property
    def expected_s(self) -> float:
        """The time that the GPU is busy with a step, by what such cards attain
        (`tcbench.engine.accelerators.attained`). The host may take longer."""
        return sum(work.count * work.expected_s for work in self.works)

    @property
    def requests(self) -> int:
        return sum(phase.requests for phase in self.phases)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why some of its works cannot be done, each reason once."""
        return tuple(dict.fromkeys(work.problem for work in self.works if work.problem))

    @property
    def engines(self) -> tuple[tuple[str, int], ...]:
        """cuDNN's engines and for how many graphs of the cell each is chosen, most first."""
        return tuple(collections.Counter(work.engine for work in self.works if work.engine).most_common())


@dataclass(frozen=True)
class Forecast:
    """All cells of a plan. `cudnn` is the version whose plans they are. `plans_unchecked` and `kernels_unchecked`: why
    there are no plans or kernels, where this machine lacks what it takes; the workspace is then the limit's."""

    plan: Plan
    gpu: GpuFile
    cells: tuple[CellForecast, ...]
    cudnn: str | None
    plans_unchecked: str | None
    kernels_unchecked: str | None


def forecast(
    plan: Plan, gpu: GpuFile, *, fresh: bool = False, processes: int = PROCESSES, progress: Progress | None = None
) -> Forecast:
    """Forecast every cell that can run there. `fresh` ignores what is kept. Raises SelectionError for a GPU whose peak
    rates are not known, or that the cuDNN here has no code for: its plans would be none of that GPU's."""
    peak_rates(gpu)
    kind, _ = device.absent(gpu)
    if misfit := kind.misfit(gpu):
        raise SelectionError(f"GPU {gpu.name}: {misfit}")
    say = progress or (lambda *_: None)
    runnable = [planned.cell for planned in plan.cells if planned.skip_reason is None]
    traced = trace_all(runnable, gpu.properties(), fresh=fresh, processes=processes, progress=say)
    demands = {cell: demand for cell, demand in traced.items() if isinstance(demand, Demand)}
    works = [(work, cell.cudnn.workspace_bytes) for cell, demand in demands.items() for work, _ in demand.works]
    prospects = kind.prospects(works, gpu, fresh=fresh, processes=processes, progress=say)

    def of(cell: Cell, skip_reason: str | None) -> CellForecast:
        if skip_reason is not None:
            return CellForecast(cell, cannot_run=skip_reason)
        demand = traced[cell]
        if isinstance(demand, str):
            return CellForecast(cell, untraced=demand)
        return _cell(cell, demand, gpu, prospects)

    return Forecast(
        plan=plan,
        gpu=gpu,
        cells=tuple(of(planned.cell, planned.skip_reason) for planned in plan.cells),
        cudnn=prospects.library,
        plans_unchecked=prospects.plans_unchecked,
        kernels_unchecked=prospects.kernels_unchecked,
    )


def _cell(cell: Cell, demand: Demand, gpu: GpuFile, prospects: Prospects) -> CellForecast:
    rates, works = peak_rates(gpu), []
    for work, count in demand.works:
        way = prospects.way(work, cell.cudnn.workspace_bytes)
        times_s = work_floor_s(work, rates, gpu.memory_bandwidth_bytes_s), expected_s(work, gpu)
        works.append(WorkForecast(work, count, way.by, way.workspace_bytes, way.problem, *times_s))
    return CellForecast(
        cell=cell,
        works=tuple(works),
        phases=demand.phases,
        replayed=demand.replayed,
        memory=MemoryNeed(demand.peak_bytes, max(w.workspace_bytes for w in works), gpu.memory_bytes),
        floor=step_floor(demand.works, gpu),
    )
