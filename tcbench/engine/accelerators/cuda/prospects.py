"""Forecasts for a GPU that this machine may lack: cuDNN's plans for it, and kernels compiled for it.

Without cuDNN or NVRTC the forecast gives the reason instead, with the command that installs it."""

from collections.abc import Iterable

from tcbench.core.groups import grouped
from tcbench.core.progress import Progress
from tcbench.engine.accelerators.cuda import packages
from tcbench.engine.accelerators.cuda.cudnn import absent, libraries
from tcbench.engine.accelerators.cuda.cudnn.plans import NoPlan, PlanFacts, plan_cache
from tcbench.engine.accelerators.cuda.kernels import compile as kernels
from tcbench.engine.accelerators.cuda.kernels.launches import launch_of
from tcbench.engine.accelerators.device import Prospects, Way
from tcbench.engine.work import Work
from tcbench.hardware.gpus import GpuFile

_Plans = dict[tuple[int, str], PlanFacts | NoPlan]
"""Plans by workspace limit (bytes) and the operation's key."""
_Problems = dict[Work, str | None]
"""Operations of our own kernels, each with the reason why the kernel does not compile, or None."""


def forecast_works(
    works: Iterable[tuple[Work, int]], figures: GpuFile, *, fresh: bool, processes: int, progress: Progress
) -> Prospects:
    """Return how the GPU would do some operations within their workspace limits (see `DeviceKind.prospects`)."""
    works = tuple(works)
    plans, plans_unchecked = _plans(works, figures, fresh, processes, progress)
    problems, kernels_unchecked = _kernels((work for work, _ in works), figures, progress)

    def way(work: Work, limit: int) -> Way:
        """Return how the GPU would do an operation: by a call of cuDNN, a kernel, or a plan within `limit` bytes."""
        if work.kind == "call":
            return Way(work.name)
        if work.kind == "kernel":
            problem = problems.get(work)
            return Way(None if problem or work not in problems else launch_of(work).function, problem=problem)
        answer = plans.get((limit, work.key))
        if answer is None:
            return Way(None, limit)
        if isinstance(answer, NoPlan):
            return Way(None, problem=answer.reason)
        return Way(answer.plan, answer.workspace_bytes)

    return Prospects(way, None if plans_unchecked else libraries.version(), plans_unchecked, kernels_unchecked)


def _plans(
    works: Iterable[tuple[Work, int]], figures: GpuFile, fresh: bool, processes: int, progress: Progress
) -> tuple[_Plans, str | None]:
    """Return cuDNN's plans, and why plans cannot be searched for on this machine, or None if they can."""
    by_limit = grouped(dict.fromkeys((limit, work) for work, limit in works if work.kind == "graph"))
    total = sum(len(graphs) for graphs in by_limit.values())
    plans: _Plans = {}

    def report(done: int, _: int) -> None:
        progress("looking for cuDNN plans", len(plans) + done, total)

    try:
        for limit, graphs in by_limit.items():
            answers = absent.plan_all(
                graphs, figures, limit, build=False, processes=processes, progress=report, cache=plan_cache(fresh)
            )
            plans.update({(limit, key): answer for key, answer in answers.items()})
    except libraries.LibraryError as error:
        return {}, str(error)
    return plans, None


def _kernels(works: Iterable[Work], figures: GpuFile, progress: Progress) -> tuple[_Problems, str | None]:
    """Compile our kernels for these operations.

    Return each operation's problem, or None if its kernel compiles; and why no kernel can be compiled here, or None."""
    launches = {work: launch_of(work) for work in dict.fromkeys(works) if work.kind == "kernel"}
    distinct = list(dict.fromkeys((launch.source, launch.defines) for launch in launches.values()))
    problems: dict[tuple[str, tuple[str, ...]], str | None] = {}
    for source, defines in distinct:
        try:
            kernels.compile_kernel(source, defines, figures.sm)
            problems[source, defines] = None
        except kernels.CompileError as error:
            problems[source, defines] = " ".join(str(error).split())[:300]
        except (ImportError, RuntimeError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            return {}, f"{first}: {packages.SYNC}"
        progress("compiling kernels", len(problems), len(distinct))
    return {work: problems[launch.source, launch.defines] for work, launch in launches.items()}, None
