"""A simulated stream that runs in real time: a task ends when its modelled time has passed, and waiting for it waits.
Times are nanoseconds of CLOCK_MONOTONIC, which `time.perf_counter_ns` reads."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from tcbench.core.recording import ActivityKind

_now = time.perf_counter_ns

QUEUE_DEPTH = 1024
"""The most tasks that can be queued. A further launch blocks in the driver until the first of them is done. Source: a
measurement of about a thousand (NVIDIA Developer Forums, thread 68937, "CUDA stream are blocked", 2019)."""

_SPIN_NS = 150_000
"""The last part of a wait is a busy loop, since a sleep may end this much too late."""

_MOST_OWED_NS = 1_000_000
"""The most host time that counts as simulation overhead. Beyond it, the host was doing something else."""

_CALLS = 50


@dataclass(frozen=True)
class Task:
    """A piece of device work that takes `device_ns`.

    `call`: the driver's function that launches it, in which the host spends `driver_ns`. `bytes`: the size of a copy.
    `nodes`: the tasks of a captured graph, in order."""

    kind: ActivityKind
    name: str
    call: str
    driver_ns: int
    device_ns: int
    bytes: int | None = None
    nodes: tuple["Task", ...] = ()


class CaptureError(RuntimeError):
    """An error for calls that are not allowed while a stream is captured."""


class Listener(Protocol):
    """An observer of a stream's launches and waits. Times are nanoseconds of the host's clock."""

    def task(self, task: Task, call_begin_ns: int, call_end_ns: int, begin_ns: int) -> None:
        """Called when a task was launched; the device begins it at `begin_ns`. The call ends when the host goes on,
        which is before the task's time in the driver has passed if simulation overhead is subtracted."""

    def wait(self, call: str, begin_ns: int, end_ns: int) -> None:
        """Called when the host has waited for the device in the driver's function `call`."""

    def decoding(self, begin_ns: int, end_ns: int) -> None:
        """Called when input threads have decoded a batch between these times."""


class Stream:
    """A stream whose tasks run one after another.

    `put` returns when the task's time in the driver has passed. Simulation overhead is part of that time; any excess is
    subtracted from the next task's driver time. `busy_ns`: device time of all tasks so far. `listener`: is notified of
    launches and waits."""

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.busy_ns = 0
        self._end_ns = 0
        self._owed_ns = 0
        self._ends_ns: deque[int] = deque()
        self._captured: list[Task] | None = None
        self._call_ns = 0  # `put` adds it to the overhead, so it must be 0 during the measurement
        self._call_ns = self._measure_call_ns()

    def _measure_call_ns(self) -> int:
        """Return the overhead of calling `put` that `put` itself cannot measure."""
        task = Task("kernel", "", "", 2_000, 0)

        def overhead_ns() -> int:
            """Return the mean time of a call beyond the task's time in the driver."""
            begin = _now()
            for _ in range(_CALLS):
                self.put(task)
            return (_now() - begin) // _CALLS - task.driver_ns

        measured = sorted(overhead_ns() for _ in range(9))
        self._ends_ns.clear()
        return max(0, measured[2])  # the third of nine: a low quantile, because disturbances only add time

    def put(self, task: Task) -> None:
        """Launch a task, or add it to the captured graph. Waits if QUEUE_DEPTH tasks are queued."""
        called = _now()
        if self._captured is not None:
            self._captured.append(task)
            return
        returns = called + task.driver_ns
        ends = self._ends_ns
        if len(ends) == QUEUE_DEPTH:
            first = ends.popleft()
            if first > returns:
                wait_until(first)
                returns = first
        begin = max(self._end_ns, returns)
        self._end_ns = end = begin + task.device_ns
        self.busy_ns += task.device_ns
        ends.append(end)
        until = returns - self._owed_ns  # minus the overhead since the last task's driver time ended
        now = _now()
        while now < until:
            now = _now()
        if self.listener is not None:
            self.listener.task(task, called, min(now, returns), begin)
            now = _now()
        owed = now - until
        self._owed_ns = (owed if owed < _MOST_OWED_NS else _MOST_OWED_NS) + self._call_ns

    def owe(self, since_ns: int) -> None:
        """Count the host's time since `since_ns` as simulation overhead."""
        self._owed_ns = min(self._owed_ns + _now() - since_ns, _MOST_OWED_NS)

    def end_ns(self) -> int:
        """Return the time at which all tasks so far are done: a future time, or now."""
        return max(self._end_ns, _now())

    def wait(self, at_ns: int, call: str) -> None:
        """Wait until `at_ns`, as the driver's function `call` does. Raises CaptureError during a capture."""
        if self._captured is not None:
            raise CaptureError(f"{call}: the stream is being captured (cudaErrorStreamCaptureUnsupported)")
        called = _now()
        wait_until(at_ns)
        if self.listener is not None:
            self.listener.wait(call, called, max(called, at_ns))

    def synchronize(self) -> None:
        self.wait(self._end_ns, "cudaStreamSynchronize")

    def begin_capture(self) -> None:
        self._captured = []

    def end_capture(self) -> tuple[Task, ...]:
        """End the capture and return its tasks, which were not run."""
        captured, self._captured = self._captured, None
        return tuple(captured or ())

    @property
    def capturing(self) -> bool:
        return self._captured is not None


class StreamEvent:
    """A mark in a stream, for `tcbench.engine.accelerators.event_clock.EventClock`."""

    def __init__(self) -> None:
        self.at_ns = 0
        self._stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self._stream = stream
        self.at_ns = stream.end_ns()

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.wait(self.at_ns, "cudaEventSynchronize")


def elapsed_ms(before: StreamEvent, after: StreamEvent) -> float:
    """Return the milliseconds between two marks."""
    return (after.at_ns - before.at_ns) * 1e-6


def wait_until(at_ns: int) -> None:
    """Wait until a time: sleep first, then spin for accuracy."""
    while (left := at_ns - _now()) > 0:
        if left > 2 * _SPIN_NS:
            time.sleep((left - _SPIN_NS) * 1e-9)
