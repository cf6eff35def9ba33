"""Sampling of a worker's Python functions by py-spy, into a file for www.speedscope.app.

py-spy reads a process's stacks from another process, so that the steps run no code for it; it stops the process for the
moment of a sample.
"""

import os
import shutil
import sys
import threading
from pathlib import Path

from tcbench.core import process
from tcbench.core.errors import TraceError

SUFFIX = ".speedscope.json"
RATE_HZ = 100
"""Samples per second. At 200, steps of 0.34 s took a quarter longer on two cores, and at 100, steps of 0.51 s a
sixth."""
_LONGEST_S = 600


def find() -> Path | None:
    """Return the path of py-spy beside this Python or on PATH; None where it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    on_path = shutil.which("py-spy")
    return beside if beside.exists() else Path(on_path) if on_path else None


def problem(py_spy: Path) -> str | None:
    """Return why py-spy may not attach here, in one line, or None. It is tried on this process, which like a worker is
    no child of py-spy's."""
    try:
        answer = process.ask([str(py_spy), "dump", "--pid", str(os.getpid())], limit_s=30)
    except (OSError, TimeoutError) as error:
        return f"py-spy does not run: {error}"
    return None if answer.code == 0 else f"py-spy may not attach: {answer.last_line}"


class PySpy:
    """Samples a process into a speedscope file until the process ends. Its thread only waits."""

    def __init__(self, py_spy: Path, pid: int, file: Path) -> None:
        self._file = file
        self._trouble = ""
        options = ["--format", "speedscope", "--rate", str(RATE_HZ), "--duration", str(_LONGEST_S)]
        # All threads, waiting ones too: a host that waits is what is looked for.
        self._words = [str(py_spy), "record", "--pid", str(pid), *options, "--idle", "--output", str(file)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._trouble = process.ask(self._words, limit_s=_LONGEST_S + 60).last_line
        except (OSError, TimeoutError) as error:
            self._trouble = str(error)

    def wait(self) -> None:
        """Wait until the process has ended and the file is written. Raises TraceError where there is none."""
        self._thread.join()
        if not self._file.exists():
            raise TraceError(f"py-spy left no samples: {self._trouble or 'no reason given'}")
