"""Plans that are built by all cores before a run's first trial, which else builds them one after another.

cuDNN builds a plan on one core, those that it compiles in half a second each: of a step of ResNet-50 with fused batch
normalisation half a minute. A plan is built for a GPU by its properties, in processes that do not look at it, and
serialized; the trial whose step needs it restores it, and times it beside the others."""

import concurrent.futures
import functools
import logging
import multiprocessing
from collections.abc import Iterable
from typing import Any

from tcbench.core import messages
from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.cuda.cudnn import crew, graphs, plans
from tcbench.engine.accelerators.device import Progress
from tcbench.engine.work import Work
from tcbench.hardware.gpus import GpuProperties

_LOG = logging.getLogger(__name__)

SLOW_S = 0.03
"""A plan that took less to build is left to the trial: restoring one takes as long."""


def build(
    index: int, gpu: GpuProperties, works: Iterable[tuple[Work, CudnnSettings]], processes: int, progress: Progress
) -> None:
    """Build what is slow to build of the plans that trials on the GPU that CUDA calls `index` will time, and keep it
    for them. Never raises: what cannot be built here a trial builds, or says why not."""
    kept, built = plans.plan_cache(messages.fresh_autotune()), plans.built_cache()
    missing: dict[Work, CudnnSettings] = {}
    for work, settings in works:
        if work.kind == "graph" and work not in missing:
            of: dict[str, Any] = {"workspace_bytes": settings.workspace_bytes, "autotuned": settings.autotune}
            if kept.get(plans.cache_key(work, gpu, present=True, **of)) is None:
                key = plans.built_key(work, gpu, tuning_budget_s=messages.tuning_budget_s(), **of)
                if kept.fresh or built.get(key) is None:
                    missing[work] = settings
    if not missing:
        return
    try:
        properties = _properties(index)
    except Exception as error:
        _LOG.info("plans are left to the trials: %s", error)
        return
    what, done = "building cuDNN's plans, once", 0
    progress(what, done, len(missing))
    ask = functools.partial(_build, properties, gpu, missing, messages.tuning_budget_s())
    for work, problem in crew.spread(missing, ask, processes):
        if problem is not None:
            _LOG.info("%s is left to its trial: %s", work.label, problem)
        done += 1
        progress(what, done, len(missing))


def _properties(index: int) -> str:
    """In a process of its own: CUDA stays out of this one, which outlives the trials."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(graphs.present_properties, index).result()


def _build(
    properties: str, gpu: GpuProperties, of: dict[Work, CudnnSettings], budget_s: float, work: Work
) -> str | None:
    """Build and keep a work's plans; why not, where that fails."""
    settings = of[work]
    try:
        search = plans.Search(work, graphs.absent_target(properties, gpu.sm), gpu.sm, settings.workspace_bytes)
        candidates, *_ = search.shortlist({}, lambda: settings.autotune, plans.compiled_timed(budget_s))
        entry = plans.built_to_entry(search.slow(candidates, SLOW_S))
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    of_it: dict[str, Any] = {"autotuned": settings.autotune, "tuning_budget_s": budget_s}
    plans.built_cache().put(plans.built_key(work, gpu, settings.workspace_bytes, **of_it), entry)
    return None
