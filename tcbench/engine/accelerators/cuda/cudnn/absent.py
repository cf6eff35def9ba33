"""Plans for a GPU that is not there: whether cuDNN has one for each piece of work, which, and how much workspace.

cuDNN compiles what it needs for that GPU as if it were to run it, so that an answer with `build` is a proof that the
plan builds, not a guess. That holds one core for up to a second per batch normalisation; without `build` those plans
that cuDNN would compile are taken from their configurations. `plan_all` spreads the work over processes."""

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
"""Called with (answers so far, answers in all)."""


def plan_without_device(work: Work, gpu: GpuFile, workspace_limit: int, *, build: bool = True) -> PlanFacts:
    """The heuristic's first plan within the workspace limit (bytes). Raises NoPlan, LibraryError."""
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
    """By `work.key`, in the order of `works`: the plan's facts, or why there is none. Raises LibraryError. Answers are
    taken from the cache where it has them. A worker that dies takes only the graph that it was at with it: that one's
    answer says so, and is not kept."""
    cache = plans.plan_cache() if cache is None else cache
    distinct = {work.key: work for work in works}
    known = replace(gpu.properties(), name=f"{gpu.device_name} {gpu.digest}")
    of = {"autotuned": False, "present": False, "built": build}
    keys = {name: plans.cache_key(work, known, workspace_limit, **of) for name, work in distinct.items()}
    answers: dict[str, Answer] = {}
    for name in distinct:
        entry = cache.get(keys[name])
        answer = plans.from_entry(entry) if entry else None
        if answer is not None:
            answers[name] = answer
    missing = [work for name, work in distinct.items() if name not in answers]
    if progress:
        progress(len(answers), len(distinct))
    if missing:
        # Say here, in one line, what each worker would fail on.
        libraries.frontend()
    # A batch normalisation takes half a second, a convolution milliseconds: long ones first keep all busy to the end.
    missing.sort(key=lambda work: hasattr(work, "conv"))
    apart = processes if min(processes, len(missing)) > 1 else 0
    ask = functools.partial(_answer, gpu, workspace_limit, build)
    for work, given in spawn.spread(missing, ask, apart, plans.WITHOUT_GPU):
        answer, kept = _judged(given)
        answers[work.key] = answer
        if kept:
            cache.put(keys[work.key], plans.to_entry(answer))
        if progress:
            progress(len(answers), len(distinct))
    return {name: answers[name] for name in distinct}


def _answer(gpu: GpuFile, workspace_limit: int, build: bool, work: Work) -> Answer | str:
    """The plan, that there is none, or in a text that something went wrong."""
    try:
        return plan_without_device(work, gpu, workspace_limit, build=build)
    except NoPlan as none:
        return none
    except Exception as error:
        return f"its plan cannot be built ({type(error).__name__}: {' '.join(str(error).split())[:300]})"


def _judged(answer: Answer | str | spawn.Died) -> tuple[Answer, bool]:
    """The answer, and whether it is worth keeping: a mishap is not."""
    if isinstance(answer, spawn.Died):
        answer = "the process that built its plan died"
    if isinstance(answer, str):
        return NoPlan(answer, lasting=False), False
    return answer, isinstance(answer, PlanFacts) or answer.lasting
