"""Pools of freshly started processes. `multiprocessing` takes long to import, so only this module imports it."""

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

Task = TypeVar("Task")
_UNCHANGED: Mapping[str, str] = MappingProxyType({})


class _SafeProcess(multiprocessing.context.SpawnProcess):
    """A spawned process that does not import modules from the current folder."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802
        with variables.changed(PYTHONSAFEPATH="1"):
            return multiprocessing.context.SpawnProcess._Popen(process_obj)


class _SafeContext(multiprocessing.context.SpawnContext):
    """A multiprocessing context that starts safe processes."""

    Process = _SafeProcess


def pool(processes: int, environment: Mapping[str, str] = _UNCHANGED) -> ProcessPoolExecutor:
    """Return a pool of spawned processes with these additional environment variables. They ignore Ctrl-C, which this
    process handles, and exit when this process ends, even by SIGKILL. Neither they nor multiprocessing's resource
    tracker import modules from the current folder (as with `python -P`)."""
    with variables.changed(PYTHONSAFEPATH="1"):
        resource_tracker.ensure_running()
    return ProcessPoolExecutor(processes, _SafeContext(), _prepare, (dict(environment),))


class Died:
    """The answer for a task whose process died."""


def spread(
    tasks: Iterable[Task],
    perform: Callable[[Task], Any],
    processes: int,
    environment: Mapping[str, str] = _UNCHANGED,
    limit_s: float = math.inf,
) -> Iterator[tuple[Task, Any]]:
    """Perform tasks in a pool of processes, and yield each task with its answer as they finish.

    Stops after `limit_s` seconds. If a process dies, a single new process performs the remaining tasks in order; if
    that dies too, the task it was working on gets the answer `Died`. With 0 processes, this process does the work."""
    if processes == 0:
        yield from ((task, perform(task)) for task in tasks)
        return
    until_s, running_before = time.monotonic() + limit_s, multiprocessing.active_children()
    unanswered = dict(enumerate(tasks))
    while unanswered:
        processes = min(processes, len(unanswered))
        executor = pool(processes, environment)
        try:
            places = {executor.submit(perform, task): place for place, task in unanswered.items()}
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
    """Set up a process of a pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(environment)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Wait until the parent process ends, then end this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
