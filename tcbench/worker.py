"""The worker process: one Cell (JSON) in on standard input, messages and one result out on a pipe.

Run as `python -m tcbench.worker FD`. Owns turning whatever happens into a Finished message; the runner turns that, or
its absence, into a Record. Standard output and error are free for libraries to write to: they become the log.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable

import msgspec

from tcbench import messages
from tcbench.errors import TcbenchError
from tcbench.messages import RUNNER_PID, Building, Finished, Message, Stepped
from tcbench.record import Cell, Environment, Measurement

Send = Callable[[Message], None]

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the cell that stands on standard input."""
    pipe = int(sys.argv[1])
    die_with_parent()

    def send(message: Message) -> None:
        os.write(pipe, messages.encode(message))

    cell = msgspec.json.decode(sys.stdin.buffer.read(), type=Cell)
    send(run(cell, send))


def die_with_parent() -> None:
    """Ask Linux to kill this process when the runner dies, so that none is left behind to disturb later trials.

    The runner gives its process id, to find out that it died before the asking; 1 would not do for that, since in a
    container the runner itself may be process 1.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    runner = os.environ.get(RUNNER_PID)
    if runner is not None and int(runner) != os.getppid():
        sys.exit(1)


def run(cell: Cell, send: Send) -> Finished:
    """Build and measure one cell; never raises but on a signal."""
    environment: Environment | None = None
    try:
        send(Building("imports"))
        environment = describe(cell)
        measurement = measured(cell, send)
    except TcbenchError as error:
        return Finished("failed", _line(error), None, environment)
    except Exception as error:
        traceback.print_exc()
        exhausted = _exhausted(cell, error)
        if exhausted is not None:
            return Finished("oom", f"out of memory: {_line(exhausted) or 'an allocation failed'}", None, environment)
        return Finished("failed", f"{type(error).__name__}: {_line(error)}", None, environment)
    return Finished("ok", None, measurement, environment)


def measured(cell: Cell, send: Send) -> Measurement:
    """Open the cell's session, measure it, close it."""
    from tcbench.backends import backend
    from tcbench.measure import loop

    the_backend = backend(cell.backend)
    send(Building("model and input"))
    session = the_backend.open_session(cell)
    try:
        return loop.measure(
            session,
            cell.measure,
            lambda progress: send(Stepped(progress.stage, progress.steps, progress.step_time_s)),
        )
    finally:
        session.close()


def describe(cell: Cell) -> Environment:
    """The facts of this machine and its libraries, as this process sees them."""
    from tcbench import device, machine
    from tcbench.backends import backend
    from tcbench.backends.cuda import driver

    the_backend = backend(cell.backend)
    found = device.find(cell.device, dict.fromkeys(the_backend.DEVICES))
    return machine.environment(found.machine, found.title, the_backend.PACKAGES, _blas(), driver.facts(cell.device))


def _blas() -> str:
    """The BLAS that NumPy calls, with its version and kernels; loads NumPy."""
    import numpy  # noqa: F401  (loads the library that threadpoolctl then finds)
    import threadpoolctl

    return "; ".join(
        f"{library['internal_api']} {library['version']} {library.get('architecture') or ''}".strip()
        for library in threadpoolctl.threadpool_info()
        if library["user_api"] == "blas"
    )


def _exhausted(cell: Cell, error: Exception) -> Exception | None:
    """The error that says that memory was spent, the host's or the GPU's, if this is what happened."""
    from tcbench.backends.cuda import driver, exhausted

    if cell.device.startswith("cuda"):
        found = driver.gpus().found
        index = int(cell.device.partition(":")[2] or 0)
        on_device = exhausted.from_error(error, found[index].memory_bytes if index < len(found) else None)
        if on_device is not None:
            return on_device
    return error if isinstance(error, MemoryError) else None


def _line(error: BaseException) -> str:
    """The error's message on one line."""
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
