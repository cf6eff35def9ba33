"""Runs trials, each in a process of its own, has their device watched meanwhile, and turns every end that a process can
have into a Record.
"""

from __future__ import annotations

import datetime
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import tcbench
from tcbench.core import cache, messages, process
from tcbench.core.errors import TcbenchError
from tcbench.core.messages import Finished, Message, ProfileRequest, Stepped
from tcbench.core.process import Fault, Followed, Worker
from tcbench.core.record import SCHEMA_VERSION, Cell, HostLoad, Record
from tcbench.engine.accelerators.device import Watch, kind_of
from tcbench.hardware import load, machine
from tcbench.run.launcher import Launcher
from tcbench.run.plan import PlannedCell
from tcbench.run.ranks import RankWorkers

_LOG = logging.getLogger(__name__)

Listener = Callable[[Cell, int, Message], None]
_MakeRecord = Callable[..., Record]
"""A Record of which some fields are known, made with the others."""


def watch_device(cell: Cell, start: float) -> Watch | None:
    """Begin to watch the cell's device; None where nothing of it can be asked. `start` is the trial's."""
    return kind_of(cell.device).watch(cell.device, start)


@dataclass(frozen=True)
class Launch:
    """The start of a worker: its Python, its folder (None: the current one), its variables beside those of this
    process's environment, its module, which older revisions of tcbench call otherwise, and what is asked beyond its
    cell."""

    python: str = sys.executable
    folder: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    worker: str = "tcbench.worker"
    request: ProfileRequest | None = None

    def command(self, pipe: int) -> list[str]:
        """The worker's command line; it writes messages to the file descriptor `pipe`."""
        return python_module(self.python, self.worker, str(pipe), *self._asked)

    def rank_command(self, address: str) -> list[str]:
        """The command line of a rank, which calls `address`; its module stands beside the worker's."""
        return python_module(self.python, self.worker.replace("worker", "rank"), address, *self._asked)

    @property
    def _asked(self) -> list[str]:
        return [] if self.request is None else [msgspec.json.encode(self.request).decode()]


def python_module(python: str, module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours in a process of its own. It does not look for modules in the current
    directory (-P), where a user's file may be called like one of ours or of NumPy's."""
    return [python, "-P", "-m", module, *arguments]


@dataclass(frozen=True)
class Runner:
    """Runs trials one after another. `command` makes the worker's command line from its pipe's number, where it is not
    the launch's; `watch` begins to watch a cell's device; `grace_s` is how long that command may take to end after the
    worker's last message; `launcher` starts the ranks of a cell that has many; `plan` is the key of the plan whose
    trials they are."""

    run_id: str
    timeout_s: float
    command: Callable[[int], list[str]] | None = None
    listen: Listener = lambda *_: None
    watch: Callable[[Cell, float], Watch | None] = watch_device
    grace_s: float = process.GRACE_S
    launch: Launch = field(default_factory=Launch)
    launcher: Launcher = field(default_factory=Launcher)
    plan: str | None = None

    def run(self, trials: Iterable[tuple[PlannedCell, int]]) -> Iterator[Record]:
        """One record per trial, as each ends. KeyboardInterrupt ends the running worker and passes through."""
        for planned, trial in trials:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            record = partial(
                Record,
                schema_version=SCHEMA_VERSION,
                run_id=self.run_id,
                cell=planned.cell,
                trial=trial,
                started_at=now,
                plan=self.plan,
                place=planned.place,
            )
            if planned.skip_reason is not None:
                yield record(status="skipped", reason=planned.skip_reason)
            else:
                yield self._trial(planned.cell, trial, record)

    def _trial(self, cell: Cell, trial: int, record: _MakeRecord) -> Record:
        start = time.monotonic()
        watch, timed, samples = self.watch(cell, start), _TimedPass(start), None
        try:
            ended = self._follow(cell, trial, timed, record)
        finally:
            if watch is not None:
                samples = watch.stop(timed.from_s, timed.to_s)
        return ended(duration_s=time.monotonic() - start, gpu=samples, host=timed.load)

    def _follow(self, cell: Cell, trial: int, timed: _TimedPass, record: _MakeRecord) -> _MakeRecord:
        """Start a worker and pass on its messages until the last; the record with what that end decides of it."""
        oom_kills = _oom_kills()
        try:
            worker = self._start(cell)
        except OSError as error:
            return partial(record, status="crashed", reason=f"the worker could not be started: {error}")
        try:
            while True:
                for _, message in process.receive([worker]):
                    if isinstance(message, Fault):
                        if message.killed and _oom_kills() > oom_kills:
                            reason = f"out of memory: the kernel killed {message.killed} (SIGKILL)"
                            return partial(record, status="oom", reason=reason, log=message.ended.log)
                        return partial(record, status=message.status, reason=message.reason, log=message.ended.log)
                    timed.hear(message, worker.pid)
                    self._tell(cell, trial, message)
                    if isinstance(message, Finished):
                        log = worker.end(patiently=True).log
                        end = msgspec.structs.asdict(message)
                        return partial(record, **end, log=None if message.status == "ok" else log)
        finally:
            worker.end()

    def _tell(self, cell: Cell, trial: int, message: Message) -> None:
        """Pass a message on. Only what a user can mend, and an interrupt, may end a run from there."""
        try:
            self.listen(cell, trial, message)
        except TcbenchError:
            raise
        except Exception as error:
            _LOG.warning("a message of the worker could not be shown: %r", error)

    def _start(self, cell: Cell) -> Followed[Message]:
        environment, job = {**worker_environment(cell), **self.launch.variables}, msgspec.json.encode(cell)
        where: dict[str, Any] = {"environment": environment, "folder": self.launch.folder}
        where |= {"timeout_s": self.timeout_s, "grace_s": self.grace_s}
        if cell.ranks > 1:
            return RankWorkers(self.launcher, cell.ranks, job, self.launch.rank_command, **where)
        return Worker(self.command or self.launch.command, job, messages.decode, **where)


class _TimedPass:
    """Begin and end of the timed pass, as its messages came in, in seconds since the trial's start; and the load of the
    host between them. Nothing is counted while it goes on."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._before: load.Counts | None = None
        self.from_s: float | None = None
        self.to_s: float | None = None
        self.load: HostLoad | None = None

    def hear(self, message: Message, pid: int) -> None:
        """Take in a message of the process `pid`, or of one that it started."""
        if not isinstance(message, Stepped):
            return
        if message.stage == "timed":
            self.to_s = time.monotonic() - self._start
            if self.from_s is None:
                self.from_s = self.to_s
                self._before = load.counts(pid)
        elif message.stage == "profiled" and self.load is None:
            self.load = load.between(self._before, load.counts(pid))


def worker_environment(cell: Cell) -> dict[str, str]:
    """The worker's environment: libraries that read their thread count at import get the cell's. Where Python may not
    keep bytecode beside its modules, compiling them would be half of a worker's start: it keeps it in our cache."""
    variables = {**os.environ, **machine.library_variables(cell.threads), "PYTHONUNBUFFERED": "1"}
    if _keeps_bytecode() or variables.get("PYTHONPYCACHEPREFIX"):
        return variables
    return {**variables, "PYTHONPYCACHEPREFIX": str(cache.folder("bytecode")), "PYTHONDONTWRITEBYTECODE": ""}


def _keeps_bytecode() -> bool:
    """Whether our modules have bytecode beside them, or get it when they are imported."""
    package = Path(tcbench.__file__).parent
    written = os.access(package, os.W_OK) or (package / "__pycache__").exists()
    return written and not os.environ.get("PYTHONDONTWRITEBYTECODE")


def _oom_kills() -> int:
    """The number of processes that the kernel has killed for memory since it started; 0 where it does not say."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
