"""What a scenario will ask of a GPU that is not here: plans, kernels, memory, launches and the floor of each cell.

Owns the orchestration: cells are traced (the training program itself, on an accelerator that only counts), cuDNN's
plans are looked for and kernels compiled for that GPU, in two processes and through the user's cache. What follows from
the counts is `tcbench.analysis.floor`'s; how it is shown is `tcbench.show.forecast`'s.
"""

from __future__ import annotations

import collections
import concurrent.futures
import concurrent.futures.process
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import tcbench
from tcbench.accelerators import device
from tcbench.accelerators.device import Progress, Prospects
from tcbench.accelerators.tracing import Trace
from tcbench.analysis.floor import Floor, MemoryNeed, peak_rates, step_floor, work_floor_s
from tcbench.backends import backend
from tcbench.core import cache
from tcbench.core.cache import Cache, Entry, Key
from tcbench.core.errors import SelectionError, TcbenchError
from tcbench.core.record import Cell, Input, MeasureSettings
from tcbench.hardware.gpus import GpuFile, GpuProperties
from tcbench.run.plan import Plan
from tcbench.work import Work

PROCESSES = 2
TRACES = "traces-v1"
"""Names the form of kept traces."""

# -- what a step asks for ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PhaseRequests:
    """How often the host asks the GPU for something in one phase."""

    name: str
    requests: int


@dataclass(frozen=True)
class Demand:
    """A Trace without its order. `works`: each distinct work with how often a step launches it, in a captured graph
    or not; `replayed`: launches within the captured graph."""

    phases: tuple[PhaseRequests, ...]
    replayed: int
    works: tuple[tuple[Work, int], ...]
    peak_bytes: int

    @classmethod
    def of(cls, trace: Trace) -> Demand:
        phases = tuple(PhaseRequests(phase.name, len(phase.events)) for phase in trace.step)
        counts = collections.Counter(trace.works)
        return cls(phases, len(trace.replayed), tuple(counts.items()), trace.peak_bytes)

    @property
    def requests(self) -> int:
        """What the host asks for in a step: launches, copies, graphs."""
        return sum(phase.requests for phase in self.phases)


@dataclass(frozen=True)
class Untraced:
    """Why a cell's backend cannot say what a step asks for."""

    reason: str


def _trace(backend_name: str, cell: Cell, properties: GpuProperties) -> Demand | Untraced:
    try:
        return Demand.of(backend(backend_name).trace(cell, properties))
    except TcbenchError as error:
        return Untraced(str(error))


# -- how it can be done there --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkForecast:
    """One distinct work of a step. `by`: cuDNN's plan tag (engine and knobs), the older call's or the kernel's name;
    None where nothing does it (`problem` says why) or it was not checked. `floor_s` is one launch's."""

    work: Work
    count: int
    by: str | None
    workspace_bytes: int
    problem: str | None
    floor_s: float

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
    """Look at every cell that can run there. `fresh` ignores what is kept. Raises SelectionError for a GPU whose peak
    rates are not known, or that the cuDNN here has no code for: its plans would be none of that GPU's."""
    peak_rates(gpu)
    kind, _ = device.absent(gpu)
    if misfit := kind.misfit(gpu):
        raise SelectionError(f"GPU {gpu.name}: {misfit}")
    say = progress or _silent
    runnable = [planned.cell for planned in plan.cells if planned.skip_reason is None]
    traced = trace_all(runnable, gpu.properties(), fresh=fresh, processes=processes, progress=say)
    demands = {cell: demand for cell, demand in traced.items() if isinstance(demand, Demand)}
    works = [(work, cell.cudnn.workspace_bytes) for cell, demand in demands.items() for work, _ in demand.works]
    prospects = kind.prospects(works, gpu, fresh=fresh, processes=processes, progress=say)

    def of(cell: Cell, skip_reason: str | None) -> CellForecast:
        if skip_reason is not None:
            return CellForecast(cell, cannot_run=skip_reason)
        demand = traced[cell]
        if isinstance(demand, Untraced):
            return CellForecast(cell, untraced=demand.reason)
        return _cell(cell, demand, gpu, prospects)

    return Forecast(
        plan=plan,
        gpu=gpu,
        cells=tuple(of(planned.cell, planned.skip_reason) for planned in plan.cells),
        cudnn=prospects.library,
        plans_unchecked=prospects.plans_unchecked,
        kernels_unchecked=prospects.kernels_unchecked,
    )


def _silent(_what: str, _done: int, _total: int) -> None:
    """Nobody is told."""


def _cell(cell: Cell, demand: Demand, gpu: GpuFile, prospects: Prospects) -> CellForecast:
    limit = cell.cudnn.workspace_bytes
    rates = peak_rates(gpu)
    works = []
    for work, count in demand.works:
        way = prospects.way(work, limit)
        floor_s = work_floor_s(work, rates, gpu.memory_bandwidth_bytes_s)
        works.append(WorkForecast(work, count, way.by, way.workspace_bytes, way.problem, floor_s))
    return CellForecast(
        cell=cell,
        works=tuple(works),
        phases=demand.phases,
        replayed=demand.replayed,
        memory=MemoryNeed(demand.peak_bytes, max(w.workspace_bytes for w in works), gpu.memory_bytes),
        floor=step_floor(demand.works, gpu),
    )


# -- traces --------------------------------------------------------------------------------------------------------


def trace_all(
    cells: Iterable[Cell], properties: GpuProperties, *, fresh: bool, processes: int, progress: Progress
) -> dict[Cell, Demand | Untraced]:
    """What a step of each cell asks for, from the cache or traced now. Cells that differ only in what a trace does not
    depend on are traced once."""
    kept = Cache(cache.folder(TRACES), fresh=fresh)
    asked = {cell: _traced(cell) for cell in cells}
    keys = {cell: _trace_key(cell, properties.sm) for cell in dict.fromkeys(asked.values())}
    found: dict[Cell, Demand | Untraced] = {}
    for cell, key in keys.items():
        demand = _from_entry(kept.get(key))
        if demand is not None:
            found[cell] = demand
    progress("tracing training steps", len(found), len(keys))
    for cell, new in _trace_anew([cell for cell in keys if cell not in found], properties, processes):
        found[cell] = new
        if isinstance(new, Demand):
            kept.put(keys[cell], _to_entry(new))
        progress("tracing training steps", len(found), len(keys))
    return {cell: found[traced] for cell, traced in asked.items()}


def _traced(cell: Cell) -> Cell:
    """The cell that stands for all that leave the same trace."""
    return msgspec.structs.replace(
        cell,
        scenario="",
        config="+".join(cell.rungs),
        device="",
        input=Input(kind="synthetic"),
        seed=0,
        threads=1,
        cudnn=msgspec.structs.replace(cell.cudnn, workspace_bytes=0, autotune=False),
        measure=MeasureSettings(),
        scenario_cudnn=None,
    )


def _trace_anew(
    cells: Sequence[Cell], properties: GpuProperties, processes: int
) -> Iterable[tuple[Cell, Demand | Untraced]]:
    if processes <= 1 or len(cells) <= 1:
        for cell in cells:
            yield cell, _trace(cell.backend, cell, properties)
        return
    # Not forked: the caller may have loaded a device's libraries.
    with concurrent.futures.ProcessPoolExecutor(
        min(processes, len(cells)), multiprocessing.get_context("spawn"), _prepare_worker
    ) as pool:
        futures = {pool.submit(_trace, cell.backend, cell, properties): cell for cell in cells}
        try:
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()
        except concurrent.futures.process.BrokenProcessPool:
            raise TcbenchError(
                "a process that traced a training step was killed, most likely for memory: "
                "go on with fewer cells at a time, e.g. --bs 32"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Before NumPy is imported. Huge pages are set up when memory is asked for, and a trace touches none of it.
    os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"


def _trace_key(cell: Cell, sm: int) -> Key:
    return {"cell": cell.key, "sm": sm, "program": _program()}


@functools.cache
def _program() -> str:
    """A digest of what is traced: our sources and the version of the framework under them."""
    digest = hashlib.sha256()
    package = Path(tcbench.__file__).parent
    for part in _TRACED:
        for path in sorted((package / part).rglob("*.py")):
            digest.update(f"{path.relative_to(package)}\0".encode())
            digest.update(path.read_bytes())
    digest.update(f"chainer {importlib.metadata.version('chainer')}".encode())
    return digest.hexdigest()[:32]


_TRACED = ("accelerators", "backends", "core", "models", "work")
"""What a trace runs through."""


def _to_entry(demand: Demand) -> Entry:
    return Entry(
        {
            "phases": [dataclasses.asdict(phase) for phase in demand.phases],
            "replayed": demand.replayed,
            "works": [[work.key, count] for work, count in demand.works],
            "peak_bytes": demand.peak_bytes,
        }
    )


def _from_entry(entry: Entry | None) -> Demand | None:
    """None for an entry that is missing or not understood."""
    if entry is None:
        return None
    try:
        content = entry.content
        return Demand(
            phases=tuple(PhaseRequests(**phase) for phase in content["phases"]),
            replayed=content["replayed"],
            works=tuple((_work(key), count) for key, count in content["works"]),
            peak_bytes=content["peak_bytes"],
        )
    except (KeyError, TypeError, ValueError):
        return None


@functools.cache
def _work(key: str) -> Work:
    """The work that a key describes. Raises ValueError or KeyError for one of another version."""
    fields: dict[str, Any] = json.loads(key)
    kind = _kinds()[fields.pop("work")]
    return msgspec.convert(fields, kind, strict=False)


@functools.cache
def _kinds() -> dict[str, type[Work]]:
    def below(kind: type[Work]) -> Iterable[type[Work]]:
        for found in kind.__subclasses__():
            yield found
            yield from below(found)

    return {kind.name: kind for kind in below(Work) if hasattr(kind, "name")}
