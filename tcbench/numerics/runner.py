"""Runs training jobs, each in a process of its own, a few at once, and turns every end into a Run.

Owns processes and interruption. Reaches the worker only through a process and JSON; keeps and prints nothing.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

import msgspec

from tcbench.numerics.form import AnyJob, Finished, Job, Message, ParityFinished, Progress, Run
from tcbench.runner import end_process, hand_over, worker_environment

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)

Last = Finished | ParityFinished
"""A worker's last word."""

_GRACE_S = 5.0
"""How long a worker may take to go after its last word."""


def worker_command(pipe: int) -> list[str]:
    """How a worker is started; it writes messages to the file descriptor `pipe`."""
    return [sys.executable, "-m", "tcbench.numerics.worker", str(pipe)]


def _silent(job: AnyJob, steps: int) -> None:
    pass


@dataclass
class _Worker:
    """A process at work on a job."""

    job: AnyJob
    process: subprocess.Popen[bytes]
    pipe: int
    log: IO[bytes]
    deadline: float
    pending: bytes = b""
    finished: Last | None = None


@dataclass(frozen=True)
class Runner:
    """`at_once` processes at a time; one that takes longer than `timeout_s` is ended. `listen` is told of steps."""

    at_once: int
    timeout_s: float
    listen: Callable[[AnyJob, int], None] = _silent
    command: Callable[[int], list[str]] = worker_command
    _running: dict[int, _Worker] = field(default_factory=dict)

    def run(self, jobs: Sequence[AnyJob]) -> Iterator[tuple[AnyJob, Last]]:
        """Each job's end, as it ends. Any exception, KeyboardInterrupt too, ends all workers and passes through."""
        waiting = list(jobs)
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or self._running:
                    while waiting and len(self._running) < self.at_once:
                        self._start(waiting.pop(0), selector)
                    for key, _ in selector.select(1.0):
                        worker = self._running[key.fd]
                        if not self._read(worker):
                            yield worker.job, self._end(worker, selector)
                    for worker in [w for w in self._running.values() if time.monotonic() > w.deadline]:
                        reason = f"no result after {self.timeout_s:g} s (--timeout)"
                        worker.finished = worker.finished or _failed(worker.job, reason)
                        end_process(worker.process)
                        yield worker.job, self._end(worker, selector)
            finally:
                for worker in list(self._running.values()):
                    self._end(worker, selector)

    def _start(self, job: AnyJob, selector: selectors.BaseSelector) -> None:
        read_end, write_end = os.pipe()
        # The worker's own file, read when it ended without a word.
        log = tempfile.TemporaryFile()  # noqa: SIM115  (closed in _end)
        try:
            process = subprocess.Popen(
                self.command(write_end),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(write_end,),
                start_new_session=True,
                env=worker_environment(job.cell),
            )
        finally:
            os.close(write_end)
        self._running[read_end] = _Worker(job, process, read_end, log, time.monotonic() + self.timeout_s)
        selector.register(read_end, selectors.EVENT_READ)
        hand_over(process, msgspec.json.encode(job))

    def _read(self, worker: _Worker) -> bool:
        """Take what the pipe holds; False when it is at its end or has brought the last word."""
        chunk = os.read(worker.pipe, 1 << 16)
        if not chunk:
            return False
        *lines, worker.pending = (worker.pending + chunk).split(b"\n")
        for line in lines:
            try:
                message = _decoder.decode(line)
            except msgspec.DecodeError:
                worker.finished = _failed(worker.job, "the worker sent something that is no message")
                return False
            if isinstance(message, Progress):
                self.listen(worker.job, message.steps)
            else:
                worker.finished = message
                return False
        return True

    def _end(self, worker: _Worker, selector: selectors.BaseSelector) -> Last:
        """Let a worker that has spoken go, end any other, and give its pipe and log back."""
        del self._running[worker.pipe]
        selector.unregister(worker.pipe)
        try:
            if worker.finished is not None:
                worker.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_process(worker.process)
            os.close(worker.pipe)
        with worker.log as log:
            log.seek(0)
            last = (log.read().decode(errors="replace").strip().splitlines() or ["no word"])[-1]
        died = f"the worker ended without a result (exit code {worker.process.returncode}): {last}"
        return worker.finished or _failed(worker.job, died)


def _failed(job: AnyJob, reason: str) -> Last:
    if not isinstance(job, Job):
        return ParityFinished((), None, reason)
    run = Run(technique=job.technique.name, seed=job.cell.seed, status="failed", reason=reason)
    return Finished(run, None, None)
