"""The module that starts all processes: commands that run to their end, and workers.

A worker reads a job from standard input and writes messages to a pipe. When it ends, everything that it started ends.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Generic, Literal, TypeVar

from tcbench.core.files import unnamed_file

LOG_BYTES = 4096
"""The number of bytes that are stored of a worker's output: the last ones."""

GRACE_S = 5.0
"""Seconds that a worker may take to exit after its last message."""

_END_S = 10.0
"""Seconds that a keeper may take to kill the processes of its command."""

_LOG_READ_S = 1.0
"""Seconds that reading a worker's last output may take."""

_KEEPER = str(Path(__file__).with_name("keeper.py"))

_NOT_STARTED = 127
"""The keeper's exit code if the command does not exist. A shell uses the same code."""


@dataclass(frozen=True)
class CommandAnswer:
    """The exit code (negative: the signal) and the output of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """The last line on standard error, else on standard output. It usually tells what went wrong."""
        lines = [line.strip() for line in (self.stdout + "\n" + self.stderr).replace("\r", "\n").splitlines()]
        return next((line for line in reversed(lines) if line), f"exit code {self.code}")


def ask(
    words: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
) -> CommandAnswer:
    """Run a command without input and return its output and exit code. Raises TimeoutError after `limit_s` seconds, and
    OSError if the command cannot be started."""
    try:
        done = subprocess.run(
            words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {limit_s:g} s") from None
    return CommandAnswer(done.returncode, os.fsdecode(done.stdout), done.stderr.decode(errors="replace"))


def run(words: Sequence[str], *, folder: Path, environment: Mapping[str, str], output: IO[bytes]) -> int:
    """Run a command to its end and return its exit code (negative: the signal). Its output and errors go to `output`.
    All processes that it started are ended with it, also if this process is interrupted."""
    process = subprocess.Popen(
        _with_keeper(words), cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )
    try:
        return process.wait()
    finally:
        _end(process)


class Child:
    """A command that this process runs while it does other work, such as a user's program. Raises OSError.

    Its output is copied to this process's output. `fileno` becomes readable when it has ended; then `code` is its exit
    code (negative: the signal) and `elapsed_s` its duration. The keeper of this process ends it too."""

    def __init__(self, words: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> None:
        self._log = _Log(echo=True)
        self.code: int | None = None
        self.elapsed_s = 0.0
        self._ended, ended = os.pipe()
        began_s = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                words,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._log.pipe,
                stderr=self._log.pipe,
            )
        except BaseException:
            os.close(ended)
            os.close(self._ended)
            raise
        finally:
            os.close(self._log.pipe)

        def wait() -> None:
            code = self._process.wait()
            self.elapsed_s, self.code = time.perf_counter() - began_s, code
            os.close(ended)

        threading.Thread(target=wait, daemon=True).start()

    @property
    def pid(self) -> int:
        """The command's process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when the command has ended."""
        return self._ended

    def kill(self) -> None:
        """Kill the command."""
        self._process.kill()

    def last_line(self) -> str:
        """Return the last line of the command's output, after it has ended, and release its descriptors."""
        os.close(self._ended)
        lines = self._log.end().decode(errors="replace").replace("\r", "\n").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


Message = TypeVar("Message")


class Worker(Generic[Message]):
    """A process that works on a job and sends messages. Raises OSError if it cannot be started.

    The process reads `job` from standard input and writes one message per line, decoded by `decode`, to a file
    descriptor; `command` returns its command line for that descriptor. Its output becomes its log. It may take
    `timeout_s` seconds, and `grace_s` to exit after its last message. `files` are further descriptors that it inherits.
    `spent_s` returns the seconds that count for the timeout, if these are not all since its start."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        job: bytes,
        decode: Callable[[bytes], Message],
        *,
        timeout_s: float,
        environment: Mapping[str, str],
        folder: Path | None = None,
        grace_s: float = GRACE_S,
        files: Sequence[int] = (),
        spent_s: Callable[[], float] | None = None,
    ) -> None:
        self._timeout_s, self._grace_s, self._decode = timeout_s, grace_s, decode
        began_s = time.monotonic()
        self._spent_s = spent_s or (lambda: time.monotonic() - began_s)
        self._log = _Log()
        self._pipe, pipe = os.pipe()
        self._pending = b""
        self._ended: Ended | None = None
        job_file = -1
        try:
            job_file = unnamed_file(job)
            self._process = subprocess.Popen(
                _with_keeper(command(pipe)),
                stdin=job_file,
                stdout=self._log.pipe,
                stderr=self._log.pipe,
                pass_fds=(pipe, *files),
                start_new_session=True,  # Ctrl-C is for this process, which ends the worker
                cwd=folder,
                env=environment,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(self._log.pipe)
            os.close(pipe)
            if job_file >= 0:
                os.close(job_file)

    @property
    def pid(self) -> int:
        """The process id of the keeper, the ancestor of all of the worker's processes."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the file descriptor of the message pipe, for `select`."""
        return self._pipe

    @property
    def remaining_s(self) -> float:
        """Seconds until the timeout."""
        return self._timeout_s - self._spent_s()

    def receive(self) -> Iterator[Message | Fault]:
        """Wait until the worker sends something, and yield the messages that are complete. If it has ended without a
        result or sent no valid message, end it and yield a Fault as the last one."""
        chunk = os.read(self._pipe, 1 << 16)
        if not chunk:
            ended = self.end(patiently=True)
            yield Fault("crashed", ended.description, ended, "the worker" if ended.code == -signal.SIGKILL else None)
            return
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        for line in lines:
            try:
                message = self._decode(line)
            except ValueError:
                yield Fault("crashed", "the worker sent something that is not a message", self.end())
                return
            yield message

    def time_out(self) -> Fault:
        """End the worker because of its timeout, and return the fault."""
        return Fault("timeout", f"no result after {self._timeout_s:g} s (--timeout)", self.end())

    def end(self, *, patiently: bool = False) -> Ended:
        """End the worker and everything that it started, and return how it ended. If `patiently`, first give it
        `grace_s` seconds to exit by itself. Further calls return the same result."""
        if self._ended is not None:
            return self._ended
        code = None
        try:
            code = self._process.wait(self._grace_s if patiently else 0.0)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(self._process)
            os.close(self._pipe)
            self._ended = Ended(code, self._log.end().decode(errors="replace").strip() or None)
        return self._ended


class _Log:
    """A pipe whose output is read by a thread and of which only the last bytes are stored. The creator closes `pipe`,
    the end to write to. With `echo`, the output is also copied to this process's output."""

    def __init__(self, echo: bool = False) -> None:
        self._echo = echo
        self._read_end, self.pipe = os.pipe()
        self._tail = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with open(self._read_end, "rb", buffering=0) as output:
            while chunk := output.read(1 << 16):
                self._tail = (self._tail + chunk)[-LOG_BYTES:]
                if self._echo:
                    sys.stdout.buffer.write(chunk)
                    sys.stdout.buffer.flush()

    def end(self) -> bytes:
        """Return the last bytes of the output, after all writers have ended. The wait is limited, because a process
        that could not be killed may still hold the pipe open."""
        self._thread.join(_LOG_READ_S)
        return self._tail


def receive(
    workers: Sequence[Worker[Message]], wake: Sequence[int] = ()
) -> Iterator[tuple[Worker[Message], Message | Fault]]:
    """Wait until one of the workers sends messages or reaches its timeout, and yield each message with its worker. A
    worker that is past its timeout is ended, and its Fault is yielded. The wait also ends when one of the descriptors
    in `wake` becomes readable."""
    if not workers:
        return
    remaining_s = min(worker.remaining_s for worker in workers)
    watched: list[Worker[Message] | int] = [*workers, *wake]
    readable = select.select(watched, [], [], max(0.0, remaining_s))[0]
    for worker in workers:
        if worker.remaining_s <= 0:
            yield worker, worker.time_out()
        elif worker in readable:
            for message in worker.receive():
                yield worker, message


@dataclass(frozen=True)
class Ended:
    """The end of a worker: its exit code (negative: a signal; None: this process ended it) and its last output."""

    code: int | None
    log: str | None

    @property
    def description(self) -> str:
        """One line that says how a worker ended that sent no result."""
        if self.code is None:
            return "the worker closed its pipe without a result"
        if self.code == _NOT_STARTED:
            return f"the worker could not be started: {self.log}"
        if self.code < 0:
            name = f" ({signal.Signals(-self.code).name})" if -self.code in set(signal.Signals) else ""
            return f"the worker was killed by signal {-self.code}{name}"
        return f"the worker ended without a result (exit code {self.code})"


@dataclass(frozen=True)
class Fault:
    """The end of a worker that sent no result. `reason` is one line. `killed` names what SIGKILL killed, if
    anything."""

    status: Literal["timeout", "crashed"]
    reason: str
    ended: Ended
    killed: str | None = None


def _with_keeper(words: Sequence[str]) -> list[str]:
    """Return the command line that runs a command under a keeper. The keeper outlives this process only for the time
    that it needs to end the command."""
    return [sys.executable, "-I", "-S", _KEEPER, str(os.getpid()), *words]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Make a keeper end its command and everything that the command started, and wait until all of it is gone."""
    if process.poll() is None:
        process.terminate()
        process.send_signal(signal.SIGCONT)  # in case someone stopped it
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:  # some process cannot be killed
            process.kill()
            process.wait()
