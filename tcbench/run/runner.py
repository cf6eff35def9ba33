"""Runs trials, each in its own process with its device monitored, and turns every way a process can end into a Record.
Two trials of a cell can run at the same time, taking turns step by step."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tcbench.core import messages, process, variables
from tcbench.core.errors import TcbenchError
from tcbench.core.messages import Finished, Message, Stepped, TimedPassLoad
from tcbench.core.process import Fault, Worker
from tcbench.core.record import SCHEMA_VERSION, Cell, GpuSamples, HostLoad, Record
from tcbench.engine.api import Watch, kind_of
from tcbench.hardware import kernel, load
from tcbench.run.launcher import Launcher
from tcbench.run.plan import PlannedCell
from tcbench.run.ranks import RankWorkers
from tcbench.run.worker_launch import Launch, worker_environment

_LOG = logging.getLogger(__name__)

Listener = Callable[[Cell, int, Message], None]
"""A function that receives each message of a trial, with the cell and the trial's number."""
_MakeRecord = Callable[..., Record]
"""A function that makes a Record from its remaining fields. The fields that are known when the trial starts are set."""


COOLING_S = 5.0
"""A short pause to let a GPU cool down. NVIDIA's nvbench also pauses before it repeats a throttled sample."""


@dataclass(frozen=True)
class Runner:
    """Runs trials one after another.

    - `command`: returns the worker's command line for the number of its pipe, if not the launch's own.
    - `listen`: receives the messages of the trials.
    - `watch`: starts to monitor a cell's device from the trial's start, if it can be monitored.
    - `grace_s`: how long a worker may take to end after its last message.
    - `launcher`: starts the ranks of a cell that has many.
    - `plan`: the key of the plan to which the trials belong.
    - `step_counts`: the number of steps in a trial of a user's program, by the cell's key. A pilot finds it.
    - `cooling_s`: if set, a trial whose GPU was slowed down by heat or lack of power is repeated after this pause. The
      last record of a trial counts."""

    run_id: str
    timeout_s: float
    command: Callable[[int], list[str]] | None = None
    listen: Listener = lambda *_: None
    watch: Callable[[Cell, float], Watch | None] = lambda cell, start: kind_of(cell.device).watch(cell.device, start)
    grace_s: float = process.GRACE_S
    launch: Launch = field(default_factory=Launch)
    launcher: Launcher = field(default_factory=Launcher)
    plan: str | None = None
    cooling_s: float | None = None
    step_counts: dict[str, int] = field(default_factory=dict)

    def repeats(self, record: Record) -> bool:
        """Return whether a trial with this record is repeated: its GPU was slowed down and `cooling_s` is set."""
        slowed = record.status == "ok" and record.gpu is not None and bool(record.gpu.slowdowns)
        return self.cooling_s is not None and slowed

    def run(self, trials: Iterable[tuple[PlannedCell, int]]) -> Iterator[Record]:
        """Yield one record per trial as it ends, or two if it is repeated. KeyboardInterrupt ends the running worker
        and is passed on."""
        for planned, trial in trials:
            if planned.skip_reason is not None:
                yield self._record(planned, trial)(status="skipped", reason=planned.skip_reason)
            else:
                yield (record := self._pilot(planned, trial) or self._trial(planned, trial))
                if self.repeats(record):
                    time.sleep(self.cooling_s or 0.0)
                    yield self._trial(planned, trial)

    def _pilot(self, planned: PlannedCell, trial: int) -> Record | None:
        """Find the number of steps of a program's trials by a short run, unless it is known. Returns the record of the
        run if it failed, else None."""
        cell = planned.cell
        if cell.command is None or cell.measure.steps or cell.key in self.step_counts:
            return None
        record = self._trial(planned, trial)
        return None if record.status == "ok" else record

    def _trial(self, planned: PlannedCell, trial: int) -> Record:
        """Run one trial, and return its record."""
        ((_, record),) = _followed([_Trial(self, planned, trial)])
        return record

    def in_turns(self, other: Runner, planned: PlannedCell, trials: tuple[int, int]) -> Iterator[tuple[int, Record]]:
        """Run a trial of this runner and one of `other` at the same time, and yield the record of each as it ends,
        preceded by 0 for this runner's trial or 1 for the other's. `trials` holds the numbers of the two trials.

        Both measure the same cell, and their processes alternate steps, this one's first, so that other work on the
        machine affects both equally. Both launches must support taking turns. Time during which both run counts half
        for each."""
        if (record := self._pilot(planned, trials[0])) is not None:
            yield 0, record
            yield 1, other._trial(planned, trials[1])
            return
        runners = (self, other)
        running: list[_Trial] = []
        with _ring(len(runners)) as pipes, contextlib.ExitStack() as cleanup:
            for runner, trial, turns in zip(runners, trials, pipes, strict=True):
                running.append(_Trial(runner, planned, trial, turns, share=len(runners)))
                cleanup.callback(running[-1].end)
            cleanup.pop_all()
        yield from _followed(running)

    def _record(self, planned: PlannedCell, trial: int) -> _MakeRecord:
        """Return a function that makes the record of a trial that starts now."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        return partial(
            Record,
            schema_version=SCHEMA_VERSION,
            run_id=self.run_id,
            cell=planned.cell,
            trial=trial,
            started_at=now,
            plan=self.plan,
            place=planned.place,
        )


@contextlib.contextmanager
def _ring(workers: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the pipes by which workers take turns: for each worker, the descriptor from which it reads its own turn and
    the one to which it writes the next worker's.

    The first worker starts. On exit the parent closes its copies, so that a worker waiting for a dead one reads end of
    file."""
    pipes = [os.pipe() for _ in range(workers)]
    try:
        os.write(pipes[0][1], messages.YOUR_TURN)
        yield [(pipes[place][0], pipes[(place + 1) % workers][1]) for place in range(workers)]
    finally:
        for descriptor in (end for pipe in pipes for end in pipe):
            os.close(descriptor)


class _Trial:
    """A running trial. `record` is None until it has ended. `turns` are the file descriptors of a worker that takes
    turns (`_ring`). `share` is the number of workers that run at the same time: a trial's duration is the elapsed time
    divided by it."""

    def __init__(
        self, runner: Runner, planned: PlannedCell, trial: int, turns: tuple[int, int] | None = None, share: int = 1
    ) -> None:
        self._runner, self._cell, self._number, self._share = runner, planned.cell, trial, share
        self._record = runner._record(planned, trial)
        self._start = time.monotonic()
        self._timed = _TimedPass(self._start)
        self._oom_kills = _oom_kills()
        self._watch = runner.watch(self._cell, self._start)
        self.worker: Worker[Message] | None = None
        self.record: Record | None = None
        try:
            self.worker = self._started(turns)
        except OSError as error:
            self._ends(status="crashed", reason=f"the worker could not be started: {error}")
        except BaseException:
            self.end()
            raise

    def _started(self, turns: tuple[int, int] | None) -> Worker[Message]:
        """Start the trial's worker, or all ranks if the cell has several, and return it. Raises OSError."""
        runner, cell = self._runner, self._cell
        environment, job = {**worker_environment(cell), **runner.launch.variables}, msgspec.json.encode(cell)
        self._variables = variables.recorded(environment)
        where: dict[str, Any] = {"environment": environment, "folder": runner.launch.folder}
        where |= {"timeout_s": runner.timeout_s * self._share, "grace_s": runner.grace_s}
        if turns is not None:
            environment[messages.TURNS] = ",".join(map(str, turns))
            where["files"] = turns
        if cell.command is not None and (steps := runner.step_counts.get(cell.key)):
            environment[messages.STEP_COUNT] = str(steps)
        if cell.workers > 1:
            return RankWorkers(runner.launcher, cell.ranks, job, runner.launch.rank_command, **where)
        return Worker(runner.command or runner.launch.command, job, messages.decode, **where)

    def hear(self, worker: Worker[Message], message: Message | Fault) -> None:
        """Handle a message of the worker. The last one, or a fault, determines the record."""
        if isinstance(message, Fault):
            log = message.ended.log
            if message.killed and _oom_kills() > self._oom_kills:
                reason = f"out of memory: the kernel killed {message.killed} (SIGKILL)"
                self._ends(status="oom", reason=reason, log=log)
            else:
                self._ends(status=message.status, reason=message.reason, log=log)
            return
        if isinstance(message, messages.Piloted):
            self._runner.step_counts[self._cell.key] = message.steps
            return
        self._timed.hear(message, worker.pid)
        self._tell(message)
        if isinstance(message, Finished):
            log = worker.end(patiently=True).log
            self._ends(**msgspec.structs.asdict(message), log=None if message.status == "ok" else log)

    def _tell(self, message: Message) -> None:
        """Pass a message to the listener. Only errors that the user can fix, and an interrupt, may end the run."""
        try:
            self._runner.listen(self._cell, self._number, message)
        except TcbenchError:
            raise
        except Exception as error:
            _LOG.warning("a message of the worker could not be shown: %r", error)

    def _ends(self, **end: Any) -> None:
        """End the trial, and set `record` from the fields in `end`: status, reason and so on."""
        samples = self.end()
        if end.get("environment") is not None:
            end["environment"] = msgspec.structs.replace(end["environment"], variables=self._variables)
        duration_s = (time.monotonic() - self._start) / self._share
        self.record = self._record(**end, duration_s=duration_s, gpu=samples, host=self._timed.load)

    def end(self) -> GpuSamples | None:
        """End the worker and the monitoring of its device, and return the samples of the device. None if the device was
        not monitored, and in repeated calls."""
        if self.worker is not None:
            self.worker.end()
        watch, self._watch = self._watch, None
        return None if watch is None else watch.stop(self._timed.from_s, self._timed.to_s)


def _followed(trials: Sequence[_Trial]) -> Iterator[tuple[int, Record]]:
    """Follow running trials to their ends, and yield the index and the record of each as it ends. Trials that still run
    when the iteration stops are ended."""
    running = dict(enumerate(trials))
    try:
        while running:
            for place, record in [
                (place, trial.record) for place, trial in running.items() if trial.record is not None
            ]:
                del running[place]
                yield place, record
            by_worker = {trial.worker: trial for trial in running.values() if trial.worker is not None}
            for worker, message in process.receive(list(by_worker)):
                by_worker[worker].hear(worker, message)
    finally:
        for trial in running.values():
            trial.end()


class _TimedPass:
    """The begin (`from_s`) and end (`to_s`) of a trial's timed pass in seconds since the trial's start, and the `load`
    of the host during the pass. All are None until they are known.

    Times are those at which messages were sent. The load is counted before and after the pass, by the worker if it
    reports a load, else here."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._before: load.Counts | None = None
        self.from_s: float | None = None
        self.to_s: float | None = None
        self.load: HostLoad | None = None

    def hear(self, message: Message, pid: int) -> None:
        """Update the times and the load from a message of the worker, whose process id is `pid`. The first message
        about profiled steps ends the timed pass."""
        if isinstance(message, TimedPassLoad):
            self._before, self.load = None, message.load
        if not isinstance(message, Stepped):
            return
        if message.stage == "timed":
            self.to_s = (time.monotonic() if message.at_s is None else message.at_s) - self._start
            if self.from_s is None:
                self.from_s = self.to_s
                self._before = load.counts(pid)
        elif message.stage == "profiled" and self.load is None:
            self.load = load.between(self._before, load.counts(pid), message.facts_s)


def _oom_kills() -> int:
    """Return the number of processes that the kernel has killed for lack of memory since it started; 0 if unknown."""
    match = re.search(r"(?m)^oom_kill (\d+)$", kernel.text(Path("/proc/vmstat")))
    return int(match[1]) if match else 0
