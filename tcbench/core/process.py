"""The one place that starts processes: commands that answer a question, and workers. A worker is started with its job,
followed by the messages that it writes to a pipe, and ended with everything that it started.
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
from typing import IO, Generic, Literal, Protocol, TypeVar

from tcbench.core.files import unnamed_file

LOG_BYTES = 4096
"""The part of a worker's output that is kept, from its end."""

GRACE_S = 5.0
"""Seconds that a worker may take to end after its last message."""

_END_S = 10.0
"""Seconds that a keeper may take to end what it keeps."""

_LAST_WORDS_S = 1.0
"""Seconds that the last that a worker printed may take to be read."""

_KEEPER = str(Path(__file__).with_name("keeper.py"))

_NOT_STARTED = 127
"""The keeper's exit code where there is no such command, as a shell's."""


@dataclass(frozen=True)
class CommandAnswer:
    """A command's exit code (negative: its signal) and what it printed."""

    code: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """The last line on standard error, else on standard output: most often what went wrong."""
        lines = [line.strip() for line in (self.stdout + "\n" + self.stderr).replace("\r", "\n").splitlines()]
        return next((line for line in reversed(lines) if line), f"exit code {self.code}")


def ask(
    words: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
) -> CommandAnswer:
    """Run a command that answers a question, without input. Raises TimeoutError after `limit_s`, OSError at start."""
    try:
        done = subprocess.run(
            words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {limit_s:g} s") from None
    return CommandAnswer(done.returncode, os.fsdecode(done.stdout), done.stderr.decode(errors="replace"))


def run(words: Sequence[str], *, folder: Path, environment: Mapping[str, str], output: IO[bytes]) -> int:
    """Run a command to its end and give its exit code; what it started ends with it, whatever happens here."""
    process = subprocess.Popen(
        _kept(words), cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )
    try:
        return process.wait()
    finally:
        _end(process)


Message = TypeVar("Message")
Sent = TypeVar("Sent", covariant=True)


class Worker(Generic[Message]):
    """A process at work on a job, which it reads from standard input. `command` makes its command line from the number
    of the file descriptor to which it writes messages, one a line, which `decode` reads; what it prints becomes its
    log. It may take `timeout_s`, and `grace_s` to end after its last message; `files` are descriptors that it gets
    beside those. Raises OSError where nothing can be started."""

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
    ) -> None:
        self._timeout_s, self._grace_s, self._decode = timeout_s, grace_s, decode
        self._deadline = time.monotonic() + timeout_s
        self._log = _Log()
        self._pipe, pipe = os.pipe()
        self._pending = b""
        self._ended: Ended | None = None
        job_file = -1
        try:
            job_file = unnamed_file(job)
            self._process = subprocess.Popen(
                _kept(command(pipe)),
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
        """The process of which all that it started descends."""
        return self._process.pid

    def fileno(self) -> int:
        return self._pipe

    @property
    def remaining_s(self) -> float:
        return self._deadline - time.monotonic()

    def receive(self) -> Iterator[Message | Fault]:
        """The messages since the last call; waits for some. A Fault is the last: the worker has ended then."""
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
                yield Fault("crashed", "the worker sent something that is no message", self.end())
                return
            yield message

    def time_out(self) -> Fault:
        return Fault("timeout", f"no result after {self._timeout_s:g} s (--timeout)", self.end())

    def end(self, *, patiently: bool = False) -> Ended:
        """End it and everything that it started; `patiently` it may first end by itself. May be called again."""
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
    """The end of what is written to `pipe`, which whoever makes this closes: it is read at once, and takes no disk."""

    def __init__(self) -> None:
        self._reads, self.pipe = os.pipe()
        self._kept = b""
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        with open(self._reads, "rb", buffering=0) as written:
            while chunk := written.read(1 << 16):
                self._kept = (self._kept + chunk)[-LOG_BYTES:]

    def end(self) -> bytes:
        """All who wrote have ended; a process that nobody could end may hold the pipe still."""
        self._thread.join(_LAST_WORDS_S)
        return self._kept


class Followed(Protocol[Sent]):
    """Whoever works on a job and sends messages: one worker, or many. Its methods are as `Worker`'s."""

    @property
    def pid(self) -> int: ...
    def fileno(self) -> int: ...
    @property
    def remaining_s(self) -> float: ...
    def receive(self) -> Iterator[Sent | Fault]: ...
    def time_out(self) -> Fault: ...
    def end(self, *, patiently: bool = False) -> Ended: ...


def receive(workers: Sequence[Followed[Message]]) -> Iterator[tuple[Followed[Message], Message | Fault]]:
    """The next messages of workers, waited for; those that have taken too long are ended with a Fault."""
    if not workers:
        return
    least_s = min(worker.remaining_s for worker in workers)
    readable = select.select(workers, [], [], max(0.0, least_s))[0]
    for worker in workers:
        if worker.remaining_s <= 0:
            yield worker, worker.time_out()
        elif worker in readable:
            for message in worker.receive():
                yield worker, message


@dataclass(frozen=True)
class Ended:
    """A worker's end: its exit code or, negative, its signal (None: it was ended), and the end of what it printed."""

    code: int | None
    log: str | None

    @property
    def description(self) -> str:
        """The end of a worker that sent no result, in words."""
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
    """The end of a worker without a result: too late, or in any other way. `reason` is one line. `killed` names what
    was ended by SIGKILL, where something was."""

    status: Literal["timeout", "crashed"]
    reason: str
    ended: Ended
    killed: str | None = None


def _kept(words: Sequence[str]) -> list[str]:
    """The command with a keeper around it, which outlives this process just as long as it takes to end the command."""
    return [sys.executable, "-I", "-S", _KEEPER, str(os.getpid()), *words]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have the keeper end everything; it waits until all of it is gone."""
    if process.poll() is None:
        process.terminate()
        process.send_signal(signal.SIGCONT)  # where someone stopped it
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:  # it waits for what cannot be ended
            process.kill()
            process.wait()
