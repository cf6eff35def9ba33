"""Predicts the parts of steps that were not run, on this machine and on GPUs that are not here, and caches them.

A cell that computes on the host is rehearsed in a separate process (`tcbench.engine.measure.rehearsal`). A cell on a
real or modelled GPU is traced, and its works get their times from the table (`tcbench.engine.accelerators.attained`).
`tcbench.core.step_time` combines the parts to a step."""

import contextlib
import functools
import itertools
import logging
import sys
from collections.abc import Iterable, Sequence

import msgspec

import tcbench
from tcbench.analysis.advice import effects_of
from tcbench.analysis.explanation import Explanation, explain, with_rungs
from tcbench.analysis.summary import CellSummary
from tcbench.core import cache, process
from tcbench.core.cache import Cache, Entry, Key
from tcbench.core.packages import LADDER
from tcbench.core.process import Fault, Worker
from tcbench.core.progress import Progress
from tcbench.core.record import BUSY, Cell, Environment, MeasureSettings, Record
from tcbench.core.step_time import StepTime, StepTimeOrReason
from tcbench.engine.api import backend, builds_models, host_device, kind_of, timing_model
from tcbench.hardware import machine
from tcbench.hardware.gpus import GpuFile
from tcbench.run.ceilings import card_of
from tcbench.run.demand import Demand, program, trace_all
from tcbench.run.devices import runs_on_host
from tcbench.run.plan import Plan, advisable
from tcbench.run.worker_launch import python_module, worker_environment

_LOG = logging.getLogger(__name__)

TIMES = "step-times-v1"
"""The version of the form of cached parts."""
PREPARING_S = 40e-6
"""Host time to prepare a launch that the program sets up anew, without the driver's part: measured as 35 to 50
microseconds on a Xeon of 2023. Only ratios of it are used."""
_STAGE, _LIMIT_S = "timing the parts of steps", 3600.0


def cached_parts(cells: Iterable[Cell]) -> dict[Cell, StepTime]:
    """Return the parts of the steps of those cells that are in the cache. Only cells that run on the host can be in it;
    entries of another form count as missing."""
    entries, parts = Cache(cache.folder(TIMES)), dict[Cell, StepTime]()
    for cell in filter(runs_on_host, cells):
        if (entry := entries.get(_key(cell))) is not None:
            with contextlib.suppress(msgspec.ValidationError):
                parts[cell] = msgspec.convert(entry.content, StepTime)
    return parts


def foreseen(plan: Plan) -> dict[Cell, float]:
    """Return the predicted seconds of a step for the cells of a plan whose parts are in the cache."""
    if not cache.folder(TIMES).exists():
        return {}
    return {cell: parts.step_s for cell, parts in cached_parts(planned.cell for planned in plan.cells).items()}


def predict(cells: Iterable[Cell], *, fresh: bool, progress: Progress) -> dict[Cell, StepTimeOrReason]:
    """Return the parts of each cell's step on this machine's processor, or the reason why they are unknown. They come
    from the cache unless `fresh`, else they are timed now.

    Each result is cached at once, so that nothing is timed again after an interruption. Steps that were timed while the
    machine was busy are not cached."""
    cells = list(dict.fromkeys(cells))
    answers: dict[Cell, StepTimeOrReason] = dict(() if fresh else cached_parts(cells))
    missing = [cell for cell in cells if cell not in answers]
    progress(_STAGE, len(answers), len(cells))
    entries, lost = Cache(cache.folder(TIMES)), list[float]()
    for cell, answer in _rehearsed(missing):
        answers[cell] = answer or "the rehearsal gave no answer"
        if isinstance(answer, StepTime):
            if answer.lost < BUSY:
                entries.put(_key(cell), Entry(msgspec.to_builtins(answer)))
            lost.append(answer.lost)
        progress(_STAGE, len(answers), len(cells))
    if busy := [share for share in lost if share >= BUSY]:
        _LOG.warning(
            "busy machine: other processes used up to %.0f%% of the processor time while %d of %d steps were timed; "
            "their predicted times are too long, and are not stored",
            *(100 * max(busy), len(busy), len(lost)),
        )
    return {cell: answers[cell] for cell in cells}


def _rehearsed(cells: Sequence[Cell]) -> Iterable[tuple[Cell, StepTimeOrReason]]:
    """Time the parts of the cells' steps, and yield each cell with its parts or the reason why they are unknown. Cells
    with the same number of threads share a process, since libraries read the number at import."""
    for threads in dict.fromkeys(cell.threads for cell in cells):
        waiting = [cell for cell in cells if cell.threads == threads]
        # Cells that launch the same works share their times, so they are rehearsed together.
        worker = Worker(
            lambda pipe: python_module(sys.executable, "tcbench.engine.measure.rehearsal", str(pipe)),
            msgspec.json.encode(waiting),
            msgspec.json.Decoder(StepTimeOrReason).decode,
            timeout_s=_LIMIT_S,
            environment=worker_environment(waiting[0]),
        )
        try:
            while waiting:
                for _, answer in process.receive([worker]):
                    if isinstance(answer, Fault):
                        yield from ((cell, answer.reason) for cell in waiting)
                        waiting = []
                        break
                    yield waiting.pop(0), answer
        finally:
            worker.end(patiently=not waiting)


def _was_here(environment: Environment | None) -> bool:
    """Return whether results with this environment were measured by the present code of tcbench on this very machine.
    The machine's name alone does not tell."""
    if environment is None or environment.machine != host_device().machine or not machine.is_machine_of(environment):
        return False
    code = environment.tcbench, environment.commit, environment.sources
    return code == (tcbench.__version__, machine.commit(), machine.sources())


def _key(cell: Cell) -> Key:
    """Return the cache key of a cell's parts: the cell without settings that a rehearsal ignores, the machine, and the
    program."""
    same = msgspec.structs.replace(
        cell, scenario="", config="+".join(cell.rungs), seed=0, measure=MeasureSettings(), base=None
    )
    device = host_device()
    return {
        "cell": same.key,
        "machine": device.machine,
        "processor": machine.processor(),
        "library": kind_of(device.name).library() or "",
        "packages": _versions(cell.backend),
        "program": program(),
    }


def _can_be_rehearsed(cell: Cell) -> bool:
    """Return whether the cell's backend is part of tcbench and the packages of its rungs are installed."""
    if not builds_models(cell.backend):
        return False
    rungs = backend(cell.backend).RUNGS
    requirements = [rungs[name].requires for name in cell.rungs if name in rungs]
    return all(package.is_installed() for requires in requirements for package in requires.packages)


@functools.cache
def _versions(name: str) -> str:
    """Return the packages of a backend with their versions, as one line. Empty for a user's own backend, since its
    module would have to be imported."""
    packages = backend(name).PACKAGES if builds_models(name) else ()
    return " ".join(f"{package} {version}" for package, version in machine.versions(packages).items())


# -- configs that could be tried in addition to measured ones --------------------------------------------------------


def explain_with_predictions(
    records: Iterable[Record], *, processes: int, progress: Progress
) -> tuple[Explanation, ...]:
    """Return the explanation of each measured cell, with predicted rates for configs that could be tried.

    If no measured config is significantly faster than a cell, the steps of the configs that could be tried in its place
    are timed or traced now, in `processes` processes. For other cells, with 0 `processes`, and without the extra
    `ladder`, only cached parts are used."""
    records = tuple(records)
    processes *= all(package.is_installed() for package in LADDER)
    summaries: dict[Cell, CellSummary] = {}
    to_predict: dict[Cell, set[Cell]] = {}  # measured cells with the configs that could be tried in their place
    for explanation in explain(records, advisable):
        if explanation.bottleneck is not None:
            cell = explanation.summary.cell
            candidates = {with_rungs(cell, gain.rungs): gain for gain in explanation.gains}
            summaries |= dict.fromkeys([cell, *candidates], explanation.summary)
            if explanation.advice is None or explanation.advice.ratio is None:
                to_predict[cell] = {candidate for candidate, gain in candidates.items() if gain.ratio is None}
    on_host = [cell for cell, summary in summaries.items() if runs_on_host(cell) and _was_here(summary.environment)]
    to_rehearse = [cell for cell in on_host if _can_be_rehearsed(cell)]
    parts = cached_parts(to_rehearse)
    if processes:
        # A measured cell is rehearsed together with its candidates, so that all are timed under the same load.
        missing = {cell: (unmeasured & {*to_rehearse}) - parts.keys() for cell, unmeasured in to_predict.items()}
        together = ((cell, *unmeasured) for cell, unmeasured in missing.items() if unmeasured or cell not in parts)
        new = {*itertools.chain.from_iterable(together)}
        answers = predict([cell for cell in to_rehearse if cell in new], fresh=True, progress=progress)
        parts |= {cell: answer for cell, answer in answers.items() if isinstance(answer, StepTime)}
    cards = {cell: card_of(summary) for cell, summary in summaries.items() if cell not in on_host and cell.ranks == 1}
    wanted_cells = to_predict.keys() | set[Cell]().union(*to_predict.values())
    for card in dict.fromkeys(filter(None, cards.values())):
        on_card = [cell for cell, cell_card in cards.items() if cell_card == card]
        parts |= by_table(on_card, card, processes=0, progress=progress)
        if processes:
            new_on_card = [cell for cell in on_card if cell in wanted_cells and cell not in parts]
            parts |= by_table(new_on_card, card, processes=processes, progress=progress)
    return explain(records, advisable, parts)


def by_table(cells: Sequence[Cell], card: GpuFile, *, processes: int, progress: Progress) -> dict[Cell, StepTime]:
    """Return the parts of the cells' steps on a GPU, computed from traces and the GPU's table of attained rates. Cells
    that cannot be traced are left out, as are those without a cached trace if `processes` is 0."""
    driver_s = timing_model(card).driver_s["kernel"]
    demands = trace_all(cells, card.properties(), fresh=False, processes=processes, progress=progress) if cells else {}
    return {
        cell: StepTime(
            device_s=sum(count * timing_model(card).expected_s(work) for work, count in demand.works),
            host_s=demand.prepared * PREPARING_S + demand.requests * driver_s,
            overlapped="overlap" in effects_of(cell.rungs),
        )
        for cell, demand in demands.items()
        if isinstance(demand, Demand)
    }
