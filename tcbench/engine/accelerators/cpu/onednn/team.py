"""A thread team in C (team.c) that runs calls of oneDNN primitives in parallel.

Handing a chunk to a Python thread and waiting for it takes 0.08 to 0.15 ms on a virtual machine: the thread is woken,
waits for the interpreter lock, and wakes the caller. A step of ResNet-50 does this 320 times. The team's threads poll
for work for a moment before they sleep, and never take the interpreter lock.
Machines without a C compiler use `PythonTeam`."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from ctypes import c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from tcbench.engine.accelerators.cpu import compiled, threads

POLL_NS = 100_000
"""How long a thread polls for work before it sleeps: longer than the host's work between two launches, and too short to
take much time from other processes."""


class PrimitiveCall(ctypes.Structure):
    """A call of the function at address `execute`: dnnl_primitive_execute, or a function with the same signature."""

    _fields_ = (
        ("execute", c_void_p),
        ("primitive", c_void_p),
        ("stream", c_void_p),
        ("arguments", c_void_p),
        ("n_arguments", c_int64),
    )


class _CallChunk(ctypes.Structure):
    """`struct chunk` of team.c."""

    _fields_ = (("calls", ctypes.POINTER(PrimitiveCall)), ("n", c_int64))


class _Stage(ctypes.Structure):
    """`struct stage` of team.c."""

    _fields_ = (("chunks", ctypes.POINTER(_CallChunk)), ("n", c_int64))


class _ArrayPlace(ctypes.Structure):
    """`struct place` of team.c."""

    _fields_ = (("memory", c_void_p), ("array", c_int64), ("offset", c_int64))


EXECUTE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_void_p)
"""The signature of dnnl_primitive_execute: primitive, stream, number of arguments, arguments."""

Addresses = ctypes.Array[c_size_t]
"""The addresses of arrays, in the order of an operation's operands."""
Stages = Sequence[Sequence[Sequence[PrimitiveCall]]]
"""Stages run one after another. A stage is a list of at most 65,535 chunks that run in parallel; a chunk is a list of
calls that run in order."""


class Team:
    """Threads that live as long as the process and run calls of oneDNN."""

    def __init__(self, library: ctypes.CDLL, set_threads: Any, set_handle: Any, n_threads: int) -> None:
        """Start n_threads - 1 helper threads.

        `library` is compiled from team.c; `set_threads` is omp_set_num_threads, `set_handle` is
        dnnl_memory_set_data_handle. Raises MemoryError if threads cannot be started."""
        library.team_new.argtypes = (c_void_p, c_int, c_int64)
        library.team_new.restype = c_void_p
        library.team_run.argtypes = (c_void_p, ctypes.POINTER(_Stage), c_int)
        self._team = library.team_new(ctypes.cast(set_threads, c_void_p), n_threads - 1, POLL_NS)
        if not self._team:
            raise MemoryError("could not start the threads that run oneDNN")
        self._run = library.team_run
        # PyDLL keeps the interpreter lock: the call takes less time than releasing and reacquiring it.
        self._place, self._set_handle = ctypes.PyDLL(library._name).place, ctypes.cast(set_handle, c_void_p)
        self._place.argtypes = (c_void_p, ctypes.POINTER(_ArrayPlace), c_int, c_void_p)

    def bind(self, stages: Stages) -> Callable[[], int]:
        """Return a function that makes these calls. It returns oneDNN's first non-zero status, and stops there."""

        def chunk_table(chunks: Sequence[Sequence[PrimitiveCall]]) -> Any:
            return _array(_CallChunk, [_CallChunk(_array(PrimitiveCall, calls), len(calls)) for calls in chunks])

        table = _array(_Stage, [_Stage(chunk_table(chunks), len(chunks)) for chunks in stages])
        run, team, n = self._run, self._team, len(stages)
        return lambda: run(team, table, n)

    def places(self, arguments: Sequence[tuple[int, int, int]]) -> Callable[[Addresses], int]:
        """Return a function that takes the addresses of arrays and sets those of oneDNN's arguments.

        An argument is a oneDNN memory object, the index of its array, and the offset in that array in bytes. The
        function returns oneDNN's first non-zero status."""
        place, set_handle, table, n = self._place, self._set_handle, _array(_ArrayPlace, arguments), len(arguments)
        return lambda addresses: place(set_handle, table, n, addresses)


def _array(kind: Any, elements: Sequence[Any]) -> Any:
    """Return a ctypes array. ctypes keeps it alive as long as a structure's pointer field refers to it."""
    return (kind * len(elements))(*elements)


class PythonTeam:
    """A team with the methods of `Team` that uses Python's threads, for machines without a C compiler."""

    def __init__(self, set_threads: Any, set_handle: Any) -> None:
        self._set_threads, self._set_handle = set_threads, set_handle

    def bind(self, stages: Stages) -> Callable[[], int]:
        """See `Team.bind`."""

        def run_chunk(chunk: Sequence[PrimitiveCall]) -> int:
            self._set_threads(1)  # OpenMP keeps this setting per thread
            return _run_calls(chunk)

        def run() -> int:
            """Run the stages in order, the chunks of a stage in parallel. Return the first non-zero status, or 0."""
            statuses = (
                max(threads.collect(run_chunk, chunks)) if len(chunks) > 1 else _run_calls(chunks[0])
                for chunks in stages
            )
            return next(filter(None, statuses), 0)

        return run

    def places(self, arguments: Sequence[tuple[int, int, int]]) -> Callable[[Addresses], int]:
        """See `Team.places`."""
        set_handle = self._set_handle
        return lambda addresses: max(set_handle(memory, addresses[i] + offset) for memory, i, offset in arguments)


def _run_calls(calls: Sequence[PrimitiveCall]) -> int:
    """Make calls in order. Return the first non-zero status, after which no call is made, or 0."""
    statuses = (EXECUTE(call.execute)(call.primitive, call.stream, call.n_arguments, call.arguments) for call in calls)
    return next(filter(None, statuses), 0)


def new_team(set_threads: Any, set_handle: Any, n_threads: int) -> Team | PythonTeam:
    """Return a new team, in C if this machine has a compiler. See `Team` for the arguments."""
    library = compiled.load_library(Path(__file__).with_suffix(".c"), schedules_correctly)
    if library is None:
        return PythonTeam(set_threads, set_handle)
    return Team(library, set_threads, set_handle, n_threads)


def schedules_correctly(library: ctypes.CDLL) -> bool:
    """Check a compiled team.c: each call is made once, in order within its chunk and after the previous stage; a
    non-zero status ends the launch; and each argument points to its array."""
    calls: list[tuple[int, int]] = []
    lock = threading.Lock()

    def record(primitive: int, _stream: int | None, n: int, _arguments: int | None) -> int:
        with lock:
            calls.append((primitive, n))
        return 7 if n == 99 else 0

    execute = EXECUTE(record)
    call = functools.partial(PrimitiveCall, ctypes.cast(execute, c_void_p))
    set_threads = ctypes.CFUNCTYPE(None, c_int)(lambda _: None)
    addresses: dict[int, int] = {}
    set_handle = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(
        lambda memory, address: addresses.update({memory: address}) or 0
    )
    _callbacks.append((execute, set_threads, set_handle))  # the team's threads never end and may call them
    tested = Team(library, set_threads, set_handle, 3)
    set_places = tested.places([(1, 0, 5), (2, 1, 0), (3, 0, 0)])
    if set_places((c_size_t * 2)(100, 200)) or addresses != {1: 105, 2: 200, 3: 100}:
        return False
    stages = [[[call(s + 1, None, None, 10 * c + k) for k in range(3)] for c in range(width)] for s, width in STAGES]
    run = tested.bind(stages)
    for _ in range(50):
        calls.clear()
        if run() or [s for s, _ in calls] != [call.primitive for s in stages for chunk in s for call in chunk]:
            return False
        for stage in stages:
            for chunk in stage:
                numbers = [n for s, n in calls if s == chunk[0].primitive and n // 10 == chunk[0].n_arguments // 10]
                if numbers != [call.n_arguments for call in chunk]:
                    return False
    calls.clear()
    failing = tested.bind([[[call(1, None, None, 99), call(2, None, None, 0)]], [[call(3, None, None, 0)]] * 2])
    return failing() == 7 and calls == [(1, 99)] and run() == 0


STAGES = tuple(enumerate((1, 2, 5, 1, 3)))
"""The index and the number of chunks of each stage that `schedules_correctly` runs."""
_callbacks: list[Any] = []
