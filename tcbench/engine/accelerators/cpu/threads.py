"""Runs a function over chunks on a few threads. NumPy and BLAS release the interpreter lock, so plain threads do.

Callers cut their work into chunks by the shape alone, never by the number of threads: each chunk computes the same
numbers whichever thread takes it, so results are bit-identical for any number of threads.

BLAS is held to one thread per call, even for a single chunk: each chunk brings its own matrix product, and OpenBLAS's
threads spin for 26 ms after a call that used them, on the processor that a helper needs next. Mixing the two made
ResNet-50's step 1.4 times as long (64x64, batch 16, two threads: 414 against 291 ms)."""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import threadpoolctl

from tcbench.hardware import machine

Array = npt.NDArray[Any]
T = TypeVar("T")
R = TypeVar("R")

_local = threading.local()
_lock = threading.Lock()
_jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
_helpers = 0
_holding = False
"""Whether BLAS is held to one thread already."""
_nothing = contextlib.nullcontext()
_threads = machine.usable_cpus()
_blas = [
    library
    for library in threadpoolctl.ThreadpoolController().lib_controllers
    if library.user_api == "blas" and "numpy" in str(library.filepath)
] or threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers


class _Job:
    """One call of `run`: helpers and the caller draw chunk numbers until none is left. The caller waits for the chunks
    that helpers drew, not for helpers: one that the system wakes late, on a busy machine, then costs nothing."""

    def __init__(self, function: Callable[[Any], object], chunks: Sequence[Any]) -> None:
        self.function = function
        self.chunks = chunks
        self.n = len(chunks)
        self.numbers = itertools.count()
        self.error: BaseException | None = None
        # A queue, since threading's semaphores are written in Python: three times the time of a call.
        self.by_helpers: queue.SimpleQueue[int] = queue.SimpleQueue()

    def work(self) -> int:
        """The number of chunks that this thread drew; after an error of any thread's, no more is called."""
        drawn = 0
        while (i := next(self.numbers)) < self.n:  # atomic under the interpreter lock
            drawn += 1
            if self.error is None:
                try:
                    self.function(self.chunks[i])
                except BaseException as error:  # raised again on the caller's thread
                    self.error = error
        return drawn

    def finish(self) -> None:
        """The caller's part: work, then wait for the rest."""
        left = self.n - self.work()
        while left:
            left -= self.by_helpers.get()
        # A helper that comes too late keeps nothing alive.
        del self.function, self.chunks


def _help() -> None:
    _local.inside = True
    np.seterr(all="ignore")  # as the operations' callers do for their own thread
    while True:
        job = _jobs.get()
        if drawn := job.work():
            job.by_helpers.put(drawn)
        del job  # else its arrays would live until the next job


def set_threads(n: int) -> None:
    """Sets how many threads `run` uses, the caller included."""
    global _threads
    if n < 1:
        raise ValueError(f"threads: expected at least 1, got {n}")
    _threads = n


def get_threads() -> int:
    """The number of threads that `run` uses."""
    return _threads


@contextlib.contextmanager
def use(n: int) -> Iterator[None]:
    """`set_threads` for the length of a with block, within which BLAS has one thread."""
    global _holding
    before, held = _threads, _holding
    set_threads(n)
    try:
        with _nothing if held else limited(_blas, 1):
            _holding = True
            yield
    finally:
        _holding = held
        set_threads(before)


@contextlib.contextmanager
def limited(libraries: Sequence[Any], n: int) -> Iterator[None]:
    """While it is held, these libraries (threadpoolctl's) have so many threads."""
    before = [library.num_threads for library in libraries]
    for library in libraries:
        library.set_num_threads(n)
    try:
        yield
    finally:
        for library, threads in zip(libraries, before, strict=True):
            library.set_num_threads(threads)


def run(function: Callable[[T], object], chunks: Sequence[T]) -> None:
    """Calls `function` on every chunk. Returns when all are done; raises the first error of any of them."""
    global _helpers
    if getattr(_local, "inside", False):
        for chunk in chunks:
            function(chunk)
        return
    n_helpers = max(0, min(_threads, len(chunks)) - 1)
    with _lock:
        while _helpers < n_helpers:
            threading.Thread(target=_help, name=f"tcbench-ops-{_helpers}", daemon=True).start()
            _helpers += 1
    job = _Job(function, chunks)
    with _nothing if _holding else limited(_blas, 1):
        for _ in range(n_helpers):
            _jobs.put(job)
        _local.inside = True
        try:
            job.finish()
        finally:
            _local.inside = False
    if job.error is not None:
        raise job.error


def collect(function: Callable[[T], R], chunks: Sequence[T]) -> list[R]:
    """Return what `function` returns for every chunk, in the order of the chunks."""
    results: dict[int, R] = {}

    def call(index: int) -> None:
        results[index] = function(chunks[index])

    run(call, range(len(chunks)))
    return [results[index] for index in range(len(chunks))]


def spans(total: int, size: int) -> list[tuple[int, int]]:
    """[0, total) cut into ranges of nearly equal length, none longer than `size`."""
    n = max(1, -(-total // max(1, size)))
    return [(total * i // n, total * (i + 1) // n) for i in range(n)]


def scratch(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """An uninitialised array of this thread's own, over memory that is kept from call to call. Valid until the same
    thread asks for the same name again. Never to be returned from an op."""
    buffers: dict[str, npt.NDArray[np.uint8]] = _local.__dict__.setdefault("buffers", {})
    dtype = np.dtype(dtype)
    n_bytes = math.prod(shape) * dtype.itemsize
    buffer = buffers.get(name)
    if buffer is None or buffer.nbytes < n_bytes:
        buffer = buffers[name] = np.empty(n_bytes, np.uint8)
    return buffer[:n_bytes].view(dtype).reshape(shape)
