"""The command line and the environment that start the process of a trial."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import tcbench
from tcbench.core import cache, variables
from tcbench.core.messages import ProfileRequest
from tcbench.core.record import Cell
from tcbench.hardware import machine


@dataclass(frozen=True)
class Launch:
    """How a worker is started.

    - `python`: the worker's interpreter; `folder`: its working directory (None: the current one).
    - `variables`: environment variables in addition to those of this process.
    - `worker`: the worker's module, which has another name in older revisions of tcbench.
    - `request`: a profile to make in addition to measuring the cell.
    - `takes_turns`: whether the worker can alternate steps with another one, which older revisions cannot."""

    python: str = sys.executable
    folder: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    worker: str = "tcbench.worker"
    request: ProfileRequest | None = None
    takes_turns: bool = True

    def command(self, pipe: int) -> list[str]:
        """Return the worker's command line. It writes messages to the file descriptor `pipe`."""
        return python_module(self.python, self.worker, str(pipe), *self._request_arguments)

    def rank_command(self, address: str) -> list[str]:
        """Return the command line of a rank, which connects to `address`. Its module is next to the worker's."""
        return python_module(self.python, self.worker.replace("worker", "rank"), address, *self._request_arguments)

    @property
    def _request_arguments(self) -> list[str]:
        return [] if self.request is None else [msgspec.json.encode(self.request).decode()]


def python_module(python: str, module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of tcbench in its own process. With -P it does not look for modules in the
    current directory, where a user's file may have the name of one of ours or of NumPy's."""
    return [python, "-P", "-m", module, *arguments]


def worker_environment(cell: Cell) -> dict[str, str]:
    """Return a worker's environment variables, with the cell's thread count for libraries that read it at import. If
    Python may not write bytecode next to its modules, it writes it to tcbench's cache, since compiling them again would
    take half of a worker's start-up."""
    passed = {**variables.worker_variables(), **machine.library_variables(cell.threads), "PYTHONUNBUFFERED": "1"}
    if cell.command is not None:  # the program's environment is the user's, unless --threads limits it
        passed = {**os.environ, **(machine.thread_variables(cell.threads) if cell.threads else {})}
    package = Path(tcbench.__file__).parent
    has_bytecode = os.access(package, os.W_OK) or (package / "__pycache__").exists()
    if passed.get("PYTHONPYCACHEPREFIX") or (has_bytecode and not passed.get("PYTHONDONTWRITEBYTECODE")):
        return passed
    if (folder := cache.private_folder("bytecode-v2")) is None:  # it must be private: Python runs the code in it
        return passed
    return {**passed, "PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
