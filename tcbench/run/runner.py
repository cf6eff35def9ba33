"""Runs trials, each in its own process with its device monitored, and turns every way a process can end into a Record.
Several trials can run at the same time, taking turns of a few steps."""

from __future__ import annotations

import datetime
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from tcbench.run.turns import FreeMemory, Turns
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
    """Runs trials one after another, or several in turns.

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
        running = {0: _Trial(self, planned, trial)}
        started = running[0]
        try:
            while started.record is None:
                for _ in _receive(running):
                    pass
        finally:
            started.end()
        return started.record

    def in_turns(self, other: Runner, planned: PlannedCell, trials: tuple[int, int]) -> Iterator[tuple[int, Record]]:
        """Run a trial of this runner and one of `other` in turns (`run_in_turns`), and yield the record of each as it
        ends, preceded by 0 for this runner's trial or 1 for the other's. `trials` holds the numbers of the two trials.
        Both measure the same cell."""
        if (record := self._pilot(planned, trials[0])) is not None:
            yield 0, record
            yield 1, other._trial(planned, trials[1])
            return
        yield from run_in_turns([(self, planned, trials[0]), (other, planned, trials[1])])

    def run_group(
        self, trials: Sequence[tuple[PlannedCell, int]], turns_max_time_s: float | None = None
    ) -> Iterator[Record]:
        """Run trials of different cells in turns (`run_in_turns`), or a single one alone, and yield each record as the
        trial ends. If memory is short, only the first of the trials run. In turns, `turns_max_time_s` is the limit of a
        timed pass (None: that of the cell)."""
        if len(trials) == 1:
            yield from self.run(trials)
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        memory = FreeMemory()
        launch = self.launch
        if turns_max_time_s is not None:
            launch = replace(launch, variables={**launch.variables, messages.TURNS_MAX_TIME: str(turns_max_time_s)})
        runner = replace(self, launch=launch)
        for _, record in run_in_turns([(runner, planned, number) for planned, number in trials], memory.has_room):
            yield msgspec.structs.replace(record, turns_began_at=now) if memory.had_room else record

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


def run_in_turns(
    trials: Sequence[tuple[Runner, PlannedCell, int]], has_room: Callable[[], bool] = lambda: True
) -> Iterator[tuple[int, Record]]:
    """Run several trials at the same time, and yield the index and the record of each as it ends.

    Each trial is given by its runner, its cell and its number. One of the processes steps while the others wait, so
    that other work on the machine affects all alike. They start one after another: each has taken its warm-up steps
    before the next one starts. `has_room` tells whether a further process may start; if not, the remaining trials do
    not run. All launches must support taking turns. The duration of a trial is that of its own turns."""
    turns, running, waiting = Turns(), dict[int, _Trial](), deque(enumerate(trials))
    try:
        while waiting or running:
            if turns.is_over():
                if waiting and running and not has_room():
                    waiting.clear()
                if waiting:
                    place, (runner, planned, number) = waiting.popleft()
                    with turns.first_turn(place) as pipes:
                        running[place] = _Trial(runner, planned, number, pipes, partial(turns.spent_s, place))
                else:
                    turns.give_next()
            yield from _receive(running, turns.answers)
    finally:
        for trial in running.values():
            trial.end()
        turns.close()


class _Trial:
    """A running trial. `record` is None until it has ended. `pipes` are the file descriptors of a worker that takes
    turns (`tcbench.run.turns`). `spent_s` returns the trial's duration so far, if it is not the time since its start.
    """

    def __init__(
        self,
        runner: Runner,
        planned: PlannedCell,
        trial: int,
        pipes: tuple[int, int] | None = None,
        spent_s: Callable[[], float] | None = None,
    ) -> None:
        self._runner, self._cell, self._number = runner, planned.cell, trial
        self._record = runner._record(planned, trial)
        self._start = start = time.monotonic()
        self._spent_s = spent_s or (lambda: time.monotonic() - start)
        self._timed = _TimedPass(self._start)
        self._oom_kills = _oom_kills()
        self._watch = runner.watch(self._cell, self._start)
        self.worker: Worker[Message] | None = None
        self.record: Record | None = None
        try:
            self.worker = self._started(pipes)
        except OSError as error:
            self._ends(status="crashed", reason=f"the worker could not be started: {error}")
        except BaseException:
            self.end()
            raise

    def _started(self, pipes: tuple[int, int] | None) -> Worker[Message]:
        """Start the trial's worker, or all ranks if the cell has several, and return it. Raises OSError."""
        runner, cell = self._runner, self._cell
        environment, job = {**worker_environment(cell), **runner.launch.variables}, msgspec.json.encode(cell)
        self._variables = variables.recorded(environment)
        where: dict[str, Any] = {"environment": environment, "folder": runner.launch.folder}
        where |= {"timeout_s": runner.timeout_s, "grace_s": runner.grace_s}
        if pipes is not None:
            environment[messages.TURNS] = ",".join(map(str, pipes))
            where |= {"files": pipes, "spent_s": self._spent_s}
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
        self.record = self._record(**end, duration_s=self._spent_s(), gpu=samples, host=self._timed.load)

    def end(self) -> GpuSamples | None:
        """End the worker and the monitoring of its device, and return the samples of the device. None if the device was
        not monitored, and in repeated calls."""
        if self.worker is not None:
            self.worker.end()
        watch, self._watch = self._watch, None
        return None if watch is None else watch.stop(self._timed.from_s, self._timed.to_s)


def _receive(running: dict[int, _Trial], wake: Sequence[int] = ()) -> Iterator[tuple[int, Record]]:
    """Yield the index and the record of each running trial that has ended, and take it out of `running`. Then wait for
    messages of the others, or until a descriptor in `wake` becomes readable, and handle them."""
    for place, record in [(place, trial.record) for place, trial in running.items() if trial.record is not None]:
        del running[place]
        yield place, record
    by_worker = {trial.worker: trial for trial in running.values() if trial.worker is not None}
    for worker, message in process.receive(list(by_worker), wake):
        by_worker[worker].hear(worker, message)


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
