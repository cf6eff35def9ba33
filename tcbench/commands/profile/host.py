"""Sampling of a worker's Python functions by py-spy, into a file for www.speedscope.app.

py-spy reads the stacks from outside the process, which it only stops for the moment of a sample."""

import os
import shutil
import sys
import threading
from pathlib import Path

from tcbench.core import process
from tcbench.core.errors import TraceError

SUFFIX = ".speedscope.json"
RATE_HZ = 100
"""Samples per second. On two cores, 200 made steps of 0.34 s a quarter longer, and 100 steps of 0.51 s a sixth."""
_LONGEST_S = 600


def find() -> Path | None:
    """Return the path of py-spy beside this Python or on PATH; None where it is not installed."""
    in_environment = Path(sys.executable).with_name("py-spy")
    on_path = shutil.which("py-spy")
    return in_environment if in_environment.exists() else Path(on_path) if on_path else None


def problem(py_spy: Path) -> str | None:
    """Return in one line why py-spy cannot attach to a process here, or None if it can.

    The check attaches py-spy to this process, which, like a worker, is not a child of py-spy."""
    try:
        answer = process.ask([str(py_spy), "dump", "--pid", str(os.getpid())], limit_s=30)
    except (OSError, TimeoutError) as error:
        return f"py-spy does not run: {error}"
    return None if answer.code == 0 else f"py-spy cannot attach: {answer.last_line}"


class PySpy:
    """Samples a process into a speedscope file until the process ends, from a thread that waits for py-spy."""

    def __init__(self, py_spy: Path, pid: int, file: Path) -> None:
        self._file = file
        self._error = ""
        options = ["--format", "speedscope", "--rate", str(RATE_HZ), "--duration", str(_LONGEST_S)]
        # --idle: include waiting threads, because waiting is what a user looks for.
        self._words = [str(py_spy), "record", "--pid", str(pid), *options, "--idle", "--output", str(file)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Run py-spy until it ends, and store the last line of its output, or the error if it did not run."""
        try:
            self._error = process.ask(self._words, limit_s=_LONGEST_S + 60).last_line
        except (OSError, TimeoutError) as error:
            self._error = str(error)

    def wait(self) -> None:
        """Wait until the process has ended and the file is written. Raises TraceError if there is no file."""
        self._thread.join()
        if not self._file.exists():
            raise TraceError(f"py-spy left no samples: {self._error or 'no reason given'}")
