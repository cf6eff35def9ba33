"""A stream as a queue in real time: what is put into it ends when its modelled time has passed, and whoever waits for
that waits really. Times are nanoseconds of CLOCK_MONOTONIC, which is what `time.perf_counter_ns` reads."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from tcbench.core.recording import ActivityKind

_now = time.perf_counter_ns

QUEUE_DEPTH = 1024
"""Requests that may wait in a stream; the next one waits in the driver until the first of them has been done. Source:
about a thousand were measured (NVIDIA Developer Forums, thread 68937, "CUDA stream are blocked", 2019)."""

_SPIN_NS = 150_000
"""The last part of a wait is spent asking for the time: a sleep may end this much too late."""

_MOST_OWED_NS = 1_000_000
"""More than this is not taken for simulating: the host was doing something else."""

_CALLS = 50


@dataclass(frozen=True)
class Task:
    """Something that a device does in `device_ns`. `call`: the driver's function that asks for it, in which the host
    spends `driver_ns`. `bytes`: what a copy moves. `nodes`: what a captured graph does, one after the other."""

    kind: ActivityKind
    name: str
    call: str
    driver_ns: int
    device_ns: int
    bytes: int | None = None
    nodes: tuple["Task", ...] = ()


class CaptureError(RuntimeError):
    """The host asked for something that a stream cannot do while it is captured."""


class Listener(Protocol):
    """Receives what is requested of a stream, as it happens. Times are in nanoseconds of the host's clock."""

    def task(self, task: Task, call_begin_ns: int, call_end_ns: int, begin_ns: int) -> None:
        """A task was launched by this call; the device begins it at `begin_ns`."""

    def wait(self, call: str, begin_ns: int, end_ns: int) -> None:
        """The host waited for the device in this call."""

    def decoding(self, begin_ns: int, end_ns: int) -> None:
        """Input threads decoded a batch in this time."""


class Stream:
    """Tasks, one after the other. `put` returns when the host has spent the task's time in the driver; what simulating
    takes is part of that time, and what exceeds it is taken off the next one's. `busy_ns`: the device's time for all of
    them so far. `listener` is told of requests and waits as they are made."""

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.busy_ns = 0
        self._end_ns = 0
        self._owed_ns = 0
        self._ends_ns: deque[int] = deque()
        self._captured: list[Task] | None = None
        self._call_ns = 0
        self._call_ns = self._measure_call_ns()

    def _measure_call_ns(self) -> int:
        """The time of calling `put` and of returning from it, which it cannot see."""
        task = Task("kernel", "", "", 2_000, 0)

        def beyond_ns() -> int:
            begin = _now()
            for _ in range(_CALLS):
                self.put(task)
            return (_now() - begin) // _CALLS - task.driver_ns

        measured = sorted(beyond_ns() for _ in range(9))
        self._ends_ns.clear()
        return max(0, measured[2])

    def put(self, task: Task) -> None:
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
        if self.listener is not None:
            self.listener.task(task, called, returns, begin)
        until = returns - self._owed_ns
        now = _now()
        while now < until:
            now = _now()
        owed = now - until
        self._owed_ns = (owed if owed < _MOST_OWED_NS else _MOST_OWED_NS) + self._call_ns

    def owe(self, since_ns: int) -> None:
        """Count what the host has done since then as simulating."""
        self._owed_ns = min(self._owed_ns + _now() - since_ns, _MOST_OWED_NS)

    def end_ns(self) -> int:
        """The time at which all that was put has been done, now or later."""
        return max(self._end_ns, _now())

    def wait(self, at_ns: int, call: str) -> None:
        """Wait for a time in the driver's function `call`. Raises CaptureError."""
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
        """The tasks that were put since the capture began, and not done."""
        captured, self._captured = self._captured, None
        return tuple(captured or ())

    @property
    def capturing(self) -> bool:
        return self._captured is not None


class StreamEvent:
    """A mark in a stream, as `tcbench.engine.accelerators.event_clock` asks for."""

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
    """Milliseconds from one mark to the other."""
    return (after.at_ns - before.at_ns) * 1e-6


def wait_until(at_ns: int) -> None:
    """Sleep, and spend the last part awake."""
    while (left := at_ns - _now()) > 0:
        if left > 2 * _SPIN_NS:
            time.sleep((left - _SPIN_NS) * 1e-9)
