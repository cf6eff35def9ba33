"""The worker's end of a job: the job comes on standard input, messages go out on a pipe of their own, one a line.

`tcbench.core.process` is the other end. Knows nothing of what a job is or a message means.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

from tcbench.core.keeper import PARENT_PID
from tcbench.engine.measure.ranges import attached

_PR_SET_PDEATHSIG = 1

Job = TypeVar("Job")


def serve(decode: Callable[[bytes], Job], run: Callable[[Job, Callable[[Any], None]], Any]) -> None:
    """Do the job that stands on standard input. The first argument is the pipe's file descriptor. `run` may send
    messages, which become JSON; the one that it returns is the last."""
    pipe = int(sys.argv[1])
    die_with_parent()

    def send(message: Any) -> None:
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


def die_with_parent() -> None:
    """Ask Linux to kill this process when its keeper dies, so that none is left behind to disturb later trials.

    The keeper gives its process id, to find out that it died before the asking; 1 would not do for that, since in a
    container the keeper itself may be process 1.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    keeper = os.environ.get(PARENT_PID)
    if keeper is not None and int(keeper) != os.getppid():
        sys.exit(1)
