"""The demands of a training step on a GPU that is not here: launches, copies and memory, traced and cached by cell.

A cell is traced by running the training program on an accelerator that only counts, in several processes at once.
"""

import collections
import functools
import importlib.metadata
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
from tcbench.hardware.gpus import GpuProperties

TRACES = "traces-v3"
"""The version of the form of cached traces."""


@dataclass(frozen=True)
class Demand:
    """A trace without its order.

    - `phases`: the number of requests of the host to the GPU in each phase.
    - `works`: each distinct work, with how often a step launches it, within a captured graph or not.
    - `replayed`: the launches within the captured graph.
    - `prepared`: as in Trace.
    """

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
    """Return what a step demands, or why the cell's backend cannot tell."""
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
    """Return what a step of each cell demands, from the cache or by tracing it now, or why it is not known. Cells whose
    traces cannot differ are traced once. With 0 `processes`, only cached demands are returned."""
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
    """Return the cell that is traced in place of all cells with the same trace."""
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
    """Yield each cell with its demand, or why it is not known, traced in several processes if that is worth it."""
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
    return f"{' '.join(sources)} chainer {importlib.metadata.version('chainer')}"


def _to_entry(demand: Demand) -> Entry:
    """Return the cache entry of a demand."""
    works = [(work.key, count) for work, count in demand.works]
    in_order = {"phases": list(demand.phases.items()), "works": works}  # lists, since the cache sorts keys
    return Entry(msgspec.to_builtins(replace(demand, works=())) | in_order)


def _from_entry(entry: Entry | None) -> Demand | None:
    """Return the demand of a cache entry, or None if it is missing or of another form."""
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
    """Return the work that a key describes. Raises ValueError or KeyError for a key of another version."""
    fields: dict[str, Any] = json.loads(key)
    kind = _kinds()[fields.pop("work")]
    return msgspec.convert(fields, kind, strict=False)


@functools.cache
def _kinds() -> dict[str, type[Work]]:
    """Return the classes of works by their names."""
    kinds = [Work]
    for kind in kinds:  # the list grows while it is iterated
        kinds += kind.__subclasses__()
    return {kind.name: kind for kind in kinds[1:]}
