"""A small thread pool that calls a function on every chunk of an operation.

Plain threads suffice because NumPy and BLAS release the interpreter lock. Callers choose chunks by the shape alone,
never by the number of threads, so results are bit-identical for any number of threads.

BLAS is limited to one thread per call, even for a single chunk. Each chunk makes its own BLAS call, and OpenBLAS's
threads spin for 26 ms after a call on cores that the pool needs next. Using both made ResNet-50's step 1.4 times as
long (64x64, batch 16, two threads: 414 instead of 291 ms)."""

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
_blas_is_limited = False
"""Whether a `use` block has limited BLAS to one thread."""
_nothing = contextlib.nullcontext()
_threads = machine.usable_cpus()
_blas = [
    library
    for library in threadpoolctl.ThreadpoolController().lib_controllers
    if library.user_api == "blas" and "numpy" in str(library.filepath)
] or threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers


class _Job:
    """One call of `run`. Helper threads and the caller take chunk numbers until none are left.

    The caller waits for the chunks that helpers took, not for the helpers. So a helper that wakes up late on a busy
    machine costs nothing."""

    def __init__(self, function: Callable[[Any], object], chunks: Sequence[Any]) -> None:
        self.function = function
        self.chunks = chunks
        self.n = len(chunks)
        self.numbers = itertools.count()
        self.error: BaseException | None = None
        # A queue takes a third of the time of threading.Semaphore, which is written in Python.
        self.helper_counts: queue.SimpleQueue[int] = queue.SimpleQueue()

    def work(self) -> int:
        """Process chunks and return how many this thread took. After an error on any thread, chunks are skipped."""
        taken_count = 0
        while (i := next(self.numbers)) < self.n:  # atomic under the interpreter lock
            taken_count += 1
            if self.error is None:
                try:
                    self.function(self.chunks[i])
                except BaseException as error:  # raised again on the caller's thread
                    self.error = error
        return taken_count

    def finish(self) -> None:
        """Process chunks on the caller's thread, then wait for the chunks that helpers took."""
        left = self.n - self.work()
        while left:
            left -= self.helper_counts.get()
        # A helper that starts late must not keep the arrays alive.
        del self.function, self.chunks


def _help() -> None:
    """Run jobs forever on a helper thread."""
    _local.inside = True
    np.seterr(all="ignore")  # NumPy's setting is per thread; callers of operations set theirs
    while True:
        job = _jobs.get()
        if taken_count := job.work():
            job.helper_counts.put(taken_count)
        del job  # otherwise its arrays would live until the next job


def get_threads() -> int:
    """Return the number of threads that `run` uses, including the caller."""
    return _threads


@contextlib.contextmanager
def use(n: int) -> Iterator[None]:
    """Within a `with` block, let `run` use n threads, including the caller, and limit BLAS to one thread per call."""
    global _threads, _blas_is_limited
    if n < 1:
        raise ValueError(f"threads: expected at least 1, got {n}")
    threads_before, limited_before = _threads, _blas_is_limited
    _threads = n
    try:
        with _nothing if limited_before else limited(_blas, 1):
            _blas_is_limited = True
            yield
    finally:
        _blas_is_limited = limited_before
        _threads = threads_before


@contextlib.contextmanager
def limited(libraries: Sequence[Any], n: int) -> Iterator[None]:
    """Limit these libraries (threadpoolctl controllers) to n threads within a `with` block."""
    before = [library.num_threads for library in libraries]
    for library in libraries:
        library.set_num_threads(n)
    try:
        yield
    finally:
        for library, threads in zip(libraries, before, strict=True):
            library.set_num_threads(threads)


def run(function: Callable[[T], object], chunks: Sequence[T]) -> None:
    """Call `function` on every chunk. Returns when all calls have ended; raises the first error of any call. If the
    function of another `run` calls it, the calling thread processes all chunks."""
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
    with _nothing if _blas_is_limited else limited(_blas, 1):
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
    """Return [0, total) as ranges (begin, end) of nearly equal length, none longer than `size`."""
    n = max(1, -(-total // max(1, size)))
    return [(total * i // n, total * (i + 1) // n) for i in range(n)]


def scratch(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an uninitialised array from this thread's scratch memory, which is reused from call to call.

    It is valid until the same thread calls `scratch` with the same name again. Operations must not return it."""
    buffers: dict[str, npt.NDArray[np.uint8]] = _local.__dict__.setdefault("buffers", {})
    dtype = np.dtype(dtype)
    n_bytes = math.prod(shape) * dtype.itemsize
    buffer = buffers.get(name)
    if buffer is None or buffer.nbytes < n_bytes:
        buffer = buffers[name] = np.empty(n_bytes, np.uint8)
    return buffer[:n_bytes].view(dtype).reshape(shape)
