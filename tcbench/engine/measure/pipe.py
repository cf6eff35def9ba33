"""The worker's end of a job: the job comes on standard input, messages go out on a pipe of their own, one a line. And a
worker's turns, where it steps in turns with another.

`tcbench.core.process` is the other end. Knows nothing of what a job is."""

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
    """Do the job that stands on standard input. The first argument is the pipe's file descriptor. `run` may send
    messages, which become JSON; the one that it returns is the last."""
    pipe = int(sys.argv[1])
    die_with_parent()

    def send(message: Any) -> None:
        if isinstance(message, Stepped):
            message = msgspec.structs.replace(message, at_s=time.monotonic())
        line = msgspec.json.encode(message) + b"\n"
        while line:  # a pipe may take less at once
            line = line[os.write(pipe, line) :]

    send(run(decode(sys.stdin.buffer.read()), send))
    if not attached():
        end_at_once()


def end_at_once() -> NoReturn:
    """End this process as the system ends one: with what was printed, without what libraries take down for 0.1 to 0.4 s
    while the next trial waits."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(0)


def counting_load(send: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return `send` with a message of the host's load before the one that ends the timed pass. The worker counts the
    load itself: the runner may be stopped meanwhile and hear of the pass when it is long over."""
    before: load.Counts | None = None

    def send_with_load(message: Any) -> None:
        nonlocal before
        if isinstance(message, Stepped) and not message.steps:
            if message.stage == "timed":
                before = load.counts(os.getpid())
            elif message.stage == "profiled":
                send(TimedPassLoad(load.between(before, load.counts(os.getpid()), message.facts_s)))
        send(message)

    return send_with_load


def in_turns(send: Callable[[Any], None]) -> Callable[[Any], None]:
    """`send`, of a worker that steps in turns with another (`messages.TURNS`) with its waits: for the first turn now,
    before anything is imported or built that would slow the other's steps, and then between blocks of the timed pass.
    Where the other has ended nothing is waited for. What the host did meanwhile is told when that pass is over."""
    descriptors = os.environ.pop(TURNS, None)
    if descriptors is None:
        return counting_load(send)
    come, hand_on = map(int, descriptors.split(","))
    for descriptor in (come, hand_on):
        os.set_inheritable(descriptor, False)  # what the step starts would keep the other waiting
    os.read(come, 1)
    before: load.Counts | None = None
    loads: list[HostLoad | None] = []

    def send_and_wait(message: Any) -> None:
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
            os.write(hand_on, YOUR_TURN)
        os.read(come, 1)
        before = load.counts(os.getpid())

    return send_and_wait


_SETTLES_S = 0.03
"""What is decoded ahead is made within that, and threads that look for work go to sleep: before the other's turn."""


def die_with_parent() -> None:
    """Ask Linux to kill this process when its keeper dies, so that none is left behind to disturb later trials. The
    keeper gives its process id, to find out that it died before the asking; 1 would not do for that, since in a
    container the keeper itself may be process 1."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    keeper = os.environ.get(PARENT_PID)
    if keeper is not None and int(keeper) != os.getppid():
        sys.exit(1)
