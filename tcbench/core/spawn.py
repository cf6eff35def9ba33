"""Processes of `multiprocessing` that are started anew. Its import takes long, so they have a module of their own."""

import multiprocessing.context
import multiprocessing.process
import os
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import resource_tracker
from types import MappingProxyType
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


def pool(processes: int, environment: Mapping[str, str] = MappingProxyType({})) -> ProcessPoolExecutor:
    """Return a pool of processes that are started anew with these environment variables. They ignore Ctrl-C, which
    this process handles, and exit when this process ends, even by SIGKILL."""
    return ProcessPoolExecutor(processes, context(), _prepare, (dict(environment),))


def _prepare(environment: Mapping[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(environment)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.process.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
