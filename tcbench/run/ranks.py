"""Runs the ranks of one trial: a launcher starts them, each connects to this process (`tcbench.rank` is the other end),
and their results are combined. If they hang, it finds the rank to blame."""

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
"""Seconds within which all ranks must connect."""

_DUMP_S = 2.0
"""Seconds to wait for the stacks of ranks. A rank that computes sends its stack at once."""

_GATHERING = re.compile(r"\b(allreduce|Allreduce|bcast|barrier|Barrier)\b")
"""Functions in which a rank waits for the others."""


class RankWorkers(Worker[Message]):
    """The ranks of one trial. The process of this worker is the launcher, which starts them; each rank then connects to
    this process and receives `job`. `command` returns a rank's command line for the address that it connects to. Raises
    OSError if the launcher cannot be started."""

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
        self._ranks, self._job, self._launcher = ranks, job, launcher
        self._join_by = time.monotonic() + min(timeout_s, _JOIN_S)
        self._connections: dict[int, _Connection] = {}
        self._done: dict[int, Finished] = {}
        self._folder = _socket_folder()
        self._poll = select.epoll()
        self._listening = socket.socket(socket.AF_UNIX if launcher.is_local else socket.AF_INET)
        try:
            address, self._secret = self._listen()
            super().__init__(
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
        self._poll.register(self._pipe, select.EPOLLIN)

    def _listen(self) -> tuple[str, bytes]:
        """Listen for ranks, and return the address and the secret that they must send first. With all ranks on this
        host, a socket that only this user can reach needs no secret."""
        path = str(self._folder / _SOCKET)
        self._listening.bind(path if self._launcher.is_local else ("", 0))
        self._listening.listen(self._ranks)
        if self._launcher.is_local:
            return f"unix:{path}", b""
        secret = secrets.token_hex(16)
        host, port = socket.gethostname(), self._listening.getsockname()[1]
        return f"tcp:{host}:{port}:{secret}", secret.encode()

    def fileno(self) -> int:
        return self._poll.fileno()

    @property
    def remaining_s(self) -> float:
        """Seconds until the trial's timeout or, while ranks are missing, until the timeout for connecting if that is
        earlier."""
        trial_s = super().remaining_s
        return trial_s if self.all_joined else min(trial_s, self._join_by - time.monotonic())

    @property
    def all_joined(self) -> bool:
        """Whether all ranks have connected."""
        return len(self._joined) == self._ranks

    @property
    def cores(self) -> int:
        """The smallest number of processors to which a connected rank is bound; 0 if one is not bound."""
        return min(len(joined.cores) for _, joined in self._joined.values())

    @property
    def _joined(self) -> dict[int, tuple[_Connection, Joined]]:
        """The connections whose ranks have introduced themselves, by rank, each with the rank's message."""
        connections = self._connections.values()
        return {c.joined.rank: (c, c.joined) for c in connections if c.joined is not None}

    def receive(self) -> Iterator[Message | Fault]:
        """Wait for messages, and yield those of rank 0. At the end of the trial, yield one Finished for all ranks, or a
        Fault, after which all ranks have ended."""
        # In the order in which they became ready: the first rank that ended is the cause of the others' end.
        for descriptor, _ in self._poll.poll():
            if descriptor == self._listening.fileno():
                self._accept()
            elif descriptor == self._pipe:
                ended = self.end(patiently=True)
                yield Fault("crashed", f"the launcher ended before its ranks: {_gist(ended)}", ended)
                return
            elif (connection := self._connections.get(descriptor)) is not None:
                for message in self._messages(connection):
                    yield message
                    if isinstance(message, Fault | Finished):
                        return

    def _accept(self) -> None:
        """Accept the connection of a rank."""
        connection = _Connection(self._listening.accept()[0], self._secret)
        self._connections[connection.fileno()] = connection
        self._poll.register(connection, select.EPOLLIN)

    def _messages(self, connection: _Connection) -> Iterator[Message | Fault]:
        """Handle what a connection has sent, and yield the messages to pass on: rank 0's, and the end of the trial."""
        try:
            received = connection.receive()
        except ConnectionError:
            received = None
        except ValueError:
            yield Fault("crashed", f"{connection} sent an invalid message", self.end())
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
                    self.end()  # the other ranks would wait for this one
                    yield Finished(message.status, f"{connection}: {message.reason}", None, message.environment)
                    return
                assert connection.joined is not None
                self._done[connection.joined.rank] = message
                if len(self._done) == self._ranks:
                    yield self._combined()
                    return
            elif connection.joined is not None and connection.joined.rank == 0:
                yield message

    def _join(self, connection: _Connection, joined: Joined) -> Fault | None:
        """Add a rank. When all have joined, send them their job. Return None, or a fault if the launcher started
        another number of ranks."""
        if joined.size != self._ranks:
            reason = (
                f"the ranks report a world size of {joined.size}, not {self._ranks}: the launcher belongs to another "
                "MPI than mpi4py's; --launcher mpirun uses the one installed with this Python"
            )
            return Fault("crashed", reason, self.end())
        connection.joined = joined
        if self.all_joined:
            for member, _ in self._joined.values():
                with contextlib.suppress(OSError):  # it ended meanwhile, which its connection will show
                    member.send(self._job + b"\n")
        return None

    def _lost(self, connection: _Connection) -> Iterator[Fault]:
        """Handle the end of a connection. If a rank closed it before sending its result, end all ranks and yield a
        fault."""
        self._poll.unregister(connection)
        joined = connection.joined
        if joined is None:  # it never introduced itself
            del self._connections[connection.fileno()]
            connection.close()
        elif joined.rank not in self._done:
            ended = self.end(patiently=True)  # the launcher's output says why the rank ended
            number = _signal_of(joined.rank, ended.log or "")
            name = f" ({signal.Signals(number).name})" if number in set(signal.Signals) else ""
            how = f"was killed by signal {number}{name}" if number else "ended without a result"
            # Without a known signal, the kernel may have killed it for lack of memory.
            killed = str(connection) if number in (None, signal.SIGKILL) else None
            yield Fault("crashed", f"{connection} {how}", ended, killed)

    def _combined(self) -> Finished:
        """Return all ranks' results as one: the measurement of the rank with the longest timed pass, with the parts of
        all ranks, and the environment of rank 0 with the hosts of all."""
        results = [self._done[rank] for rank in range(self._ranks)]
        measurements = [result.measurement for result in results if result.measurement is not None]
        slowest = max(measurements, key=lambda measured: sum(measured.step_times_s))
        parts = tuple(part for measured in measurements for part in measured.ranks)
        environments = [result.environment for result in results if result.environment is not None]
        ranks = [environment.ranks for environment in environments if environment.ranks is not None]
        hosts = tuple(dict.fromkeys(host for rank in ranks for host in rank.hosts))
        combined = msgspec.structs.replace(ranks[0], launcher=str(self._launcher), hosts=hosts) if ranks else None
        environment = msgspec.structs.replace(environments[0], ranks=combined) if environments else None
        return Finished("ok", None, msgspec.structs.replace(slowest, ranks=parts), environment)

    def time_out(self) -> Fault:
        """End the ranks because they have taken too long, and return a fault that names the rank for which the others
        wait, if known."""
        joined = self._joined
        if len(joined) < self._ranks:
            came = f"{len(joined)} of {self._ranks} ranks connected within {min(self._timeout_s, _JOIN_S):g} s"
            ended = self.end()
            reason = f": {_gist(ended)}" if ended.log else ""
            return Fault("crashed", f"{came}{reason}", ended)
        blame, stacks = self._blame(joined)
        ended = self.end()
        log = "\n\n".join(filter(None, [ended.log, *stacks]))
        reason = f"no result after {self._timeout_s:g} s (--timeout): {blame}"
        return Fault("timeout", reason, Ended(ended.code, log or None))

    def _blame(self, joined: Mapping[int, tuple[_Connection, Joined]]) -> tuple[str, list[str]]:
        """Return in words which rank the others wait for, and a text with the stack of each rank on this host that
        answers."""
        host = socket.gethostname()
        local = {rank: connection for rank, (connection, member) in joined.items() if member.host == host}
        for rank in local:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(joined[rank][1].pid, signal.SIGUSR1)  # faulthandler sends the rank's stack on its connection
        deadline = time.monotonic() + _DUMP_S
        stacks: dict[int, str] = {}
        while (remaining_s := deadline - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in self._poll.poll(min(remaining_s, _DUMP_S / 8))}
            if not ready and len(stacks) == len(local):  # all stacks are complete
                break
            for rank, connection in local.items():
                if connection.fileno() in ready:
                    with contextlib.suppress(OSError):
                        stacks[rank] = stacks.get(rank, "") + connection.receive_text()
        silent = [str(local[rank]) for rank in sorted(local.keys() - stacks.keys())]
        busy = [str(local[rank]) for rank, stack in sorted(stacks.items()) if not _GATHERING.search(stack)]
        texts = [f"stack of {local[rank]}:\n{stack.strip()}" for rank, stack in sorted(stacks.items())]
        if silent:
            return f"{' and '.join(silent)} did not answer", texts
        if busy and len(busy) < len(joined):
            return f"{' and '.join(busy)} did not reach the collective", texts
        return "all ranks were computing" if busy else "all ranks were waiting for each other", texts

    def end(self, *, patiently: bool = False) -> Ended:
        """End the launcher and all ranks, and return how the launcher ended. `patiently`: let them end by themselves
        first."""
        try:
            return super().end(patiently=patiently)
        finally:
            self._close()

    def _close(self) -> None:
        """Close all connections and remove the folder of the socket."""
        for connection in self._connections.values():
            connection.close()
        self._listening.close()
        self._poll.close()
        shutil.rmtree(self._folder, ignore_errors=True)


_SOCKET = "ranks"
_LONGEST_ADDRESS = 107
"""The longest path of a socket in bytes, on Linux (unix(7))."""


def _socket_folder() -> Path:
    """Make a temporary folder whose path is short enough for a socket in it, and return it. Raises OSError if there is
    no place for one."""
    for parent in (tempfile.gettempdir(), "/tmp", "/dev/shm"):
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="tcbench-ranks-", dir=parent))
            if len(os.fsencode(folder / _SOCKET)) <= _LONGEST_ADDRESS:
                return folder
            folder.rmdir()
    raise OSError(errno.ENAMETOOLONG, f"no folder for a socket: set TMPDIR={tempfile.gettempdir()} to a shorter path")


class _Connection:
    """The connection of one rank, which is unknown until the rank has introduced itself."""

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
        """Return the messages that have arrived completely. None at the end of the connection, or if the rank sent a
        wrong secret. Raises ValueError for anything that is not a message."""
        chunk = self._socket.recv(1 << 16)
        if not chunk:
            return None
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if self._secret is not None and lines:
            if not secrets.compare_digest(lines.pop(0), self._secret):
                return None
            self._secret = None
        return [messages.decode(line) for line in lines]

    def receive_text(self) -> str:
        """Return everything that has arrived as text, whether messages or not."""
        return self._socket.recv(1 << 16).decode(errors="replace")

    def send(self, line: bytes) -> None:
        self._socket.sendall(line)

    def close(self) -> None:
        self._socket.close()


def probe(launcher: Launcher, ranks: int, command: Callable[[str], list[str]], environment: Mapping[str, str]) -> int:
    """Start ranks that only connect, and return the smallest number of processors to which one of them is bound (0: not
    bound). `command` returns a rank's command line for an address. Raises SelectionError if not all connect."""
    try:
        workers = RankWorkers(launcher, ranks, b"", command, timeout_s=_JOIN_S, environment=environment)
    except OSError as error:
        raise SelectionError(f"--launcher {launcher}: cannot be started: {error}") from None
    try:
        while not workers.all_joined:
            for _, message in process.receive([workers]):
                if isinstance(message, Fault):
                    raise SelectionError(f"--ranks {ranks}, started by `{launcher}`: {message.reason}")
        return workers.cores
    finally:
        workers.end(patiently=True)


def _signal_of(rank: int, log: str) -> int | None:
    """Return the number of the signal that killed a rank, according to the launcher's output, or None. mpirun prints
    the number (`rank 1 ... on signal 9`), srun the name (`srun: error: HOST: tasks 0-1: Terminated`)."""
    if match := re.search(rf"\brank {rank}\b[^\n]*?\bsignal (\d+)", " ".join(log.split())):
        return int(match[1])
    names = {signal.strsignal(number): number for number in signal.valid_signals()}
    for tasks, name in re.findall(r"(?m)^srun: error: \S+: tasks? ([\d,-]+): (.+?)(?: \(core dumped\))?$", log):
        ranges = re.findall(r"(\d+)(?:-(\d+))?", tasks)
        if name in names and any(int(first) <= rank <= int(last or first) for first, last in ranges):
            return names[name]
    return None


def _gist(ended: Ended) -> str:
    """Return one line that says why the launcher ended: the exception that a rank raised, or else the first sentence of
    the output, without the frame that some launchers draw around it."""
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
    """Start as many ranks as the largest cell has, before anything is measured, and return the number of processors to
    which each is bound (0: not bound, or only one rank). Raises SelectionError if not all connect."""
    cell = max(cells, key=lambda cell: cell.workers, default=None)
    if cell is not None and cell.workers > 1:
        return probe(launcher, cell.ranks, Launch().rank_command, worker_environment(cell))
    return 0
