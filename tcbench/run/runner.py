"""Runs trials, each in a process of its own, has their device watched meanwhile, and turns every end that a process can
have into a Record. Two trials of a cell may be there at once and step in turns.
"""

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
from tcbench.core.process import Fault, Followed, Worker
from tcbench.core.record import SCHEMA_VERSION, Cell, GpuSamples, HostLoad, Record
from tcbench.engine.api import Watch, kind_of
from tcbench.hardware import kernel, load
from tcbench.run.launcher import Launcher
from tcbench.run.plan import PlannedCell
from tcbench.run.ranks import RankWorkers
from tcbench.run.worker_launch import Launch, worker_environment

_LOG = logging.getLogger(__name__)

Listener = Callable[[Cell, int, Message], None]
"""Told each message of a trial of a cell."""
_MakeRecord = Callable[..., Record]
"""A Record of which some fields are known, made with the others."""


COOLING_S = 5.0
"""A short pause in which a GPU cools down: NVIDIA's nvbench pauses too before it measures a throttled sample again."""


@dataclass(frozen=True)
class Runner:
    """Runs trials one after another. `command` makes the worker's command line from its pipe's number, where it is not
    the launch's; `watch` begins to watch a cell's device from the trial's start on, where it can be asked; `grace_s` is
    how long that command may take to end after the worker's last message; `launcher` starts the ranks of a cell that
    has many; `plan` is the key of the plan whose trials they are. With `cooling_s` a trial whose GPU was slowed down by
    heat or a lack of power is run once more after so many seconds: the last record of a trial is what counts."""

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

    def repeats(self, record: Record) -> bool:
        """Return whether a trial with this record is run once more."""
        slowed = record.status == "ok" and record.gpu is not None and bool(record.gpu.slowdowns)
        return self.cooling_s is not None and slowed

    def run(self, trials: Iterable[tuple[PlannedCell, int]]) -> Iterator[Record]:
        """One record per trial, as each ends; two of a trial that is repeated. KeyboardInterrupt ends the running
        worker and passes through."""
        for planned, trial in trials:
            if planned.skip_reason is not None:
                yield self._record(planned, trial)(status="skipped", reason=planned.skip_reason)
            else:
                yield (record := self._trial(planned, trial))
                if self.repeats(record):
                    time.sleep(self.cooling_s or 0.0)
                    yield self._trial(planned, trial)

    def _trial(self, planned: PlannedCell, trial: int) -> Record:
        ((_, record),) = _followed([_Trial(self, planned, trial)])
        return record

    def in_turns(self, other: Runner, planned: PlannedCell, trials: tuple[int, int]) -> Iterator[tuple[int, Record]]:
        """A trial of this runner and one of another, of one cell, whose processes are there at once and step in turns,
        this one's first: what else the machine does falls on both alike. Their places and records, as they end. Both
        launches must take turns; the time that both are there counts half for each."""
        runners = (self, other)
        running: list[_Trial] = []
        with _ring(len(runners)) as files, contextlib.ExitStack() as begun:
            for runner, trial, turns in zip(runners, trials, files, strict=True):
                running.append(_Trial(runner, planned, trial, turns, share=len(runners)))
                begun.callback(running[-1].end)
            begun.pop_all()
        yield from _followed(running)

    def _record(self, planned: PlannedCell, trial: int) -> _MakeRecord:
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
    """For each worker the file descriptors from which it reads that its turn has come, and to which it writes that the
    next one's has; it is the first one's. They are the workers' alone when the context ends, so that who waits for one
    that died reads an end."""
    pipes = [os.pipe() for _ in range(workers)]
    try:
        os.write(pipes[0][1], messages.YOUR_TURN)
        yield [(pipes[place][0], pipes[(place + 1) % workers][1]) for place in range(workers)]
    finally:
        for descriptor in (end for pipe in pipes for end in pipe):
            os.close(descriptor)


class _Trial:
    """A trial that has begun. `turns` are the file descriptors of a worker that takes turns, where it does, with so
    many others that its part of their time is one of `share`."""

    def __init__(
        self, runner: Runner, planned: PlannedCell, trial: int, turns: tuple[int, int] | None = None, share: int = 1
    ) -> None:
        self._runner, self._cell, self._number, self._share = runner, planned.cell, trial, share
        self._record = runner._record(planned, trial)
        self._start = time.monotonic()
        self._timed = _TimedPass(self._start)
        self._oom_kills = _oom_kills()
        self._watch = runner.watch(self._cell, self._start)
        self.worker: Followed[Message] | None = None
        self.record: Record | None = None
        try:
            self.worker = self._started(turns)
        except OSError as error:
            self._ends(status="crashed", reason=f"the worker could not be started: {error}")
        except BaseException:
            self.end()
            raise

    def _started(self, turns: tuple[int, int] | None) -> Followed[Message]:
        runner, cell = self._runner, self._cell
        environment, job = {**worker_environment(cell), **runner.launch.variables}, msgspec.json.encode(cell)
        self._variables = variables.recorded(environment)
        where: dict[str, Any] = {"environment": environment, "folder": runner.launch.folder}
        where |= {"timeout_s": runner.timeout_s * self._share, "grace_s": runner.grace_s}
        if turns is not None:
            environment[messages.TURNS] = ",".join(map(str, turns))
            where["files"] = turns
        if cell.ranks > 1:
            return RankWorkers(runner.launcher, cell.ranks, job, runner.launch.rank_command, **where)
        return Worker(runner.command or runner.launch.command, job, messages.decode, **where)

    def hear(self, worker: Followed[Message], message: Message | Fault) -> None:
        """Pass on a message of its worker; the last one, or its fault, decides the record."""
        if isinstance(message, Fault):
            log = message.ended.log
            if message.killed and _oom_kills() > self._oom_kills:
                reason = f"out of memory: the kernel killed {message.killed} (SIGKILL)"
                self._ends(status="oom", reason=reason, log=log)
            else:
                self._ends(status=message.status, reason=message.reason, log=log)
            return
        self._timed.hear(message, worker.pid)
        self._tell(message)
        if isinstance(message, Finished):
            log = worker.end(patiently=True).log
            self._ends(**msgspec.structs.asdict(message), log=None if message.status == "ok" else log)

    def _tell(self, message: Message) -> None:
        """Pass a message on. Only what a user can mend, and an interrupt, may end a run from there."""
        try:
            self._runner.listen(self._cell, self._number, message)
        except TcbenchError:
            raise
        except Exception as error:
            _LOG.warning("a message of the worker could not be shown: %r", error)

    def _ends(self, **end: Any) -> None:
        samples = self.end()
        if end.get("environment") is not None:
            end["environment"] = msgspec.structs.replace(end["environment"], variables=self._variables)
        duration_s = (time.monotonic() - self._start) / self._share
        self.record = self._record(**end, duration_s=duration_s, gpu=samples, host=self._timed.load)

    def end(self) -> GpuSamples | None:
        """End its worker, and the watch over its device, which tells what it saw; once."""
        if self.worker is not None:
            self.worker.end()
        watch, self._watch = self._watch, None
        return None if watch is None else watch.stop(self._timed.from_s, self._timed.to_s)


def _followed(trials: Sequence[_Trial]) -> Iterator[tuple[int, Record]]:
    """The places and records of trials that have begun, as they end."""
    going = dict(enumerate(trials))
    try:
        while going:
            for place, record in [(place, trial.record) for place, trial in going.items() if trial.record is not None]:
                del going[place]
                yield place, record
            by_worker = {trial.worker: trial for trial in going.values() if trial.worker is not None}
            for worker, message in process.receive(list(by_worker)):
                by_worker[worker].hear(worker, message)
    finally:
        for trial in going.values():
            trial.end()


class _TimedPass:
    """Begin and end of the timed pass in seconds since the trial's start, by the times that its messages were sent at;
    and the load of the host between them, which ranks leave to the runner to count. Nothing is counted meanwhile."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._before: load.Counts | None = None
        self.from_s: float | None = None
        self.to_s: float | None = None
        self.load: HostLoad | None = None

    def hear(self, message: Message, pid: int) -> None:
        """Take in a message of the process `pid`, or of one that it started."""
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
    """The number of processes that the kernel has killed for memory since it started; 0 where it does not say."""
    match = re.search(r"(?m)^oom_kill (\d+)$", kernel.text(Path("/proc/vmstat")))
    return int(match[1]) if match else 0
