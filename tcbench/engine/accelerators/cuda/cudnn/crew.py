"""Processes that cuDNN builds plans in: building one holds one core, for up to a second."""

import contextlib
import math
import multiprocessing.connection
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from tcbench.core import spawn

Item = TypeVar("Item")


@dataclass(frozen=True)
class Died:
    """In place of an answer: how the process ended that was at it."""

    cause: str


def spread(
    works: Iterable[Item], ask: Callable[[Item], Any], processes: int, limit_s: float = math.inf
) -> Iterator[tuple[Item, Any]]:
    """Each piece of work and what `ask` answers, as they come, until `limit_s` are over; all of them are pickled. A
    process that dies takes only the piece that it was at with it. With no processes the caller's own asks."""
    todo, until_s = deque(works), time.monotonic() + limit_s
    if processes == 0:
        for work in todo:
            yield work, ask(work)
        return
    crew: dict[Connection, _Worker] = {}
    hired: list[_Worker] = []

    def hire() -> None:
        hired.append(_Worker(ask))
        crew[hired[-1].pipe] = hired[-1]
        hired[-1].give(todo.popleft())

    try:
        while todo and len(crew) < processes:
            hire()
        while crew:
            answered = multiprocessing.connection.wait(list(crew), min(until_s - time.monotonic(), 1e6))
            if time.monotonic() >= until_s:
                return
            for ready in answered:
                worker = crew[ready]  # type: ignore[index]
                work = worker.at
                try:
                    answer = worker.pipe.recv()
                except (EOFError, OSError):
                    del crew[worker.pipe]
                    yield work, Died(worker.cause())
                    if todo:
                        hire()
                    continue
                yield work, answer
                if todo:
                    worker.give(todo.popleft())
                else:
                    del crew[worker.pipe]
    finally:
        for worker in hired:
            worker.process.terminate()
        for worker in hired:
            worker.process.join()
            worker.pipe.close()


class _Worker:
    """A process that answers one piece of work after another; `at` is the one that it is at."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        # Not forked: cuDNN's threads and the driver's state would not survive it.
        context = spawn.context()
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, ask), daemon=True)
        self.process.start()
        theirs.close()
        self.at: Any = None

    def give(self, work: Any) -> None:
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


def _work(pipe: Connection, ask: Callable[[Any], Any]) -> None:
    """In the worker: an answer for each piece of work, until there is no more."""
    # Whoever presses Ctrl-C reaches the whole group; the process that asked then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What is built is built for a GPU by its properties: none is looked at, and no memory of one taken.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    while True:
        try:
            work: Any = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(ask(work))
