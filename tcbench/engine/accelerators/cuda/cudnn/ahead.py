"""Plans that are built by all cores before a run's first trial, which else builds them one after another.

cuDNN builds a plan on one core, those that it compiles in half a second each: of a step of ResNet-50 with fused batch
normalisation half a minute. A plan is built for a GPU by its properties, in processes that do not look at it, and
serialized; the trial whose step needs it restores it, and times it beside the others."""

import concurrent.futures
import functools
import signal
from collections.abc import Iterable
from typing import Any

from tcbench.core import messages, process
from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.cuda.cudnn import crew, graphs, libraries, plans
from tcbench.engine.accelerators.device import Progress
from tcbench.engine.work import Work
from tcbench.hardware.gpus import GpuProperties

MOST_PROCESSES = 16
"""Each takes a core, and has cuDNN and its compiler loaded."""
_FIRST_VERSION = (9, 11)
"""Of cuDNN: NVIDIA's own test of plans that are built without a device asks for it."""


def build(
    index: int, gpu: GpuProperties, works: Iterable[tuple[Work, CudnnSettings]], processes: int, progress: Progress
) -> None:
    """Build the plans that cuDNN compiles of those that trials on the GPU that CUDA calls `index` will time, and keep
    them for these trials; for no longer than one may tune. Raises LibraryError, and what cuDNN raises that does not
    know the GPU; why a work's plans do not build its trial says."""
    budget_s = messages.tuning_budget_s()
    version = tuple(map(int, libraries.version().split(".")))
    missing = _missing(gpu, works, budget_s) if version >= _FIRST_VERSION else []
    if not missing:
        return
    what = "compiling cuDNN's plans, once"
    progress(what, 0, len(missing))
    ask = functools.partial(_build, _properties(index), gpu, budget_s)
    for done, _ in enumerate(crew.spread(missing, ask, min(processes, MOST_PROCESSES), budget_s), start=1):
        progress(what, done, len(missing))


def _missing(
    gpu: GpuProperties, works: Iterable[tuple[Work, CudnnSettings]], budget_s: float
) -> list[tuple[Work, int]]:
    """Those that a trial would build plans for, each with its workspace limit, and nobody has."""
    kept, built = plans.plan_cache(messages.fresh_autotune()), plans.built_cache()
    asked = ((work, settings.workspace_bytes) for work, settings in works if settings.autotune)
    return [
        (work, limit)
        for work, limit in dict.fromkeys(asked)
        if work.kind == "graph"
        and kept.get(plans.cache_key(work, gpu, limit, autotuned=True, present=True)) is None
        and (kept.fresh or built.get(plans.built_key(work, gpu, limit, budget_s)) is None)
    ]


def _properties(index: int) -> str:
    """In a process of its own: CUDA stays out of this one, which outlives the trials."""
    ignore: dict[str, Any] = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    with concurrent.futures.ProcessPoolExecutor(1, process.spawn_context(), **ignore) as pool:
        return pool.submit(graphs.present_properties, index).result()


def _build(properties: str, gpu: GpuProperties, budget_s: float, asked: tuple[Work, int]) -> None:
    """Build and keep a work's plans."""
    work, limit = asked
    try:
        search = plans.Search(work, graphs.absent_target(properties, gpu.sm), gpu.sm, limit)
        built = search.compiled(plans.compiled_timed(budget_s))
    except Exception:
        return
    plans.built_cache().put(plans.built_key(work, gpu, limit, budget_s), plans.built_to_entry(built))
