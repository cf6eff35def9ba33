"""Processes of `multiprocessing` that are started anew. Its import takes long, so they have a module of their own."""

import math
import multiprocessing
import multiprocessing.context
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from types import MappingProxyType
from typing import Any, TypeVar

from tcbench.core import variables

Item = TypeVar("Item")
_UNCHANGED: Mapping[str, str] = MappingProxyType({})


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


def pool(processes: int, environment: Mapping[str, str] = _UNCHANGED) -> ProcessPoolExecutor:
    """Return a pool of processes that are started anew with these environment variables. They ignore Ctrl-C, which
    this process handles, and exit when this process ends, even by SIGKILL."""
    return ProcessPoolExecutor(processes, context(), _prepare, (dict(environment),))


class Died:
    """The answer for a work whose process died."""


def spread(
    works: Iterable[Item],
    ask: Callable[[Item], Any],
    processes: int,
    environment: Mapping[str, str] = _UNCHANGED,
    limit_s: float = math.inf,
) -> Iterator[tuple[Item, Any]]:
    """Yield each work with the answer of `ask` as it comes from a pool, until `limit_s` seconds are over.

    After a process has died, a single process does the works that are left, in order. If that dies too, the work that
    it was doing gets the answer `Died`. With no processes, this process does the works."""
    if processes == 0:
        yield from ((work, ask(work)) for work in works)
        return
    until_s, running_before = time.monotonic() + limit_s, multiprocessing.active_children()
    unanswered = dict(enumerate(works))
    while unanswered:
        processes = min(processes, len(unanswered))
        executor = pool(processes, environment)
        try:
            places = {executor.submit(ask, work): place for place, work in unanswered.items()}
            while places:
                done, _ = wait(places, min(until_s - time.monotonic(), 1e6), FIRST_COMPLETED)
                if time.monotonic() >= until_s:
                    return
                for future in sorted(done, key=places.__getitem__):
                    answer = future.result()
                    yield unanswered.pop(places.pop(future)), answer
        except BrokenProcessPool:
            if processes == 1:
                yield unanswered.pop(min(unanswered)), Died()
            processes = 1
        finally:
            for process in set(multiprocessing.active_children()).difference(running_before):
                process.terminate()
            executor.shutdown(cancel_futures=True)


def _prepare(environment: Mapping[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(environment)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
