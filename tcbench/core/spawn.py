"""Processes of `multiprocessing` that are started anew. Its import takes long, so they have a module of their own."""

import multiprocessing.context
from multiprocessing import resource_tracker
from typing import Any

from tcbench.core import variables


class _SafeProcess(multiprocessing.context.SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802
        with variables.changed(PYTHONSAFEPATH="1"):
            return multiprocessing.context.SpawnProcess._Popen(process_obj)


class _SafeContext(multiprocessing.context.SpawnContext):
    Process = _SafeProcess


def context() -> multiprocessing.context.SpawnContext:
    """Return multiprocessing's context for processes that are started anew. Neither they nor the process that tracks
    their locks look for modules in the current folder, as with `python -P`."""
    with variables.changed(PYTHONSAFEPATH="1"):
        resource_tracker.ensure_running()
    return _SafeContext()
