"""cuDNN's plans for a GPU that this machine lacks: whether there is a plan for each operation, which one, its
workspace.

With `build`, cuDNN compiles each plan for that GPU, which proves that the plan builds. This takes a core for up to a
second per batch normalisation. Without `build`, plans that would have to be compiled are judged by their configuration.
`plan_all` distributes the work over processes."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace

from tcbench.core import spawn
from tcbench.core.cache import Cache
from tcbench.engine.accelerators.cuda.cudnn import graphs, libraries, plans
from tcbench.engine.accelerators.cuda.cudnn.plans import NoPlan, PlanFacts
from tcbench.engine.work import Work
from tcbench.hardware.gpus import GpuFile

Answer = PlanFacts | NoPlan
Progress = Callable[[int, int], None]
"""A callback, called with (answers so far, answers in total)."""


def plan_without_device(work: Work, gpu: GpuFile, workspace_limit: int, *, build: bool = True) -> PlanFacts:
    """Return the first plan of cuDNN's heuristic within the workspace limit (bytes). Raises NoPlan, LibraryError."""
    search = plans.Search(work, graphs.absent_target(gpu.json, gpu.sm), gpu.sm, workspace_limit)
    chosen = search.first(build=build)
    return PlanFacts(chosen.plan, chosen.workspace_bytes, chosen.place, search.offered)


def plan_all(
    works: Iterable[Work],
    gpu: GpuFile,
    workspace_limit: int,
    *,
    build: bool = True,
    processes: int = 2,
    progress: Progress | None = None,
    cache: Cache | None = None,
) -> dict[str, Answer]:
    """Return the plan of each operation, or why there is none, by `work.key` in the order of `works`. Raises
    LibraryError.

    Answers come from the cache if possible. If a worker dies, only the operation that it was planning fails; this
    failure is not cached."""
    cache = plans.plan_cache() if cache is None else cache
    distinct = {work.key: work for work in works}
    named_gpu = replace(gpu.properties(), name=f"{gpu.device_name} {gpu.digest}")
    key_of = functools.partial(plans.cache_key, autotuned=False, present=False, built=build)
    keys = {name: key_of(work, named_gpu, workspace_limit) for name, work in distinct.items()}
    cached = {name: plans.from_entry(cache.get(key)) for name, key in keys.items()}
    answers: dict[str, Answer] = {name: answer for name, answer in cached.items() if answer is not None}
    missing = [work for name, work in distinct.items() if name not in answers]
    if progress:
        progress(len(answers), len(distinct))
    if missing:
        # Raises a single LibraryError here, where otherwise every worker would fail.
        libraries.frontend()
    # Longest first: a batch normalisation takes half a second, a convolution milliseconds.
    missing.sort(key=lambda work: hasattr(work, "conv"))
    workers = processes if min(processes, len(missing)) > 1 else 0
    plan = functools.partial(_answer, gpu, workspace_limit, build)
    for work, response in spawn.spread(missing, plan, workers, plans.WITHOUT_GPU):
        answer, is_lasting = _read_response(response)
        answers[work.key] = answer
        if is_lasting:
            cache.put(keys[work.key], plans.to_entry(answer))
        if progress:
            progress(len(answers), len(distinct))
    return {name: answers[name] for name in distinct}


def _answer(gpu: GpuFile, workspace_limit: int, build: bool, work: Work) -> Answer | str:
    """Return an operation's plan or NoPlan; for any other error, a text that describes it."""
    try:
        return plan_without_device(work, gpu, workspace_limit, build=build)
    except NoPlan as no_plan:
        return no_plan
    except Exception as error:
        return f"its plan cannot be built ({type(error).__name__}: {' '.join(str(error).split())[:300]})"


def _read_response(answer: Answer | str | spawn.Died) -> tuple[Answer, bool]:
    """Return a worker's response as an answer, and whether to cache it. Temporary failures are not cached."""
    if isinstance(answer, spawn.Died):
        answer = "the process that built its plan died"
    if isinstance(answer, str):
        return NoPlan(answer, lasting=False), False
    return answer, isinstance(answer, PlanFacts) or answer.lasting
