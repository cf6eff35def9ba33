"""Plans that are built by all cores before a run's first trial, which else builds them one after another.

cuDNN builds a plan on one core, those that it compiles in half a second each: of a step of ResNet-50 with fused batch
normalisation half a minute. A plan is built for a GPU by its properties, in processes that do not look at it, and
serialized; the trial whose step needs it restores it, and times it beside the others."""

import functools
import math
from collections.abc import Iterable, Sequence

from tcbench.core import messages, spawn
from tcbench.core.cache import Cache
from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.cuda.cudnn import graphs, libraries, plans
from tcbench.engine.accelerators.device import Progress
from tcbench.engine.work import Work
from tcbench.hardware.gpus import GpuProperties

MOST_PROCESSES = 16
"""Each takes a core, and has cuDNN and its compiler loaded."""
_FIRST_VERSION = (9, 11)
"""Of cuDNN: NVIDIA's own test of plans that are built without a device asks for it."""


def build(
    index: int, gpu: GpuProperties, works: Iterable[tuple[Work, CudnnSettings]], processes: int, progress: Progress
) -> str:
    """Compile the plans that trials on the GPU that CUDA calls `index` will time, and keep them for these trials.

    It takes no longer than one trial may tune. Return a sentence about plans that were there before, or why plans that
    are there do not serve; empty if there are none. Raises LibraryError, and what cuDNN raises that does not know the
    GPU; why a work's plans do not build its trial says."""
    budget_s = messages.tuning_budget_s()
    if tuple(map(int, libraries.version().split("."))) < _FIRST_VERSION:
        return ""
    untuned = _untuned(gpu, works)
    most = plans.compiled_timed(budget_s)
    missing, carried = missing_of(gpu, untuned, most)
    said = _carried_line(len(untuned), carried) if carried else _mismatch_line(gpu, untuned)
    if missing:
        compile_for(_properties(index), gpu, missing, most, processes, progress, budget_s)
    return said


def _untuned(gpu: GpuProperties, works: Iterable[tuple[Work, CudnnSettings]]) -> list[tuple[Work, int]]:
    """Return the works whose plans a trial will time, each with its workspace limit."""
    kept = plans.plan_cache(messages.fresh_autotune())
    asked = ((work, settings.workspace_bytes) for work, settings in works if settings.autotune)
    return [
        (work, limit)
        for work, limit in dict.fromkeys(asked)
        if work.kind == "graph" and kept.get(plans.cache_key(work, gpu, limit, autotuned=True, present=True)) is None
    ]


def missing_of(
    gpu: GpuProperties, works: Iterable[tuple[Work, int]], most: float
) -> tuple[list[tuple[Work, int]], int]:
    """Return the works whose first `most` plans are not compiled yet, and how many plans the other works have."""
    cache = plans.built_cache()
    missing, carried = [], 0
    for work, limit in works:
        entry = cache.get(plans.built_key(work, gpu, limit))
        if entry is None or entry.content.get("asked", 0) < most:
            missing.append((work, limit))
        else:
            carried += len(plans.built_from_entry(entry))
    return missing, carried


def compile_for(
    properties: str,
    gpu: GpuProperties,
    works: Sequence[tuple[Work, int]],
    most: float,
    processes: int,
    progress: Progress,
    limit_s: float = math.inf,
) -> None:
    """Compile and keep up to `most` plans of each work for a GPU that `properties` describes in cuDNN's form."""
    what = "compiling cuDNN's plans, once"
    progress(what, 0, len(works))
    ask = functools.partial(_build, properties, gpu, most)
    answers = spawn.spread(works, ask, min(processes, MOST_PROCESSES), plans.WITHOUT_GPU, limit_s)
    for done, _ in enumerate(answers, start=1):
        progress(what, done, len(works))


def _carried_line(works: int, carried: int) -> str:
    return f"cuDNN: {carried} plans for this run's {works} pieces of work were compiled beforehand"


def _mismatch_line(gpu: GpuProperties, works: Sequence[tuple[Work, int]]) -> str:
    """Return why the plans that are there do not serve; empty if there are none, or no work needs one."""
    cache, folder = plans.built_cache(), plans.built_folder()
    for key in Cache(folder).keys() if works else ():
        needed = plans.built_key(works[0][0], gpu, works[0][1])
        if differing := [name for name in needed if name != "work" and key.get(name) != needed[name]]:
            pairs = ", ".join(f"{name} {key.get(name)} (here {needed[name]})" for name in differing)
            return f"cuDNN: the plans in {folder} are not used: they were compiled for {pairs}"
        if cache.root != folder or cache.get(key) is None:
            owned = "they are damaged, or other users can write there"
            return f"cuDNN: the plans in {folder} are not used: {owned} (chmod -R go-w {folder.parent})"
    return ""


def _properties(index: int) -> str:
    """In a process of its own: CUDA stays out of this one, which outlives the trials."""
    with spawn.pool(1) as pool:
        return pool.submit(graphs.present_properties, index).result()


def _build(properties: str, gpu: GpuProperties, most: float, asked: tuple[Work, int]) -> None:
    """Build and keep a work's plans."""
    work, limit = asked
    try:
        search = plans.Search(work, graphs.absent_target(properties, gpu.sm), gpu.sm, limit)
        built = search.compiled(most)
    except Exception:
        return
    plans.built_cache().put(plans.built_key(work, gpu, limit), plans.built_to_entry(built, most))
