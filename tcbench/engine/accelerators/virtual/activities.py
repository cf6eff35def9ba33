"""Recording the activities of simulated GPUs and the calls that cause them, in the form of CUPTI's recordings."""

import contextlib
import itertools
import threading
import weakref
from collections.abc import Iterator

from tcbench.core.recording import Activity, ApiCall
from tcbench.engine.accelerators.virtual.stream import Stream, Task

STREAMS: weakref.WeakSet[Stream] = weakref.WeakSet()
"""The streams of this process, which recorders record. A recorder is created before the device is opened."""

_STREAM = 1


class VirtualActivities:
    """A recorder (`tcbench.engine.accelerators.device.Activities`) that listens to all streams of this process."""

    dropped = 0

    def __init__(self) -> None:
        self._correlation = itertools.count(1).__next__
        self._calls: list[ApiCall] = []
        self._activities: list[Activity] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        streams = tuple(STREAMS)
        for stream in streams:
            stream.listener = self
        try:
            yield
        finally:
            for stream in streams:
                stream.listener = None

    @property
    def calls(self) -> tuple[ApiCall, ...]:
        return tuple(self._calls)

    @property
    def activities(self) -> tuple[Activity, ...]:
        return tuple(self._activities)

    def task(self, task: Task, call_begin_ns: int, call_end_ns: int, begin_ns: int) -> None:
        """Record a task and the call that launched it. A captured graph is recorded node by node."""
        correlation = self._correlation()
        self._calls.append(ApiCall(task.call, threading.get_native_id(), correlation, call_begin_ns, call_end_ns))
        for number, node in enumerate(task.nodes or (task,), 1):
            end_ns, in_graph = begin_ns + node.device_ns, (number, 1) if task.nodes else ()
            activity = Activity(node.kind, node.name, _STREAM, correlation, begin_ns, end_ns, node.bytes, *in_graph)
            self._activities.append(activity)
            begin_ns = end_ns

    def decoding(self, begin_ns: int, end_ns: int) -> None:
        """Record that threads of the modelled input decoded a batch between these times."""
        self._activities.append(Activity("input", "decoding", 0, self._correlation(), begin_ns, end_ns))

    def wait(self, call: str, begin_ns: int, end_ns: int) -> None:
        self._calls.append(ApiCall(call, threading.get_native_id(), self._correlation(), begin_ns, end_ns))
