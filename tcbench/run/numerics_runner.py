"""Runs training jobs, each in a process of its own, a few at once, and turns every end into a Run.

Owns what an end means and interruption. Reaches the worker only through a process and JSON; keeps and prints nothing.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from tcbench.core import process
from tcbench.core.numerics import AnyJob, Finished, Job, Message, ParityFinished, Progress, Run
from tcbench.core.process import Worker
from tcbench.run.runner import python_module, worker_environment

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)

Last = Finished | ParityFinished
"""A worker's last word."""


def worker_command(pipe: int) -> list[str]:
    """How a worker is started; it writes messages to the file descriptor `pipe`."""
    return python_module(sys.executable, "tcbench.numerics.worker", str(pipe))


def _silent(job: AnyJob, steps: int) -> None:
    pass


@dataclass(frozen=True)
class Runner:
    """`at_once` processes at a time; one that takes longer than `timeout_s` is ended. `listen` is told of steps."""

    at_once: int
    timeout_s: float
    listen: Callable[[AnyJob, int], None] = _silent
    command: Callable[[int], list[str]] = worker_command

    def run(self, jobs: Sequence[AnyJob]) -> Iterator[tuple[AnyJob, Last]]:
        """Each job's end, as it ends. Any exception, KeyboardInterrupt too, ends all workers and passes through."""
        waiting = list(jobs)
        running: dict[Worker, AnyJob] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.at_once:
                    job = waiting.pop(0)
                    try:
                        running[self._start(job)] = job
                    except OSError as error:
                        yield job, _failed(job, f"the worker could not be started: {error}")
                heard = select.select(list(running), [], [], 1.0)[0]
                for worker, job in list(running.items()):
                    last = self._last(worker, job, heard=worker in heard)
                    if last is not None:
                        del running[worker]
                        yield job, last
        finally:
            for worker in running:
                worker.end()

    def _start(self, job: AnyJob) -> Worker:
        return Worker(
            self.command,
            msgspec.json.encode(job),
            timeout_s=self.timeout_s,
            environment=worker_environment(job.cell),
        )

    def _last(self, worker: Worker, job: AnyJob, *, heard: bool) -> Last | None:
        """The worker's last word, or what stands for it; it has ended then. None while it is at work."""
        lines = worker.lines() if heard else []
        for line in lines or ():
            try:
                message = _decoder.decode(line)
            except msgspec.DecodeError:
                worker.end()
                return _failed(job, "the worker sent something that is no message")
            if not isinstance(message, Progress):
                worker.end(process.GRACE_S)
                return message
            self.listen(job, message.steps)
        if lines is None:
            ended = worker.end(process.GRACE_S)
            last = ended.log.splitlines()[-1] if ended.log else "no word"
            return _failed(job, f"{ended.says}: {last}")
        if time.monotonic() > worker.deadline:
            worker.end()
            return _failed(job, f"no result after {self.timeout_s:g} s (--timeout)")
        return None


def _failed(job: AnyJob, reason: str) -> Last:
    if not isinstance(job, Job):
        return ParityFinished((), None, reason)
    run = Run(technique=job.technique.name, seed=job.cell.seed, status="failed", reason=reason)
    return Finished(run, None, None)
