"""A runner of training jobs, a few at once, each in its own process; every way of ending becomes a result."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from tcbench.core import process
from tcbench.core.numerics import AnyJob, NumericsMessage, ParityFinished, Run, StepsDone, TrainingFinished, TrainingJob
from tcbench.core.process import Fault, Worker
from tcbench.run.worker_launch import python_module, worker_environment

_WORKER = "tcbench.engine.numerics.worker"
_decoder: msgspec.json.Decoder[NumericsMessage] = msgspec.json.Decoder(NumericsMessage)

Result = TrainingFinished | ParityFinished
"""A worker's last message."""


@dataclass(frozen=True)
class NumericsRunner:
    """A runner of up to `at_once` processes; one that takes longer than `timeout_s` is killed.

    `listen` gets a job's steps. `command` returns a worker's command line for the file descriptor that it writes
    messages to."""

    at_once: int
    timeout_s: float
    listen: Callable[[AnyJob, int], None] = lambda *_: None
    command: Callable[[int], list[str]] = lambda pipe: python_module(sys.executable, _WORKER, str(pipe))

    def run(self, jobs: Sequence[AnyJob]) -> Iterator[tuple[AnyJob, Result]]:
        """Yield each job's result when it ends. Exceptions, also KeyboardInterrupt, end all workers and are passed
        on."""
        waiting = list(jobs)
        running: dict[Worker[NumericsMessage], AnyJob] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.at_once:
                    job = waiting.pop(0)
                    try:
                        running[self._start(job)] = job
                    except OSError as error:
                        yield job, _failed(job, f"the worker could not be started: {error}")
                for worker, message in process.receive(tuple(running)):
                    if worker not in running:
                        continue  # a message that was sent after the result
                    if isinstance(message, StepsDone):
                        self.listen(running[worker], message.steps)
                        continue
                    job = running[worker]
                    if isinstance(message, Fault):
                        log = message.ended.log if message.status == "crashed" else None
                        result = _failed(job, message.reason + (f": {log.splitlines()[-1]}" if log else ""))
                    else:
                        worker.end(patiently=True)
                        result = message
                    if isinstance(job, TrainingJob):
                        self.listen(job, job.setting.steps)
                    del running[worker]
                    yield job, result
        finally:
            for worker in running:
                worker.end()

    def trained(self, jobs: Sequence[AnyJob]) -> Iterator[tuple[AnyJob, TrainingFinished]]:
        """Run jobs that train, and yield each one's result when it ends."""
        for job, last in self.run(jobs):
            assert isinstance(last, TrainingFinished)
            yield job, last

    def _start(self, job: AnyJob) -> Worker[NumericsMessage]:
        """Start a worker process on one job."""
        return Worker(
            self.command,
            msgspec.json.encode(job),
            _decoder.decode,
            timeout_s=self.timeout_s,
            environment=worker_environment(job.cell),
        )


def _failed(job: AnyJob, reason: str) -> Result:
    """Return the result of a job that failed."""
    if not isinstance(job, TrainingJob):
        return ParityFinished((), reason)
    run = Run(technique=job.technique.name, seed=job.cell.seed, status="failed", reason=reason)
    return TrainingFinished(run, None, None)
