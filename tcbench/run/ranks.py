"""The ranks of one trial: started by a launcher, followed over a connection of each (`tcbench.rank` is the other end),
and their results put together; or which rank is to blame.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tcbench.core import messages, process
from tcbench.core.errors import SelectionError
from tcbench.core.messages import Finished, Joined, Message
from tcbench.core.process import Ended, Fault, Worker
from tcbench.core.record import Cell
from tcbench.core.variables import outside_jobs
from tcbench.run.launcher import Launcher
from tcbench.run.worker_launch import Launch, worker_environment

_JOIN_S = 60.0
"""Seconds in which all ranks must have come."""

_DUMP_S = 2.0
"""Seconds in which a rank says where it stands; one that computes does so at once."""

_GATHERING = re.compile(r"\b(allreduce|Allreduce|bcast|barrier|Barrier)\b")
"""Functions in which a rank waits for the others."""


class RankWorkers:
    """Many processes at work on one cell, started by a launcher; as `tcbench.core.process.Worker`. `command` makes a
    rank's command line from the address that it calls. Raises OSError where the launcher cannot be started."""

    def __init__(
        self,
        launcher: Launcher,
        ranks: int,
        job: bytes,
        command: Callable[[str], list[str]],
        *,
        timeout_s: float,
        environment: Mapping[str, str],
        folder: Path | None = None,
        grace_s: float = process.GRACE_S,
    ) -> None:
        self._ranks, self._job, self._launcher, self._timeout_s = ranks, job, launcher, timeout_s
        start = time.monotonic()
        self._deadline, self._join_by = start + timeout_s, start + min(timeout_s, _JOIN_S)
        self._connections: dict[int, _Connection] = {}
        self._done: dict[int, Finished] = {}
        self._folder = _folder_of_a_socket()
        self._ended: Ended | None = None
        self._poll = select.epoll()
        self._listening = socket.socket(socket.AF_UNIX if launcher.is_local else socket.AF_INET)
        try:
            address, self._secret = self._listen()
            self._process: Worker[Message] = Worker(
                lambda _: launcher.command(ranks, command(address)),
                b"",
                messages.decode,
                timeout_s=timeout_s,
                environment=outside_jobs(environment) if launcher.is_local else environment,
                folder=folder,
                grace_s=grace_s,
            )
        except BaseException:
            self._close()
            raise
        self._poll.register(self._listening, select.EPOLLIN)
        self._poll.register(self._process, select.EPOLLIN)

    def _listen(self) -> tuple[str, bytes]:
        """The address at which ranks are listened for, and what they must say first: on one host only this user can
        reach it."""
        path = str(self._folder / _SOCKET)
        self._listening.bind(path if self._launcher.is_local else ("", 0))
        self._listening.listen(self._ranks)
        if self._launcher.is_local:
            return f"unix:{path}", b""
        secret = secrets.token_hex(16)
        host, port = socket.gethostname(), self._listening.getsockname()[1]
        return f"tcp:{host}:{port}:{secret}", secret.encode()

    @property
    def pid(self) -> int:
        """The launcher's; ranks on other hosts do not descend from it."""
        return self._process.pid

    def fileno(self) -> int:
        return self._poll.fileno()

    @property
    def remaining_s(self) -> float:
        """Seconds until they have taken too long; to come, as long as some are missing."""
        by = self._deadline if self.are_there else min(self._deadline, self._join_by)
        return by - time.monotonic()

    @property
    def are_there(self) -> bool:
        return len(self._joined) == self._ranks

    @property
    def cores(self) -> int:
        """The fewest processors that one of those that have come is bound to; 0 where one is not."""
        return min(len(one.joined.cores) for one in self._connections.values() if one.joined is not None)

    @property
    def _joined(self) -> dict[int, _Connection]:
        return {one.joined.rank: one for one in self._connections.values() if one.joined is not None}

    def receive(self) -> Iterator[Message | Fault]:
        """Rank 0's messages, and at last one of all ranks; waits for some. A Fault is the last; all have ended then."""
        # In the order in which they became ready: of ranks that ended, the first is the one that took the others along.
        for descriptor, _ in self._poll.poll():
            if descriptor == self._listening.fileno():
                self._accept()
            elif descriptor == self._process.fileno():
                ended = self.end(patiently=True)
                yield Fault("crashed", f"the launcher ended before its ranks: {_gist(ended)}", ended)
                return
            elif (connection := self._connections.get(descriptor)) is not None:
                for message in self._of(connection):
                    yield message
                    if isinstance(message, Fault | Finished):
                        return

    def _accept(self) -> None:
        connection = _Connection(self._listening.accept()[0], self._secret)
        self._connections[connection.fileno()] = connection
        self._poll.register(connection, select.EPOLLIN)

    def _of(self, connection: _Connection) -> Iterator[Message | Fault]:
        try:
            received = connection.receive()
        except ConnectionError:
            received = None
        except ValueError:
            yield Fault("crashed", f"{connection} sent something that is no message", self.end())
            return
        if received is None:
            yield from self._lost(connection)
            return
        for message in received:
            if isinstance(message, Joined):
                fault = self._join(connection, message)
                if fault is not None:
                    yield fault
                    return
            elif isinstance(message, Finished):
                if message.status != "ok":
                    self.end()  # the others would wait for this one
                    yield Finished(message.status, f"{connection}: {message.reason}", None, message.environment)
                    return
                assert connection.joined is not None
                self._done[connection.joined.rank] = message
                if len(self._done) == self._ranks:
                    yield self._together()
                    return
            elif connection.joined is not None and connection.joined.rank == 0:
                yield message

    def _join(self, connection: _Connection, joined: Joined) -> Fault | None:
        """Take a rank in; when all are there, give them their job."""
        if joined.size != self._ranks:
            reason = (
                f"the launcher started ranks that know of {joined.size}, not of {self._ranks}: it belongs to another "
                "MPI than mpi4py's; --launcher mpirun uses the one beside this Python"
            )
            return Fault("crashed", reason, self.end())
        connection.joined = joined
        if self.are_there:
            for one in self._joined.values():
                with contextlib.suppress(OSError):  # it has ended since; so its connection says next
                    one.send(self._job + b"\n")
        return None

    def _lost(self, connection: _Connection) -> Iterator[Fault]:
        """A connection has ended: that of a rank with its result is through, any other one's rank is gone."""
        self._poll.unregister(connection)
        joined = connection.joined
        if joined is None:  # whoever that was
            del self._connections[connection.fileno()]
            connection.close()
        elif joined.rank not in self._done:
            ended = self.end(patiently=True)  # the launcher says what became of it
            number = _signal_of(joined.rank, ended.log or "")
            name = f" ({signal.Signals(number).name})" if number in set(signal.Signals) else ""
            how = f"was killed by signal {number}{name}" if number else "ended without a result"
            killed = str(connection) if number in (None, signal.SIGKILL) else None
            yield Fault("crashed", f"{connection} {how}", ended, killed)

    def _together(self) -> Finished:
        """All ranks' results as one: that of the one whose timed pass took longest, with a part of each, and the
        environment of rank 0 with the hosts of all."""
        finished = [self._done[rank] for rank in range(self._ranks)]
        measurements = [one.measurement for one in finished if one.measurement is not None]
        slowest = max(measurements, key=lambda one: sum(one.step_times_s))
        measurement = msgspec.structs.replace(slowest, ranks=tuple(part for one in measurements for part in one.ranks))
        environments = [one.environment for one in finished if one.environment is not None]
        ranks = [one.ranks for one in environments if one.ranks is not None]
        hosts = tuple(dict.fromkeys(host for one in ranks for host in one.hosts))
        together = msgspec.structs.replace(ranks[0], launcher=str(self._launcher), hosts=hosts) if ranks else None
        environment = msgspec.structs.replace(environments[0], ranks=together) if environments else None
        return Finished("ok", None, measurement, environment)

    def time_out(self) -> Fault:
        """End them because they have taken too long; says which rank the others wait for, as far as they tell."""
        joined = self._joined
        if len(joined) < self._ranks:
            came = f"{len(joined)} of {self._ranks} ranks came within {min(self._timeout_s, _JOIN_S):g} s"
            ended = self.end()
            said = f": {_gist(ended)}" if ended.log else ""
            return Fault("crashed", f"{came}{said}", ended)
        blame, stacks = self._blame(joined)
        ended = self.end()
        log = "\n\n".join(filter(None, [ended.log, *stacks]))
        reason = f"no result after {self._timeout_s:g} s (--timeout): {blame}"
        return Fault("timeout", reason, Ended(ended.code, log or None))

    def _blame(self, joined: Mapping[int, _Connection]) -> tuple[str, list[str]]:
        """The rank that holds up the others, in words, and the stack of each that answers."""
        here = socket.gethostname()
        asked = {rank: one for rank, one in joined.items() if one.joined and one.joined.host == here}
        for one in asked.values():
            assert one.joined is not None
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one.joined.pid, signal.SIGUSR1)  # the rank's stack, on its connection (faulthandler)
        until = time.monotonic() + _DUMP_S
        stacks: dict[int, str] = {}
        while (left := until - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in self._poll.poll(min(left, _DUMP_S / 8))}
            if not ready and len(stacks) == len(asked):  # all have said it, to the end
                break
            for rank, one in asked.items():
                if one.fileno() in ready:
                    with contextlib.suppress(OSError):
                        stacks[rank] = stacks.get(rank, "") + one.raw()
        silent = [str(asked[rank]) for rank in sorted(asked.keys() - stacks.keys())]
        busy = [str(asked[rank]) for rank, stack in sorted(stacks.items()) if not _GATHERING.search(stack)]
        texts = [f"{asked[rank]} stood at:\n{stack.strip()}" for rank, stack in sorted(stacks.items())]
        if silent:
            return f"{' and '.join(silent)} did not answer", texts
        if busy and len(busy) < len(joined):
            return f"{' and '.join(busy)} did not come to where the others wait", texts
        return "every rank was at work" if busy else "every rank waited for the others", texts

    def end(self, *, patiently: bool = False) -> Ended:
        if self._ended is None:
            try:
                self._ended = self._process.end(patiently=patiently)
            finally:
                self._close()
        return self._ended

    def _close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._listening.close()
        self._poll.close()
        shutil.rmtree(self._folder, ignore_errors=True)


_SOCKET = "ranks"
_LONGEST_ADDRESS = 107
"""Bytes of a socket's path that Linux takes (unix(7))."""


def _folder_of_a_socket() -> Path:
    """Make a folder for temporary files whose path leaves room for that of a socket in it. Raises OSError."""
    for parent in (tempfile.gettempdir(), "/tmp", "/dev/shm"):
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="tcbench-ranks-", dir=parent))
            if len(os.fsencode(folder / _SOCKET)) <= _LONGEST_ADDRESS:
                return folder
            folder.rmdir()
    raise OSError(errno.ENAMETOOLONG, f"no folder for a socket: TMPDIR={tempfile.gettempdir()} is too long a path")


class _Connection:
    """The connection of one rank; of nobody until it has joined."""

    def __init__(self, connection: socket.socket, secret: bytes) -> None:
        self._socket = connection
        self._secret = secret or None
        self._pending = b""
        self.joined: Joined | None = None

    def __str__(self) -> str:
        return f"rank {self.joined.rank} ({self.joined.host}, process {self.joined.pid})" if self.joined else "a rank"

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[Message] | None:
        """The messages that have come; None at the end. Raises ValueError for anything else."""
        chunk = self._socket.recv(1 << 16)
        if not chunk:
            return None
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if self._secret is not None and lines:
            if not secrets.compare_digest(lines.pop(0), self._secret):
                return None
            self._secret = None
        return [messages.decode(line) for line in lines]

    def raw(self) -> str:
        """All that has come, message or not."""
        return self._socket.recv(1 << 16).decode(errors="replace")

    def send(self, line: bytes) -> None:
        self._socket.sendall(line)

    def close(self) -> None:
        self._socket.close()


def probe(launcher: Launcher, ranks: int, command: Callable[[str], list[str]], environment: Mapping[str, str]) -> int:
    """Have the launcher start as many ranks, which only say that they are there; the number of processors that each is
    bound to, 0 where they are not. Raises SelectionError where they do not all come."""
    try:
        asked = RankWorkers(launcher, ranks, b"", command, timeout_s=_JOIN_S, environment=environment)
    except OSError as error:
        raise SelectionError(f"--launcher {launcher}: cannot be started: {error}") from None
    try:
        while not asked.are_there:
            for _, message in process.receive([asked]):
                if isinstance(message, Fault):
                    raise SelectionError(f"--ranks {ranks}, started by `{launcher}`: {message.reason}")
        return asked.cores
    finally:
        asked.end(patiently=True)


def _signal_of(rank: int, log: str) -> int | None:
    """The signal that killed a rank, by what its launcher printed: mpirun prints its number, `rank 1 ... on signal 9`,
    srun its name, `srun: error: HOST: tasks 0-1: Terminated`."""
    if by := re.search(rf"\brank {rank}\b[^\n]*?\bsignal (\d+)", " ".join(log.split())):
        return int(by[1])
    names = {signal.strsignal(number): number for number in signal.valid_signals()}
    for tasks, name in re.findall(r"(?m)^srun: error: \S+: tasks? ([\d,-]+): (.+?)(?: \(core dumped\))?$", log):
        ranges = re.findall(r"(\d+)(?:-(\d+))?", tasks)
        if name in names and any(int(first) <= rank <= int(last or first) for first, last in ranges):
            return names[name]
    return None


def _gist(ended: Ended) -> str:
    """A launcher's reason on one line: the first sentence that it printed, without the frame that some draw around it;
    where a rank raised something, that; tracebacks of several mingle."""
    raised = re.search(r"(?m)^Traceback[^\n]*\n(?:(?: |Traceback)[^\n]*\n|\n)*(\S[^\n]*)", ended.log or "")
    if raised:
        return raised[1]
    paragraphs = re.split(r"(?m)^[\s\W_]*$", ended.log or "")
    first = next((" ".join(text.split()) for text in paragraphs if text.strip()), None)
    if first is None:
        return ended.description.replace("the worker", "it")
    sentence = re.match(r".*?\.(?= [A-Z]|$)", first)
    return (sentence[0] if sentence else first).rstrip(".:")[:300]


def probe_largest(launcher: Launcher, cells: Sequence[Cell]) -> int:
    """Have the launcher start as many ranks as the largest cell has, before anything is measured; the number of
    processors that each is bound to, 0 where they are not or there is one. Raises SelectionError where they do not
    come."""
    cell = max(cells, key=lambda cell: cell.ranks, default=None)
    if cell is not None and cell.ranks > 1:
        return probe(launcher, cell.ranks, Launch().rank_command, worker_environment(cell))
    return 0
