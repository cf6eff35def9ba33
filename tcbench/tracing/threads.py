"""The working times of the input's threads, sampled from the kernel's accounting of CPU time.

DALI's threads run no Python code that could be instrumented. But they have names (/proc/PID/task/TID/comm), and Linux
counts the nanoseconds that each thread has spent on a CPU (the first number in /proc/PID/task/TID/schedstat;
Documentation/scheduler/sched-stats.rst). The process that started the worker reads this every `INTERVAL_S`. A thread of
the worker would compete for its interpreter lock.

Resolution: the sum of a thread's spans is exact to a scheduler tick (1 to 4 ms). The position of a span is less exact.
A thread that was on a CPU for d nanoseconds since the last sample is shown as working in the last d before this sample.
The edges may be off by a sampling interval, and by a tick for a thread that is never interrupted, since the kernel
updates the count only at ticks and context switches. A thread that waits for a CPU is not working."""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from tcbench.core.recording import Activity

INTERVAL_S = 0.002
"""The time between two samples. Reading ten threads takes about 0.05 ms, on another core than the worker's."""

INPUT_THREADS = ("[DALI]", "PrefetchWorker")
"""Prefixes of the names of DALI's threads (the kernel stores 15 characters)."""

_JOIN_NS = 100_000
"""The largest gap between two spans of a thread that are joined."""

_SAMPLES_PER_LISTING = 50
"""The number of samples between two searches for new threads."""

Sample = tuple[int, Mapping[int, int]]
"""A time of CLOCK_MONOTONIC, and the CPU time of each thread by its id, in nanoseconds."""


class ThreadSampler:
    """A context in which the input threads of a process are sampled. Afterwards `work` has their working times. It is
    empty for a process that has no such threads or has ended."""

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._files: dict[int, int] = {}  # thread id -> descriptor of its schedstat file
        self._names: dict[int, str] = {}
        self._samples: list[Sample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sampling."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def work(self) -> tuple[Activity, ...]:
        """The working times of the threads."""
        return input_work(self._samples, self._names)

    def _run(self) -> None:
        """Sample until `stop` is called."""
        due = time.monotonic()
        try:
            while True:
                if len(self._samples) % _SAMPLES_PER_LISTING == 0:
                    self._list_threads()
                self._samples.append(self._sample())
                due = max(due + INTERVAL_S, time.monotonic())
                if self._stop.wait(due - time.monotonic()):
                    self._samples.append(self._sample())
                    return
        finally:
            for file in self._files.values():
                os.close(file)

    def _list_threads(self) -> None:
        """Find new input threads of the process and open their files."""
        with contextlib.suppress(OSError):
            for task in self._tasks.iterdir():
                tid = int(task.name)
                if tid in self._names:
                    continue
                with contextlib.suppress(OSError):
                    name = (task / "comm").read_text().strip()
                    if name.startswith(INPUT_THREADS):
                        self._files[tid] = os.open(task / "schedstat", os.O_RDONLY)
                        self._names[tid] = name

    def _sample(self) -> Sample:
        """Return the current time and the CPU time of each thread, in nanoseconds."""
        on_cpu_ns = {}
        for tid, file in self._files.items():
            with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended
                on_cpu_ns[tid] = int(os.pread(file, 64, 0).split()[0])
        return time.perf_counter_ns(), on_cpu_ns


def input_work(samples: Iterable[Sample], names: Mapping[int, str]) -> tuple[Activity, ...]:
    """Return the working times of threads as activities, sorted by their begin. `names` are the threads' names by id;
    `stream` counts the threads in the order of their ids. A thread has no working time before its second sample."""
    rows = {tid: row for row, tid in enumerate(sorted(names))}
    spans: dict[int, list[tuple[int, int]]] = {tid: [] for tid in rows}
    before: dict[int, int] = {}
    for now_ns, on_cpu_ns in samples:
        for tid, total_ns in on_cpu_ns.items():
            worked_ns = total_ns - before.get(tid, total_ns)
            before[tid] = total_ns
            if worked_ns > 0:
                _append_or_join(spans[tid], now_ns - worked_ns, now_ns)
    work = [Activity("input", names[tid], rows[tid], 0, *piece) for tid, pieces in spans.items() for piece in pieces]
    return tuple(sorted(work, key=lambda w: (w.begin_ns, w.stream)))


def _append_or_join(spans: list[tuple[int, int]], begin_ns: int, end_ns: int) -> None:
    """Append a span to the spans of a thread, or join it to the last ones if the gap is at most `_JOIN_NS`. A joined
    span is as long as its parts together and ends where the last part ends, so that no time is lost or counted
    twice."""
    length_ns = end_ns - begin_ns
    while spans and end_ns - length_ns - spans[-1][1] <= _JOIN_NS:
        last_begin_ns, last_end_ns = spans.pop()
        length_ns += last_end_ns - last_begin_ns
    spans.append((end_ns - length_ns, end_ns))
