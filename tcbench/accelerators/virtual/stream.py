"""A stream as a queue in real time: what is put into it ends when its modelled time has passed, and whoever waits for
that waits really. Times are nanoseconds of CLOCK_MONOTONIC, which is what `time.perf_counter_ns` reads."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

_now = time.perf_counter_ns

QUEUE_DEPTH = 1024
"""Launches that may wait in a stream; the next one waits in the driver until the first of them has been done. Source:
about a thousand were measured (NVIDIA Developer Forums, thread 68937, 2019)."""

_SPIN_NS = 150_000
"""The last part of a wait is spent asking for the time: a sleep may end this much too late."""

_MOST_OWED_NS = 100_000
"""More than this a launch never took by itself: the host was doing something else."""


@dataclass(frozen=True)
class Task:
    """Something a device does. `driver_ns`: the host's time in the driver to ask for it; `device_ns`: the device's
    time, with the latency before it."""

    name: str
    driver_ns: int
    device_ns: int


class Stream:
    """Tasks, one after the other. `put` returns when the host has spent the task's time in the driver; what simulating
    takes is part of that time, and what exceeds it is made up for at the next."""

    def __init__(self) -> None:
        self._end_ns = 0
        self._owed_ns = 0
        self._ends_ns: deque[int] = deque()

    def put(self, task: Task) -> None:
        begin = _now()
        returns = begin + task.driver_ns
        ends = self._ends_ns
        if len(ends) == QUEUE_DEPTH:
            first = ends.popleft()
            if first > returns:
                wait_until(first)
                returns = first
        self._end_ns = end = max(self._end_ns, returns) + task.device_ns
        ends.append(end)
        until = returns - self._owed_ns
        now = _now()
        while now < until:
            now = _now()
        self._owed_ns = min(now - until, _MOST_OWED_NS)

    def end_ns(self) -> int:
        """The time at which all that was put has been done, now or later."""
        return max(self._end_ns, _now())

    def synchronize(self) -> None:
        wait_until(self._end_ns)


class Event:
    """A mark in a stream. See `tcbench.accelerators.cuda.clock.Event`."""

    def __init__(self) -> None:
        self.at_ns = 0

    def record(self, stream: Stream) -> None:
        self.at_ns = stream.end_ns()

    def synchronize(self) -> None:
        wait_until(self.at_ns)


def elapsed_ms(before: Event, after: Event) -> float:
    """Milliseconds from one mark to the other."""
    return (after.at_ns - before.at_ns) * 1e-6


def wait_until(at_ns: int) -> None:
    """Sleep, and spend the last part awake."""
    while (left := at_ns - _now()) > 0:
        if left > 2 * _SPIN_NS:
            time.sleep((left - _SPIN_NS) * 1e-9)
