"""Building cuDNN's plans on all cores before the first trial, which would build them one after another.

cuDNN uses one core to build a plan, and half a second for each plan that it compiles: half a minute for a step of
ResNet-50 with fused batch normalisation. Here worker processes build plans from the GPU's properties, without using
the GPU, and serialize them. The trial that needs a plan restores it and times it with the other candidates."""

import functools
import math
from collections.abc import Iterable, Sequence

from tcbench.core import messages, spawn
from tcbench.core.cache import Cache
from tcbench.core.progress import Progress
from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.cuda.cudnn import graphs, libraries, plans
from tcbench.engine.work import Work
from tcbench.hardware.gpus import GpuProperties

MOST_PROCESSES = 16
"""The most worker processes. Each takes a core and loads cuDNN and its compiler."""
_FIRST_VERSION = (9, 11)
"""The first cuDNN version for which plans are built ahead: NVIDIA's test of plans built without a device needs it."""


def build(
    index: int, gpu: GpuProperties, works: Iterable[tuple[Work, CudnnSettings]], processes: int, progress: Progress
) -> str:
    """Compile and cache the plans that trials on the GPU that CUDA calls `index` will time.

    Takes at most the tuning budget of one trial. Returns a sentence about plans that were compiled earlier, or why such
    plans are not used; "" if there are none. Raises LibraryError, and cuDNN's own error if it does not know
    the GPU. Plans that do not build are skipped here; the trial reports the reason."""
    budget_s = messages.tuning_budget_s()
    if tuple(map(int, libraries.version().split("."))) < _FIRST_VERSION:
        return ""
    untuned = _untuned(gpu, works)
    most = plans.compiled_timed(budget_s)
    missing, n_compiled = missing_works(gpu, untuned, most)
    line = f"cuDNN: {n_compiled} plans for {len(untuned)} operations of this run are already compiled"
    if not n_compiled:  # looked up before the plans compiled here exist
        line = _mismatch_line(gpu, untuned)
    if missing:
        compile_for(_properties(index), gpu, missing, most, processes, progress, budget_s)
    return line


def _untuned(gpu: GpuProperties, works: Iterable[tuple[Work, CudnnSettings]]) -> list[tuple[Work, int]]:
    """Return the operations whose plans a trial will time, each with its workspace limit in bytes."""
    tuned = plans.plan_cache(messages.fresh_autotune())
    limited = ((work, settings.workspace_bytes) for work, settings in works if settings.autotune)
    return [
        (work, limit)
        for work, limit in dict.fromkeys(limited)
        if work.kind == "graph" and tuned.get(plans.cache_key(work, gpu, limit, autotuned=True, present=True)) is None
    ]


def missing_works(
    gpu: GpuProperties, works: Iterable[tuple[Work, int]], most: float
) -> tuple[list[tuple[Work, int]], int]:
    """Return the operations that lack any of their first `most` plans, and how many plans the others have."""
    cache = plans.built_cache()
    missing, n_compiled = [], 0
    for work, limit in works:
        entry = cache.get(plans.built_key(work, gpu, limit))
        if entry is None or entry.content.get("asked", 0) < most:
            missing.append((work, limit))
        else:
            n_compiled += len(plans.built_from_entry(entry))
    return missing, n_compiled


def compile_for(
    properties: str,
    gpu: GpuProperties,
    works: Sequence[tuple[Work, int]],
    most: float,
    processes: int,
    progress: Progress,
    limit_s: float = math.inf,
) -> None:
    """Compile and cache up to `most` plans of each operation. `properties`: the GPU's, in cuDNN's JSON form."""
    activity = "compiling cuDNN's plans (first run only)"
    progress(activity, 0, len(works))
    compile_work = functools.partial(_build, properties, gpu, most)
    answers = spawn.spread(works, compile_work, min(processes, MOST_PROCESSES), plans.WITHOUT_GPU, limit_s)
    for done, _ in enumerate(answers, start=1):
        progress(activity, done, len(works))


def _mismatch_line(gpu: GpuProperties, works: Sequence[tuple[Work, int]]) -> str:
    """Return why existing plans are not used; "" if there are none, or if no operation needs one."""
    cache, folder = plans.built_cache(), plans.built_folder()
    for key in Cache(folder).keys() if works else ():
        needed = plans.built_key(works[0][0], gpu, works[0][1])
        if differing := [name for name in needed if name != "work" and key.get(name) != needed[name]]:
            pairs = ", ".join(f"{name} {key.get(name)} (this machine has {needed[name]})" for name in differing)
            return f"cuDNN: ignoring the plans in {folder}: compiled for {pairs}"
        if cache.root != folder or cache.get(key) is None:
            reason = "they are damaged, or the folder is writable by other users"
            return f"cuDNN: ignoring the plans in {folder}: {reason} (chmod -R go-w {folder.parent})"
    return ""


def _properties(index: int) -> str:
    """Return the GPU's properties in cuDNN's form. A child process asks, since this one must not load CUDA."""
    with spawn.pool(1) as pool:
        return pool.submit(graphs.present_properties, index).result()


def _build(properties: str, gpu: GpuProperties, most: float, limited: tuple[Work, int]) -> None:
    """Build and cache the plans of an operation with a workspace limit (bytes). Errors are left to the trial."""
    work, limit = limited
    try:
        search = plans.Search(work, graphs.absent_target(properties, gpu.sm), gpu.sm, limit)
        built = search.compiled(most)
    except Exception:
        return
    plans.built_cache().put(plans.built_key(work, gpu, limit), plans.built_to_entry(built, most))
