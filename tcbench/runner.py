"""Runs trials, each in a process of its own, and turns every end a process can have into a Record.

Owns processes, timeouts and interruption, and watches the GPU of a trial meanwhile. Reaches the worker only through a
process and JSON; stores and prints nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import msgspec

from tcbench import machine, messages
from tcbench.messages import Finished, Message, Stepped
from tcbench.plan import PlannedCell
from tcbench.record import SCHEMA_VERSION, Cell, GpuSamples, Record, Status

LOG_BYTES = 4096
"""How much of a worker's output a record keeps, from its end."""

_GRACE_S = 5.0
"""How long a worker may take to go after its last word."""

Listener = Callable[[Cell, int, Message], None]


def _silent(cell: Cell, trial: int, message: Message) -> None:
    pass


class Watch(Protocol):
    """Something that watches a device while a trial runs."""

    def stop(self, timed_from_s: float | None, timed_to_s: float | None) -> GpuSamples:
        """End it. The times are those of the timed pass, since the trial's start."""
        ...


def watch_gpu(cell: Cell, start: float) -> Watch | None:
    """Begin to watch the cell's GPU; None where there is none, or none that can be asked. `start` is the trial's."""
    if not cell.device.startswith("cuda"):
        return None
    from tcbench.backends.cuda import nvml

    return nvml.watch(cell.device, start)


@dataclass(frozen=True)
class Launch:
    """How workers are started: by which Python, in which folder (None: the current one), and with which variables
    beside those of this process's environment."""

    python: str = sys.executable
    folder: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, pipe: int) -> list[str]:
        """How a worker is started; it writes messages to the file descriptor `pipe`."""
        return [self.python, "-m", "tcbench.worker", str(pipe)]


def worker_command(pipe: int) -> list[str]:
    """How a worker is started by the Python that runs here."""
    return Launch().command(pipe)


@dataclass(frozen=True)
class Runner:
    """Runs trials one after another. `command` makes the worker's command line from its pipe's number, where it is not
    the launch's; `watch` begins to watch a cell's device; `grace_s` is how long that command may take to end after the
    worker's last word, if not the usual while."""

    run_id: str
    timeout_s: float
    command: Callable[[int], list[str]] | None = None
    listen: Listener = _silent
    watch: Callable[[Cell, float], Watch | None] = watch_gpu
    grace_s: float | None = None
    launch: Launch = field(default_factory=Launch)

    def run(self, trials: Iterable[tuple[PlannedCell, int]]) -> Iterator[Record]:
        """One record per trial, as each ends. KeyboardInterrupt ends the running worker and passes through."""
        for planned, trial in trials:
            if planned.skip_reason is not None:
                yield self._record(planned.cell, trial, _now(), 0.0, _End("skipped", planned.skip_reason))
            else:
                yield self._trial(planned.cell, trial)

    def _trial(self, cell: Cell, trial: int) -> Record:
        started_at, start = _now(), time.monotonic()
        with tempfile.TemporaryFile() as log:
            watch, timed, samples = self.watch(cell, start), _TimedPass(start), None
            try:
                end = self._follow_worker(cell, trial, log, timed)
            finally:
                if watch is not None:
                    samples = watch.stop(timed.from_s, timed.to_s)
            duration_s = time.monotonic() - start
            tail = None if end.status == "ok" else _tail(log)
            return self._record(cell, trial, started_at, duration_s, end, tail, samples)

    def _follow_worker(self, cell: Cell, trial: int, log: IO[bytes], timed: _TimedPass) -> _End:
        """Start a worker and follow it to its end."""
        oom_kills = _oom_kills()
        read_end, write_end = os.pipe()
        with os.fdopen(read_end, "rb", buffering=0) as pipe:
            try:
                process = subprocess.Popen(
                    (self.command or self.launch.command)(write_end),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(write_end,),
                    start_new_session=True,
                    cwd=self.launch.folder,
                    env={**worker_environment(cell), **self.launch.variables},
                )
            except OSError as error:
                return _End("crashed", f"the worker could not be started: {error}")
            finally:
                os.close(write_end)
            try:
                hand_over(process, msgspec.json.encode(cell))
                end = self._follow(cell, trial, pipe, timed)
                try:
                    if end is None or end.finished:
                        process.wait(_GRACE_S if self.grace_s is None else self.grace_s)
                except subprocess.TimeoutExpired:
                    end = end or _End("crashed", "the worker closed its pipe without a result")
            finally:
                end_process(process)
        return end or _died(process.returncode, _oom_kills() > oom_kills)

    def _follow(self, cell: Cell, trial: int, pipe: IO[bytes], timed: _TimedPass) -> _End | None:
        """Pass on messages until the last one, the timeout or nonsense; None when the pipe ends without a last one."""
        deadline = time.monotonic() + self.timeout_s
        pending = b""
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([pipe], [], [], remaining)[0]:
                return _End("timeout", f"no result after {self.timeout_s:g} s (--timeout)")
            chunk = os.read(pipe.fileno(), 65536)
            if not chunk:
                return None
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                try:
                    message = messages.decode(line)
                except msgspec.DecodeError:
                    return _End("crashed", "the worker sent something that is no message")
                timed.heard(message)
                self.listen(cell, trial, message)
                if isinstance(message, Finished):
                    return _End(message.status, message.reason, message)

    def _record(
        self,
        cell: Cell,
        trial: int,
        started_at: str,
        duration_s: float,
        end: _End,
        log: str | None = None,
        gpu: GpuSamples | None = None,
    ) -> Record:
        return Record(
            schema_version=SCHEMA_VERSION,
            run_id=self.run_id,
            cell=cell,
            trial=trial,
            status=end.status,
            reason=end.reason,
            started_at=started_at,
            duration_s=duration_s,
            measurement=end.finished.measurement if end.finished else None,
            environment=end.finished.environment if end.finished else None,
            log=log,
            gpu=gpu,
        )


class _TimedPass:
    """When the timed pass began and ended, as its messages came in; seconds since the trial's start."""

    def __init__(self, start: float) -> None:
        self._start = start
        self.from_s: float | None = None
        self.to_s: float | None = None

    def heard(self, message: Message) -> None:
        if isinstance(message, Stepped) and message.stage == "timed":
            self.to_s = time.monotonic() - self._start
            if self.from_s is None:
                self.from_s = self.to_s


@dataclass(frozen=True)
class _End:
    """How a trial ended."""

    status: Status
    reason: str | None
    finished: Finished | None = None


def _died(returncode: int | None, oom_killed: bool) -> _End:
    """A worker that ended without its last word."""
    if returncode is not None and returncode < 0:
        if -returncode == signal.SIGKILL and oom_killed:
            return _End("oom", "out of memory: the kernel killed the worker (SIGKILL)")
        name = f" ({signal.Signals(-returncode).name})" if -returncode in set(signal.Signals) else ""
        return _End("crashed", f"the worker was killed by signal {-returncode}{name}")
    return _End("crashed", f"the worker ended without a result (exit code {returncode})")


def hand_over(process: subprocess.Popen[bytes], job: bytes) -> None:
    """A cell or job on the worker's standard input; a worker that died first is found out by its pipe."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(job)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End the worker and everything it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def worker_environment(cell: Cell) -> dict[str, str]:
    """The worker's environment: libraries that read their thread count at import get the cell's."""
    threads = str(cell.threads)
    pinned = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), threads)
    ours = {"PYTHONUNBUFFERED": "1", messages.RUNNER_PID: str(os.getpid())}
    return {**os.environ, **machine.blas_variables(), **pinned, **ours}


def _tail(log: IO[bytes]) -> str | None:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - LOG_BYTES))
    return log.read().decode(errors="replace").strip() or None


def _oom_kills() -> int:
    """How many processes the kernel has killed for memory since it started; 0 where it does not say."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
