"""Processes that work for this one: each is started with its job, followed by what it writes to a pipe, and ended with
everything that it started.

Knows nothing of what the job is or the lines mean.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LOG_BYTES = 4096
"""How much of what a worker printed is kept, from its end."""

GRACE_S = 5.0
"""How long a worker may take to go after its last word."""

_END_S = 10.0
"""How long a keeper may take to end what it keeps."""

_KEEPER = str(Path(__file__).with_name("keeper.py"))

_NOT_STARTED = 127
"""The keeper's exit code where there is no such command, as a shell's."""


def run(words: Sequence[str], *, folder: Path, environment: Mapping[str, str], output: IO[bytes]) -> int:
    """Run a command to its end and give its exit code; what it started ends with it, whatever happens here."""
    process = subprocess.Popen(
        _kept(words), cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )
    try:
        return process.wait()
    finally:
        _end(process)


class Worker:
    """A process at work on a job, which it reads from standard input. `command` makes its command line from the number
    of the file descriptor to which it writes lines; what it prints becomes its log. Raises OSError where nothing can be
    started."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        job: bytes,
        *,
        timeout_s: float,
        environment: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        self.deadline = time.monotonic() + timeout_s
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `end`)
        self._pipe, pipe = os.pipe()
        self._pending = b""
        self._ended: Ended | None = None
        given = os.memfd_create("job")
        try:
            os.write(given, job)
            os.lseek(given, 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                _kept(command(pipe)),
                stdin=given,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(pipe,),
                start_new_session=True,  # Ctrl-C is for this process, which ends the worker
                cwd=folder,
                env=environment,
            )
        except BaseException:
            os.close(self._pipe)
            self._log.close()
            raise
        finally:
            os.close(pipe)
            os.close(given)

    def fileno(self) -> int:
        """What `select` waits on."""
        return self._pipe

    def lines(self) -> list[bytes] | None:
        """The whole lines that have come since the last call; waits for some. None at the end of the pipe."""
        chunk = os.read(self._pipe, 1 << 16)
        if not chunk:
            return None
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        return lines

    def end(self, grace_s: float = 0.0) -> Ended:
        """End it and everything that it started; it has `grace_s` to end by itself. May be called again."""
        if self._ended is not None:
            return self._ended
        code = None
        try:
            code = self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(self._process)
            os.close(self._pipe)
            with self._log as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
                printed = log.read().decode(errors="replace").strip() or None
            self._ended = Ended(code, printed)
        return self._ended


@dataclass(frozen=True)
class Ended:
    """A worker's end: its exit code or, negative, its signal, None where it did not end by itself; and the end of what
    it printed."""

    code: int | None
    log: str | None

    @property
    def says(self) -> str:
        """How it ended, of one that did so without its last word."""
        if self.code is None:
            return "the worker closed its pipe without a result"
        if self.code == _NOT_STARTED:
            return f"the worker could not be started: {self.log}"
        if self.code < 0:
            name = f" ({signal.Signals(-self.code).name})" if -self.code in set(signal.Signals) else ""
            return f"the worker was killed by signal {-self.code}{name}"
        return f"the worker ended without a result (exit code {self.code})"


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
