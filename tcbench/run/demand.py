"""The demands of a training step on a GPU that is not here: launches, copies and memory, traced and cached by cell.

A cell is traced by running the training program on an accelerator that only counts, in several processes at once."""

import collections
import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

import tcbench.core
import tcbench.engine
from tcbench.core import cache, spawn
from tcbench.core.cache import Cache, Entry, Key
from tcbench.core.errors import TcbenchError
from tcbench.core.progress import Progress
from tcbench.core.record import Cell, Input, MeasureSettings
from tcbench.engine.api import Work, trace_cell
from tcbench.hardware import machine
from tcbench.hardware.gpus import GpuProperties

TRACES = "traces-v3"
"""The version of the form of cached traces."""


@dataclass(frozen=True)
class Demand:
    """The demands of a training step on a GPU: a trace, reduced to counts.

    - `phases`: the number of requests of the host to the GPU in each phase.
    - `replayed`: the number of launches within the captured graph.
    - `works`: each distinct operation, with the number of its launches per step, within a captured graph or not.
    - `peak_bytes`: the most GPU memory that is allocated at one time.
    - `prepared`: the number of launches that the host sets up anew in each step, as in `Trace`."""

    phases: dict[str, int]
    replayed: int
    works: tuple[tuple[Work, int], ...]
    peak_bytes: int
    prepared: int = 0

    @property
    def requests(self) -> int:
        """The host's requests to the GPU in a step."""
        return sum(self.phases.values())


def _trace(properties: GpuProperties, cell: Cell) -> Demand | str:
    """Return what a step of the cell demands of a GPU with these properties, or the reason why it cannot be traced."""
    try:
        trace = trace_cell(cell, properties)
    except TcbenchError as error:
        return str(error)
    phases = {phase.name: len(phase.events) for phase in trace.step}
    counts = collections.Counter(trace.works)
    return Demand(phases, len(trace.replayed), tuple(counts.items()), trace.peak_bytes, trace.prepared)


def trace_all(
    cells: Iterable[Cell], properties: GpuProperties, *, fresh: bool, processes: int, progress: Progress
) -> dict[Cell, Demand | str]:
    """Return what a step of each cell demands, or the reason why that is unknown, from the cache or by tracing it now.
    Cells with equal traces are traced once. `fresh` ignores cached traces. With 0 `processes`, nothing is traced and
    only cells with cached demands are returned."""
    traces = Cache(cache.folder(TRACES), fresh=fresh)
    traced_cells = {cell: _traced(cell) for cell in cells}
    keys: dict[Cell, Key] = {
        cell: {"cell": cell.key, "sm": properties.sm, "program": program()}
        for cell in dict.fromkeys(traced_cells.values())
    }
    cached = {cell: _from_entry(traces.get(key)) for cell, key in keys.items()}
    demands: dict[Cell, Demand | str] = {cell: demand for cell, demand in cached.items() if demand is not None}
    if processes == 0:
        return {cell: demands[traced] for cell, traced in traced_cells.items() if traced in demands}
    progress("tracing training steps", len(demands), len(keys))
    for cell, new in _trace_anew([cell for cell in keys if cell not in demands], properties, processes):
        demands[cell] = new
        if isinstance(new, Demand):
            traces.put(keys[cell], _to_entry(new))
        progress("tracing training steps", len(demands), len(keys))
    return {cell: demands[traced] for cell, traced in traced_cells.items()}


def _traced(cell: Cell) -> Cell:
    """Return the cell without settings that do not change its trace. Cells with the same result have equal traces."""
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
) -> Iterable[tuple[Cell, Demand | str]]:
    """Trace cells, and yield each with its demand or the reason why that is unknown. Several cells are traced in
    `processes` processes, a single one in this process. Raises TcbenchError if a process was killed."""
    processes = processes if min(processes, len(cells)) > 1 else 0
    # Must be set before NumPy is imported. A trace touches none of its memory, so huge pages would only cost time.
    environment = {"NUMPY_MADVISE_HUGEPAGE": "0"}
    for cell, answer in spawn.spread(cells, functools.partial(_trace, properties), processes, environment):
        if isinstance(answer, spawn.Died):
            raise TcbenchError(
                "a process that traced a training step was killed, probably for lack of memory: "
                "select fewer cells at a time, such as --bs 32"
            )
        yield cell, answer


def program() -> str:
    """Return a digest of the traced program: tcbench's sources and the version of the framework."""
    sources = map(cache.source_digest, (tcbench.core, tcbench.engine))
    return f"{' '.join(sources)} chainer {machine.version('chainer')}"


def _to_entry(demand: Demand) -> Entry:
    """Return the cache entry of a demand."""
    works = [(work.key, count) for work, count in demand.works]
    in_order = {"phases": list(demand.phases.items()), "works": works}  # lists, since the cache sorts keys
    return Entry(msgspec.to_builtins(replace(demand, works=())) | in_order)


def _from_entry(entry: Entry | None) -> Demand | None:
    """Return the demand that a cache entry holds, or None if there is no entry or it has another form."""
    if entry is None:
        return None
    try:
        works = tuple((_work(key), count) for key, count in entry.content["works"])
        phases = dict(entry.content["phases"])
        return replace(msgspec.convert(entry.content | {"phases": phases, "works": ()}, Demand), works=works)
    except (KeyError, TypeError, ValueError):
        return None


@functools.cache
def _work(key: str) -> Work:
    """Return the operation that a key (`Work.key`) describes. Raises ValueError or KeyError for an outdated key."""
    fields: dict[str, Any] = json.loads(key)
    kind = _kinds()[fields.pop("work")]
    return msgspec.convert(fields, kind, strict=False)


@functools.cache
def _kinds() -> dict[str, type[Work]]:
    """Return all subclasses of Work by their attribute `name`."""
    kinds = [Work]
    for kind in kinds:  # the list grows while it is iterated
        kinds += kind.__subclasses__()
    return {kind.name: kind for kind in kinds[1:]}
