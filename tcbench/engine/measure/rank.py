"""One rank of a cell that has many: a process that a launcher started, which calls back to the runner.

Run as `python -m tcbench.rank ADDRESS` by the launcher, as often as the cell has ranks. It finds its place among them
by MPI, joins (`tcbench.core.messages.Joined`), gets its job on the same connection, one line, and then does and sends
what any worker does. An empty job ends it: the runner only asked who is there. It dies when the runner closes the
connection, wherever it computes then."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import socket
import sys
from typing import Any

import msgspec

from tcbench.core.messages import Finished, Joined, Message, ProfileRequest, Stepped
from tcbench.core.record import Cell, Ranks
from tcbench.engine import affinity
from tcbench.engine.accelerators.device import kind_of
from tcbench.engine.measure import worker
from tcbench.engine.session import Session
from tcbench.engine.world import World, entered
from tcbench.hardware import kernel, machine


def main() -> None:
    """Join the runner that calls from the address, and do its job."""
    connection = connect(sys.argv[1])
    connection.settimeout(None)
    from mpi4py import MPI

    world = _world(MPI)
    masks = [frozenset(mask) for mask in _local(MPI).allgather(sorted(kernel.affinity()))]
    cores, bound = affinity.share(masks, world.local_rank)
    joined = Joined(world.rank, world.size, socket.gethostname(), os.getpid(), cores, bound)

    def send(message: Message) -> None:
        connection.sendall(msgspec.json.encode(message) + b"\n")

    send(joined)
    with connection.makefile("rb") as lines:
        job = lines.readline().strip()
    if not job:
        return
    # Before anything imports a library that reads these: a launcher need not hand on the environment to other hosts.
    cell = msgspec.json.decode(job, type=Cell)
    os.environ.update(machine.library_variables(cell.threads))
    cell = msgspec.structs.replace(cell, device=kind_of(cell.device).of_rank(cell.device, world.local_rank))
    faulthandler.register(signal.SIGUSR1, file=connection.fileno(), all_threads=False)
    _die_with(connection, True)
    request = msgspec.json.decode(sys.argv[2], type=ProfileRequest).for_rank(world.rank) if len(sys.argv) > 2 else None
    with entered(world):
        finished = _run(cell, joined, send, request)
    _die_with(connection, False)  # a long message waits for room, which is such an event too
    send(finished)


def _run(cell: Cell, joined: Joined, send: worker.Send, request: ProfileRequest | None) -> Finished:
    """The cell's end at this rank, with its part in it."""
    running: list[Session] = []
    engine = ""

    def pass_on(message: Message) -> None:
        nonlocal engine
        if isinstance(message, Stepped) and message.stage == "profiled":  # it has made steps, and makes none now
            engine = running[0].facts().engine
        send(message)

    finished = worker.run_on(joined.cores, cell, pass_on, request, joined.rank, running.append)
    environment = finished.environment
    if environment is not None:
        ranks = Ranks(launcher="", engine=engine, hosts=(joined.host,), binding=joined.bound)
        environment = msgspec.structs.replace(environment, ranks=ranks)
    return msgspec.structs.replace(finished, environment=environment)


def _world(mpi: Any) -> World:
    everyone, local = mpi.COMM_WORLD, _local(mpi)
    return World(everyone.rank, everyone.size, local.rank, local.size, everyone)


def _local(mpi: Any) -> Any:
    """The ranks of this host."""
    return mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED)


def connect(address: str) -> socket.socket:
    """A connection to the runner at `unix:PATH` or `tcp:HOST:PORT:SECRET`."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(rest)
        return connection
    host, port, secret = rest.rsplit(":", 2)
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.sendall(secret.encode() + b"\n")
    return connection


def _die_with(connection: socket.socket, yes: bool) -> None:
    """Have the kernel end this process by SIGIO when something comes on the connection, or no longer: nothing is sent
    on it any more, so that it has been closed. No thread waits for that, and none of Python's need run."""
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    if yes:
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC if yes else flags & ~os.O_ASYNC)


if __name__ == "__main__":
    main()
