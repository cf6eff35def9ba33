"""Processes that cuDNN builds plans in: building one holds one core, for up to a second."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from tcbench.engine.work import Work

Ask = Callable[[Work], Any]
"""What a process does with a work; it and its answer are pickled."""


@dataclass(frozen=True)
class Died:
    """In place of an answer: how the process ended that was at it."""

    cause: str


def spread(works: Iterable[Work], ask: Ask, processes: int) -> Iterator[tuple[Work, Any]]:
    """Each work and what `ask` answers, as they come. A process that dies takes only the work that it was at with it.
    With one process the caller's own asks, and none dies."""
    # A batch normalisation takes half a second, a convolution milliseconds: long ones first keep all busy to the end.
    todo = deque(sorted(works, key=lambda work: hasattr(work, "conv")))
    if processes <= 1 or len(todo) <= 1:
        for work in todo:
            yield work, ask(work)
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
                    yield work, Died(worker.cause())
                    if todo:
                        hire()
                    continue
                yield work, answer
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
    def start(cls, ask: Ask) -> "_Worker":
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


def _work(pipe: Connection, ask: Ask) -> None:
    """In the worker: an answer for each work, until there is no more."""
    # Whoever presses Ctrl-C reaches the whole group; the process that asked then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What is built is built for a GPU by its properties: none is looked at, and no memory of one taken.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    while True:
        try:
            work: Any = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(ask(work))
