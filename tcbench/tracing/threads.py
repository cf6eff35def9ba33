"""Times at which the input's own threads work, seen from outside: the kernel's account of each thread, sampled.

DALI's threads run no Python and call nothing that could be wrapped. But they have names (/proc/PID/task/TID/comm), and
Linux keeps for each thread the nanoseconds that it has spent on a processor (the first number of
/proc/PID/task/TID/schedstat; Documentation/scheduler/sched-stats.rst). That is read every `INTERVAL_S` by the process
that started the worker, never by a thread of the worker, which would fight it for the interpreter lock.

Resolution. The sum of a thread's spans is exact to a scheduler tick. Where a span lies is not: a thread that was on a
processor for d nanoseconds since the last sample is shown as working in the last d before this one, so its edges may be
off by an interval, and by a tick (1 to 4 ms) for a thread that nothing interrupts, since the kernel adds up when a
thread is switched out or at the tick. A thread that waits for a processor is not working.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from tcbench.tracing.attribution import InputWork

INTERVAL_S = 0.002
"""Between two samples. Reading ten threads takes about 0.05 ms of another core than the worker's."""

INPUT_THREADS = ("[DALI]", "PrefetchWorker")
"""Prefixes of the names of DALI's threads (the kernel keeps 15 characters)."""

_JOIN_NS = 100_000
"""Spans of one thread that are no further apart are one."""

_SAMPLES_PER_LISTING = 50
"""Samples between two searches for new threads."""

Sample = tuple[int, Mapping[int, int]]
"""Nanoseconds of CLOCK_MONOTONIC, and of each thread on a processor since it began, by its id."""


class ThreadSampler:
    """Watches a process's input threads from `__enter__` to `__exit__`; then `work` says when they worked. A process
    without such threads, or that has gone, has none."""

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._files: dict[int, int] = {}
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
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def work(self) -> tuple[InputWork, ...]:
        return work_of(self._samples, self._names)

    def _run(self) -> None:
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
        on_cpu_ns = {}
        for tid, file in self._files.items():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
                on_cpu_ns[tid] = int(os.pread(file, 64, 0).split()[0])
        return time.perf_counter_ns(), on_cpu_ns


def work_of(samples: Iterable[Sample], names: Mapping[int, str]) -> tuple[InputWork, ...]:
    """From samples to spans, in order of their begin. Rows are threads in order of their ids."""
    rows = {tid: row for row, tid in enumerate(sorted(names))}
    spans: dict[int, list[tuple[int, int]]] = {tid: [] for tid in rows}
    before: dict[int, int] = {}
    for now_ns, on_cpu_ns in samples:
        for tid, total_ns in on_cpu_ns.items():
            worked_ns = total_ns - before.get(tid, total_ns)
            before[tid] = total_ns
            if worked_ns > 0:
                _add(spans[tid], now_ns - worked_ns, now_ns)
    work = [InputWork(names[tid], rows[tid], *piece) for tid, pieces in spans.items() for piece in pieces]
    return tuple(sorted(work, key=lambda w: (w.begin_ns, w.row)))


def _add(spans: list[tuple[int, int]], begin_ns: int, end_ns: int) -> None:
    """One more piece of work, joined to the last where they touch. A joined piece is as long as its parts, and ends
    where the last ends: what the kernel added up late lies further back, and no time is counted twice or lost."""
    length_ns = end_ns - begin_ns
    while spans and end_ns - length_ns - spans[-1][1] <= _JOIN_NS:
        last_begin_ns, last_end_ns = spans.pop()
        length_ns += last_end_ns - last_begin_ns
    spans.append((end_ns - length_ns, end_ns))
