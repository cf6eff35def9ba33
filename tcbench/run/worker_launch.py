"""How the process of a trial is started: its command line and its environment."""

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
    """The start of a worker: its Python, its folder (None: the current one), its variables beside those of this
    process's environment, its module, which older revisions of tcbench call otherwise, what is asked beyond its cell,
    and whether it can step in turns with another, as older revisions cannot."""

    python: str = sys.executable
    folder: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    worker: str = "tcbench.worker"
    request: ProfileRequest | None = None
    takes_turns: bool = True

    def command(self, pipe: int) -> list[str]:
        """The worker's command line; it writes messages to the file descriptor `pipe`."""
        return python_module(self.python, self.worker, str(pipe), *self._asked)

    def rank_command(self, address: str) -> list[str]:
        """The command line of a rank, which calls `address`; its module stands beside the worker's."""
        return python_module(self.python, self.worker.replace("worker", "rank"), address, *self._asked)

    @property
    def _asked(self) -> list[str]:
        return [] if self.request is None else [msgspec.json.encode(self.request).decode()]


def python_module(python: str, module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours in a process of its own. It does not look for modules in the current
    directory (-P), where a user's file may be called like one of ours or of NumPy's."""
    return [python, "-P", "-m", module, *arguments]


def worker_environment(cell: Cell) -> dict[str, str]:
    """Return a worker's environment variables. Libraries that read their thread count at import get the cell's. Where
    Python may not write bytecode next to its modules, it writes it to our cache, since compiling them anew would take
    half of a worker's start."""
    passed = {**variables.worker_variables(), **machine.library_variables(cell.threads), "PYTHONUNBUFFERED": "1"}
    package = Path(tcbench.__file__).parent
    beside = os.access(package, os.W_OK) or (package / "__pycache__").exists()
    if passed.get("PYTHONPYCACHEPREFIX") or (beside and not passed.get("PYTHONDONTWRITEBYTECODE")):
        return passed
    if (place := cache.private_folder("bytecode-v2")) is None:  # Python runs what lies there
        return passed
    return {**passed, "PYTHONPYCACHEPREFIX": str(place), "PYTHONDONTWRITEBYTECODE": ""}
