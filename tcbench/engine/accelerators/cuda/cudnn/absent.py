"""Plans for a GPU that is not there: whether cuDNN has one for each piece of work, which, and how much workspace.

cuDNN compiles what it needs for that GPU as if it were to run it, so that an answer with `build` is a proof that the
plan builds, not a guess. That holds one core for up to a second per batch normalisation; without `build` those plans
that cuDNN would compile are taken from their configurations. `plan_all` spreads the work over processes."""

import contextlib
import functools
import logging
import multiprocessing
import multiprocessing.connection
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from tcbench.core.cache import Cache
from tcbench.engine.accelerators.cuda.cudnn import graphs, libraries, plans
from tcbench.engine.accelerators.cuda.cudnn.plans import NoPlan, PlanFacts
from tcbench.engine.work import Work
from tcbench.hardware.gpus import GpuFile

_LOG = logging.getLogger(__name__)

Answer = PlanFacts | NoPlan
Progress = Callable[[int, int], None]
"""Called with (answers so far, answers in all)."""


def plan_without_device(work: Work, gpu: GpuFile, workspace_limit: int, *, build: bool = True) -> PlanFacts:
    """The heuristic's first plan within the workspace limit (bytes). Raises NoPlan, LibraryError."""
    search = plans.Search(work, graphs.absent_target(gpu), gpu.sm, workspace_limit)
    chosen = search.first(build=build)
    serialized_bytes = len(search.serialize()) if build else 0
    return PlanFacts(chosen.plan, chosen.workspace_bytes, chosen.place, search.offered, serialized_bytes)


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
    for work, answer, kept in _answers(missing, functools.partial(_answer, gpu, workspace_limit, build), processes):
        answers[work.key] = answer
        if kept:
            cache.put(keys[work.key], plans.to_entry(answer))
        if progress:
            progress(len(answers), len(distinct))
    return {name: answers[name] for name in distinct}


# -- worker processes ----------------------------------------------------------------------------------------------


_Ask = Callable[[Work], "Answer | str"]


def _answers(works: list[Work], ask: _Ask, processes: int) -> Iterator[tuple[Work, Answer, bool]]:
    """Each work, its answer, and whether that is worth keeping, as they come."""
    # A batch normalisation takes half a second, a convolution milliseconds: long ones first keep all busy to the end.
    todo = deque(sorted(works, key=lambda work: hasattr(work, "conv")))
    if processes <= 1 or len(todo) <= 1:
        for work in todo:
            yield work, *_judged(ask(work))
        return
    with contextlib.ExitStack() as stack:
        crew: dict[Connection, _Worker] = {}

        def hire() -> None:
            worker = _Worker.start(ask)
            stack.callback(worker.stop)
            crew[worker.pipe] = worker
            worker.give(todo.popleft())

        while todo and len(crew) < processes:
            hire()
        while crew:
            for ready in multiprocessing.connection.wait(list(crew)):
                worker = crew[ready]  # type: ignore[index]
                work = worker.at
                try:
                    answer = worker.pipe.recv()
                except (EOFError, OSError):
                    del crew[worker.pipe]
                    yield work, NoPlan(f"the process that built its plan died ({worker.cause()})"), False
                    if todo:
                        hire()
                    continue
                yield work, *_judged(answer)
                if todo:
                    worker.give(todo.popleft())
                else:
                    del crew[worker.pipe]


@dataclass
class _Worker:
    """A process that answers one work after another."""

    process: BaseProcess
    pipe: Connection
    at: Work

    @classmethod
    def start(cls, ask: _Ask) -> "_Worker":
        # Not forked: cuDNN's threads and the driver's state would not survive it.
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, ask), daemon=True)
        process.start()
        theirs.close()
        return cls(process, pipe, Work())

    def give(self, work: Work) -> None:
        self.at = work
        with contextlib.suppress(OSError):
            # A process that is dead already is noticed when its answer is read.
            self.pipe.send(work)

    def cause(self) -> str:
        self.process.join(5)
        code = self.process.exitcode
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return f"exit code {code}"

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(1)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()


def _work(pipe: Connection, ask: _Ask) -> None:
    """In the worker: an answer for each work, until there is no more."""
    # Whoever presses Ctrl-C reaches the whole group; the process that asked then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            work: Any = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(ask(work))


def _answer(gpu: GpuFile, workspace_limit: int, build: bool, work: Work) -> Answer | str:
    """The plan, that there is none, or in a text that something went wrong."""
    try:
        return plan_without_device(work, gpu, workspace_limit, build=build)
    except NoPlan as none:
        return none
    except Exception as error:
        return f"its plan cannot be built ({type(error).__name__}: {' '.join(str(error).split())[:300]})"


def _judged(answer: Answer | str) -> tuple[Answer, bool]:
    """The answer, and whether it is worth keeping: a mishap is not."""
    if isinstance(answer, str):
        return NoPlan(answer, lasting=False), False
    return answer, isinstance(answer, PlanFacts) or answer.lasting
