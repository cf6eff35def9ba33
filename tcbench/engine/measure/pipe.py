"""The worker's side of a job: read it from standard input, send messages to a pipe, and take turns with other workers.

`tcbench.core.process` is the other side. This module does not know what a job is."""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

from tcbench.core.keeper import PARENT_PID
from tcbench.core.messages import TURNS, YOUR_TURN, Stepped, TimedPassLoad
from tcbench.core.record import HostLoad
from tcbench.engine.measure.ranges import attached
from tcbench.hardware import load

_PR_SET_PDEATHSIG = 1

Job = TypeVar("Job")


def serve(decode: Callable[[bytes], Job], run: Callable[[Job, Callable[[Any], None]], Any]) -> None:
    """Do the job on standard input. `run` may send messages and returns the last one. They are written as lines of JSON
    to the pipe, whose file descriptor is the first argument of the command line."""
    pipe = int(sys.argv[1])
    die_with_parent()

    def send(message: Any) -> None:
        """Write a message as one line of JSON; messages on the progress of steps get the current time."""
        if isinstance(message, Stepped):
            message = msgspec.structs.replace(message, at_s=time.monotonic())
        line = msgspec.json.encode(message) + b"\n"
        while line:  # one write may take only a part
            line = line[os.write(pipe, line) :]

    send(run(decode(sys.stdin.buffer.read()), send))
    if not attached():
        end_at_once()


def end_at_once() -> NoReturn:
    """Flush the output and exit without the clean-up of libraries, which takes 0.1 to 0.4 s."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(0)


def counting_load(send: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap `send` so that it sends the host's load during the timed pass before the message that ends this pass. The
    worker measures the load itself, since the runner may learn of the end of the pass too late."""
    before: load.Counts | None = None

    def send_with_load(message: Any) -> None:
        """Send a message. At the end of the timed pass, first send the load of the machine during that pass."""
        nonlocal before
        if isinstance(message, Stepped) and not message.steps:
            if message.stage == "timed":
                before = load.counts(os.getpid())
            elif message.stage == "profiled":
                send(TimedPassLoad(load.between(before, load.counts(os.getpid()), message.facts_s)))
        send(message)

    return send_with_load


def in_turns(send: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap `send` so that this worker takes turns with others (`tcbench.run.turns`), if `messages.TURNS` is set.

    This call waits for the worker's first turn, before imports that would slow down the steps of others. `send`
    then waits between blocks of the timed pass, but not for a worker that has ended. When the timed pass is over, it
    sends the host's load during the turns of this worker."""
    descriptors = os.environ.pop(TURNS, None)
    if descriptors is None:
        return counting_load(send)
    turn_in, turn_out = map(int, descriptors.split(","))
    for descriptor in (turn_in, turn_out):
        os.set_inheritable(descriptor, False)  # processes that the step starts would keep the pipe open
    os.read(turn_in, 1)
    before: load.Counts | None = None
    loads: list[HostLoad | None] = []
    global _alternates
    _alternates = True

    def send_and_wait(message: Any) -> None:
        """Send a message. Before the timed pass and after each of its blocks, pass the turn and wait for the next."""
        nonlocal before
        if not isinstance(message, Stepped) or message.stage == "warm-up":
            send(message)
            return
        begins, over = not message.steps, message.stage == "profiled"
        if over and begins:
            send(TimedPassLoad(load.sum_loads(loads)))
        send(message)
        if over:
            return
        if not begins:
            loads.append(load.between(before, load.counts(os.getpid())))
        time.sleep(_SETTLES_S)
        with contextlib.suppress(BrokenPipeError):
            os.write(turn_out, YOUR_TURN)
        os.read(turn_in, 1)
        before = load.counts(os.getpid())

    return send_and_wait


_alternates = False


def alternates() -> bool:
    """Return whether this worker alternates with another one, by `in_turns`."""
    return _alternates


_SETTLES_S = 0.03
"""A pause before the other's turn. Meanwhile prefetching ends, and threads that spin for work go to sleep."""


def die_with_parent() -> None:
    """Make Linux kill this process when its keeper dies, so that it cannot disturb later trials. If the keeper is
    already dead, exit now. That is recognised by the keeper's process id: a parent with the id 1 does not prove it,
    since in a container the keeper itself may be process 1."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    keeper = os.environ.get(PARENT_PID)
    if keeper is not None and int(keeper) != os.getppid():
        sys.exit(1)
