"""Processes that build cuDNN's plans, each of which takes one core for up to a second."""

import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from tcbench.core import spawn

Item = TypeVar("Item")


class Died:
    """The answer for a work whose process died."""


def spread(
    works: Iterable[Item], ask: Callable[[Item], Any], processes: int, limit_s: float = math.inf
) -> Iterator[tuple[Item, Any]]:
    """Yield each work with the answer of `ask` as it comes, until `limit_s` seconds are over. Both are pickled.

    After a process has died, a single process does the works that are left, in order. If that dies too, the work that
    it was doing gets the answer `Died`. With no processes, this process does the works."""
    if processes == 0:
        yield from ((work, ask(work)) for work in works)
        return
    until_s, running_before = time.monotonic() + limit_s, multiprocessing.active_children()
    unanswered = dict(enumerate(works))
    while unanswered:
        processes = min(processes, len(unanswered))
        # Plans are built by a GPU's properties: no GPU is looked at, and no memory of one is taken.
        pool = spawn.pool(processes, {"CUDA_VISIBLE_DEVICES": ""})
        try:
            places = {pool.submit(ask, work): place for place, work in unanswered.items()}
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
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()).difference(running_before):
                process.terminate()
                process.join()
