"""The parts of steps that were not run, on this machine and on cards that are not here: told once, and kept.

A cell that computes on the host is rehearsed in a process of its own (`tcbench.engine.measure.rehearsal`). One on a
GPU, or on a model of one, is traced, and its works have the times of the table
(`tcbench.engine.accelerators.attained`). `tcbench.core.step_time` makes a step of the parts.
"""

import contextlib
import functools
import logging
import platform
import sys
from collections.abc import Iterable, Sequence

import msgspec

import tcbench
from tcbench.analysis.advice import effects_of
from tcbench.analysis.explanation import Explanation, explain, with_rungs
from tcbench.analysis.summary import CellSummary
from tcbench.core import cache, process
from tcbench.core.cache import Cache, Entry, Key
from tcbench.core.process import Fault, Worker
from tcbench.core.progress import Progress
from tcbench.core.record import BUSY, Cell, Environment, MeasureSettings, Record
from tcbench.core.step_time import StepTime, StepTimeOrReason
from tcbench.engine.api import attained, backend, builds_models, host_device, kind_of
from tcbench.hardware import machine
from tcbench.hardware.gpus import GpuFile
from tcbench.run.ceilings import card_of
from tcbench.run.demand import Demand, program, trace_all
from tcbench.run.devices import runs_on_host
from tcbench.run.plan import Plan, advisable
from tcbench.run.worker_launch import python_module, worker_environment

_LOG = logging.getLogger(__name__)

TIMES = "step-times-v1"
"""Names the form of kept parts."""
_REHEARSES = ("engine/feeds", "engine/measure")
"""What a rehearsal runs through beside what a trace does."""
PREPARING_S = 40e-6
"""What a launch that the program binds anew takes a host beside the driver: 35 to 50 microseconds in place on a Xeon of
2023. Only proportions of it are used."""
_STAGE, _LIMIT_S = "timing what steps launch", 3600.0


def kept(cells: Iterable[Cell]) -> dict[Cell, StepTime]:
    """The parts of those cells that are known already."""
    known, parts = Cache(cache.folder(TIMES)), dict[Cell, StepTime]()
    for cell in filter(runs_on_host, cells):
        # What is not understood counts as missing.
        if (entry := known.get(_key(cell))) is not None:
            with contextlib.suppress(msgspec.ValidationError):
                parts[cell] = msgspec.convert(entry.content, StepTime)
    return parts


def foreseen(plan: Plan) -> dict[Cell, float]:
    """Seconds of a step of those cells of a plan, as far as they are kept."""
    if not cache.folder(TIMES).exists():
        return {}
    return {cell: parts.step_s for cell, parts in kept(planned.cell for planned in plan.cells).items()}


def predict(cells: Iterable[Cell], *, fresh: bool, progress: Progress) -> dict[Cell, StepTimeOrReason]:
    """The parts of each cell's step on this machine's processor, from the cache or timed now; or why they are not
    known. Each answer is kept as it comes: interrupted, the same call goes on from there. What was timed while others
    had the processors is not: it would be wrong as long as it is kept."""
    asked = list(dict.fromkeys(cells))
    told: dict[Cell, StepTimeOrReason] = dict(() if fresh else kept(asked))
    left = [cell for cell in asked if cell not in told]
    progress(_STAGE, len(told), len(asked))
    known, lost = Cache(cache.folder(TIMES)), list[float]()
    for cell, answer in _rehearsed(left):
        told[cell] = answer or "nothing is known of it"
        if isinstance(answer, StepTime):
            if answer.lost < BUSY:
                known.put(_key(cell), Entry(msgspec.to_builtins(answer)))
            lost.append(answer.lost)
        progress(_STAGE, len(told), len(asked))
    if busy := [share for share in lost if share >= BUSY]:
        _LOG.warning(
            "busy machine: others had up to %.0f%% of the processor time while %d of %d steps were timed; what is "
            "expected of these is too slow, and is not kept",
            *(100 * max(busy), len(busy), len(lost)),
        )
    return {cell: told[cell] for cell in asked}


def _rehearsed(cells: Sequence[Cell]) -> Iterable[tuple[Cell, StepTimeOrReason]]:
    """Each cell's answer: those with the same number of threads in one process, which libraries tell it as they are
    imported."""
    for threads in dict.fromkeys(cell.threads for cell in cells):
        alike = [cell for cell in cells if cell.threads == threads]
        # What a step launches is timed in full for the first of those that launch the same.
        worker = Worker(
            lambda pipe: python_module(sys.executable, "tcbench.engine.measure.rehearsal", str(pipe)),
            msgspec.json.encode(alike),
            msgspec.json.Decoder(StepTimeOrReason).decode,
            timeout_s=_LIMIT_S,
            environment=worker_environment(alike[0]),
        )
        try:
            while alike:
                for _, answer in process.receive([worker]):
                    if isinstance(answer, Fault):
                        yield from ((cell, answer.reason) for cell in alike)
                        alike = []
                        break
                    yield alike.pop(0), answer
        finally:
            worker.end(patiently=not alike)


def _was_here(environment: Environment | None) -> bool:
    """Whether this code, on this very machine, is what was measured: machines of one name may differ."""
    if environment is None or environment.machine != host_device().machine:
        return False
    if environment.processor not in ("", machine.processor()):
        return False
    facts = platform.release(), machine.memory_bytes(), tcbench.__version__, machine.commit(), machine.sources()
    of = environment
    return facts == (of.kernel, of.memory_bytes, of.tcbench, of.commit, of.sources)


def _key(cell: Cell) -> Key:
    """Everything that decides the parts: the cell without what a rehearsal does not read, the machine, the program."""
    same = msgspec.structs.replace(
        cell, scenario="", config="+".join(cell.rungs), seed=0, measure=MeasureSettings(), base=None
    )
    here = host_device()
    return {
        "cell": same.key,
        "machine": here.machine,
        "processor": machine.processor(),
        "library": kind_of(here.name).library() or "",
        "packages": _versions(cell.backend),
        "program": program(_REHEARSES),
    }


def _can_be_rehearsed(cell: Cell) -> bool:
    """Whether its backend is ours, and what its rungs need is installed."""
    if not builds_models(cell.backend):
        return False
    rungs = backend(cell.backend).RUNGS
    requirements = [rungs[name].requires for name in cell.rungs if name in rungs]
    return all(package.is_installed() for requires in requirements for package in requires.packages)


@functools.cache
def _versions(name: str) -> str:
    """Of the packages of a backend of ours; of no other, whose module would be imported to tell them."""
    packages = backend(name).PACKAGES if builds_models(name) else ()
    return " ".join(f"{package} {version}" for package, version in machine.versions(packages).items())


# -- of the configs that could be tried beside measured ones ---------------------------------------------------------


def explained(records: Iterable[Record], *, processes: int, progress: Progress) -> tuple[Explanation, ...]:
    """What holds cells back and what could be tried, with what the model expects of it. Parts of steps are told for
    those cells of which the same results know nothing faster, and of all others taken where they are kept. No
    `processes`: only what is kept."""
    records = tuple(records)
    asked: dict[Cell, CellSummary] = {}
    at_once: dict[Cell, set[Cell]] = {}
    for e in explain(records, advisable):
        if e.bottleneck is not None:
            own = e.summary.cell
            others = {with_rungs(own, gain.rungs): gain for gain in e.gains}
            asked |= dict.fromkeys([own, *others], e.summary)
            if e.advice is None or e.advice.ratio is None:
                at_once[own] = {cell for cell, gain in others.items() if gain.ratio is None}
    here = [cell for cell, summary in asked.items() if runs_on_host(cell) and _was_here(summary.environment)]
    by_host = [cell for cell in here if _can_be_rehearsed(cell)]
    parts = kept(by_host)
    if processes:
        # What others are set beside is rehearsed with them: parts of another moment are of another load.
        left = {own: (others & {*by_host}) - parts.keys() for own, others in at_once.items()}
        new = {cell for own, others in left.items() if others or own not in parts for cell in (own, *others)}
        told = predict([cell for cell in by_host if cell in new], fresh=True, progress=progress)
        parts |= {cell: answer for cell, answer in told.items() if isinstance(answer, StepTime)}
    by_name = {cell: card_of(summary) for cell, summary in asked.items() if cell not in here and cell.ranks == 1}
    for card in dict.fromkeys(filter(None, by_name.values())):
        on_card = [cell for cell, its in by_name.items() if its == card]
        parts |= by_table(on_card, card, processes=0, progress=progress)
        if processes:
            at_all = at_once.keys() | set[Cell]().union(*at_once.values())
            new_on_card = [cell for cell in on_card if cell in at_all and cell not in parts]
            parts |= by_table(new_on_card, card, processes=processes, progress=progress)
    return explain(records, advisable, parts)


def by_table(cells: Sequence[Cell], card: GpuFile, *, processes: int, progress: Progress) -> dict[Cell, StepTime]:
    """The parts of those cells' steps on a card that can be traced."""
    driver_s = attained(card).driver_s["kernel"]
    demands = trace_all(cells, card.properties(), fresh=False, processes=processes, progress=progress) if cells else {}
    return {
        cell: StepTime(
            device_s=sum(count * attained(card).expected_s(work) for work, count in demand.works),
            host_s=demand.prepared * PREPARING_S + demand.requests * driver_s,
            overlapped="overlap" in effects_of(cell.rungs),
        )
        for cell, demand in demands.items()
        if isinstance(demand, Demand)
    }
