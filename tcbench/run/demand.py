"""A training step's demand on a GPU that is not here: its launches, copies and memory, traced and kept by cell.

A cell is traced by running the training program itself on an accelerator that only counts, in a few processes at once.
"""

import collections
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

import tcbench
from tcbench.core import cache, spawn
from tcbench.core.cache import Cache, Entry, Key
from tcbench.core.errors import TcbenchError
from tcbench.core.progress import Progress
from tcbench.core.record import Cell, Input, MeasureSettings
from tcbench.engine.api import Work, trace_cell
from tcbench.hardware.gpus import GpuProperties

TRACES = "traces-v3"
"""Names the form of kept traces."""


@dataclass(frozen=True)
class Demand:
    """A Trace without its order. `phases`: the number of the host's requests to the GPU in each; `works`: each distinct
    work with how often a step launches it, in a captured graph or not; `replayed`: launches within the captured graph;
    `prepared`: as in Trace."""

    phases: dict[str, int]
    replayed: int
    works: tuple[tuple[Work, int], ...]
    peak_bytes: int
    prepared: int = 0

    @property
    def requests(self) -> int:
        return sum(self.phases.values())


def _trace(properties: GpuProperties, cell: Cell) -> Demand | str:
    """What a step asks for, or why the cell's backend cannot say it."""
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
    """The demand of a step of each cell, from the cache or traced now, or why it is not known. Cells that differ only
    in what a trace does not depend on are traced once. No `processes`: those from the cache alone."""
    kept = Cache(cache.folder(TRACES), fresh=fresh)
    asked = {cell: _traced(cell) for cell in cells}
    keys: dict[Cell, Key] = {
        cell: {"cell": cell.key, "sm": properties.sm, "program": program()} for cell in dict.fromkeys(asked.values())
    }
    found = {cell: _from_entry(kept.get(key)) for cell, key in keys.items()}
    demands: dict[Cell, Demand | str] = {cell: demand for cell, demand in found.items() if demand is not None}
    if processes == 0:
        return {cell: demands[traced] for cell, traced in asked.items() if traced in demands}
    progress("tracing training steps", len(demands), len(keys))
    for cell, new in _trace_anew([cell for cell in keys if cell not in demands], properties, processes):
        demands[cell] = new
        if isinstance(new, Demand):
            kept.put(keys[cell], _to_entry(new))
        progress("tracing training steps", len(demands), len(keys))
    return {cell: demands[traced] for cell, traced in asked.items()}


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
) -> Iterable[tuple[Cell, Demand | str]]:
    apart = processes if min(processes, len(cells)) > 1 else 0
    # Set before NumPy is imported. Huge pages are set up when memory is asked for, and a trace touches none of it.
    environment = {"NUMPY_MADVISE_HUGEPAGE": "0"}
    for cell, answer in spawn.spread(cells, functools.partial(_trace, properties), apart, environment):
        if isinstance(answer, spawn.Died):
            raise TcbenchError(
                "a process that traced a training step was killed, most likely for memory: "
                "go on with fewer cells at a time, e.g. --bs 32"
            )
        yield cell, answer


@functools.cache
def program(beside: tuple[str, ...] = ()) -> str:
    """A digest of the traced program: our sources, those of packages `beside` it, and the version of the framework
    under them."""
    digest = hashlib.sha256()
    package = Path(tcbench.__file__).parent
    for path in sorted(path for part in (*TRACED, *beside) for path in (package / part).rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode())
        digest.update(path.read_bytes())
    digest.update(f"chainer {importlib.metadata.version('chainer')}".encode())
    return digest.hexdigest()[:32]


TRACED = ("core", *(f"engine/{part}" for part in ("accelerators", "backends", "models", "work")))
"""The packages that a trace runs through."""


def _to_entry(demand: Demand) -> Entry:
    works = [(work.key, count) for work, count in demand.works]
    in_order = {"phases": list(demand.phases.items()), "works": works}  # the cache sorts keys
    return Entry(msgspec.to_builtins(replace(demand, works=())) | in_order)


def _from_entry(entry: Entry | None) -> Demand | None:
    """None for an entry that is missing or not understood."""
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
    """The work that a key describes. Raises ValueError or KeyError for one of another version."""
    fields: dict[str, Any] = json.loads(key)
    kind = _kinds()[fields.pop("work")]
    return msgspec.convert(fields, kind, strict=False)


@functools.cache
def _kinds() -> dict[str, type[Work]]:
    kinds = [Work]
    for kind in kinds:  # which grows meanwhile
        kinds += kind.__subclasses__()
    return {kind.name: kind for kind in kinds[1:]}
