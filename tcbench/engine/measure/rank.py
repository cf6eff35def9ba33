"""The process of one rank of a cell with several ranks. A launcher starts it, and it connects to the runner.

Usage: `python -m tcbench.rank ADDRESS`, once per rank. The rank finds its number by MPI, sends
`tcbench.core.messages.Joined`, reads its job as one line from the same connection, and then works like any worker. If
the job is empty, it exits: the runner only wanted to know the ranks. It dies as soon as the runner closes the
connection."""

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
    """Connect to the runner at the address in the command line and do its job."""
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
    # Before any library that reads these is imported. A launcher may not pass the environment on to other hosts.
    cell = msgspec.json.decode(job, type=Cell)
    os.environ.update(machine.library_variables(cell.threads))
    cell = msgspec.structs.replace(cell, device=kind_of(cell.device).of_rank(cell.device, world.local_rank))
    faulthandler.register(signal.SIGUSR1, file=connection.fileno(), all_threads=False)
    _end_with(connection, True)
    request = msgspec.json.decode(sys.argv[2], type=ProfileRequest).for_rank(world.rank) if len(sys.argv) > 2 else None
    with entered(world):
        finished = _run(cell, joined, send, request)
    _end_with(connection, False)  # waiting for room for a long message would trigger it too
    send(finished)


def _run(cell: Cell, joined: Joined, send: worker.Send, request: ProfileRequest | None) -> Finished:
    """Measure the cell as this rank and return the result, with facts about the ranks in its environment."""
    running: list[Session] = []
    engine = ""

    def pass_on(message: Message) -> None:
        """Send a message, and note the library that averages gradients while the session still runs."""
        nonlocal engine
        if isinstance(message, Stepped) and message.stage == "profiled":  # the session is between steps
            engine = running[0].facts().engine
        send(message)

    finished = worker.run_on(joined.cores, cell, pass_on, request, joined.rank, running.append)
    environment = finished.environment
    if environment is not None:
        ranks = Ranks(launcher="", engine=engine, hosts=(joined.host,), binding=joined.bound)
        environment = msgspec.structs.replace(environment, ranks=ranks)
    return msgspec.structs.replace(finished, environment=environment)


def _world(mpi: Any) -> World:
    """Return this process's position among the ranks."""
    ranks, local = mpi.COMM_WORLD, _local(mpi)
    return World(ranks.rank, ranks.size, local.rank, local.size, ranks)


def _local(mpi: Any) -> Any:
    """Return the communicator of the ranks of this host."""
    return mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED)


def connect(address: str) -> socket.socket:
    """Connect to the runner at `unix:PATH` or `tcp:HOST:PORT:SECRET`."""
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


def _end_with(connection: socket.socket, enabled: bool) -> None:
    """Set whether the kernel ends this process by SIGIO when the runner closes the connection.

    This works even while no Python code runs. The signal comes with any input, but the runner sends nothing more."""
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    if enabled:
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC if enabled else flags & ~os.O_ASYNC)


if __name__ == "__main__":
    main()
