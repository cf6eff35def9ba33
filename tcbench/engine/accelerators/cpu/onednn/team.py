"""Launches on a few threads, by team.c where this machine compiles it.

To hand a chunk to a thread of Python and wait for it takes 0.08 to 0.15 ms on a virtual machine: the thread is woken,
waits for the interpreter lock, and wakes the caller. A step of ResNet-50 does that 320 times. Here threads look for
work for a moment before they sleep, and never ask for the lock."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from ctypes import c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from tcbench.engine.accelerators.cpu import compiled

LOOKS_NS = 100_000
"""Looked for so long before a thread sleeps: longer than the host's part between two launches, too short to take much
from whatever else needs the processor."""


class PrimitiveCall(ctypes.Structure):
    """A call of dnnl_primitive_execute, or of a function of that form at the address `execute`."""

    _fields_ = (
        ("execute", c_void_p),
        ("primitive", c_void_p),
        ("stream", c_void_p),
        ("arguments", c_void_p),
        ("n_arguments", c_int64),
    )


class _CallChunk(ctypes.Structure):
    _fields_ = (("calls", ctypes.POINTER(PrimitiveCall)), ("n", c_int64))


class _Stage(ctypes.Structure):
    _fields_ = (("chunks", ctypes.POINTER(_CallChunk)), ("n", c_int64))


class _ArrayPlace(ctypes.Structure):
    _fields_ = (("memory", c_void_p), ("array", c_int64), ("offset", c_int64))


EXECUTE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_void_p)
"""dnnl_primitive_execute: of a primitive, a stream, the number of arguments and these."""

Addresses = ctypes.Array[c_size_t]
"""Of arrays, in the order of a work's operands."""
Stages = Sequence[Sequence[Sequence[PrimitiveCall]]]
"""One after another; of chunks that run side by side, at most 65,535; of calls in order."""


class Team:
    """So many threads that live as long as the process. `set_threads`: omp_set_num_threads. `set_handle`:
    dnnl_memory_set_data_handle."""

    def __init__(self, library: ctypes.CDLL, set_threads: Any, set_handle: Any, n_threads: int) -> None:
        library.team_new.argtypes = (c_void_p, c_int, c_int64)
        library.team_new.restype = c_void_p
        library.team_run.argtypes = (c_void_p, ctypes.POINTER(_Stage), c_int)
        self._team = library.team_new(ctypes.cast(set_threads, c_void_p), n_threads - 1, LOOKS_NS)
        if not self._team:
            raise MemoryError("no threads for launches")
        self._run = library.team_run
        # It takes less time than giving the interpreter lock to another thread and waiting to get it back.
        self._place, self._set_handle = ctypes.PyDLL(library._name).place, ctypes.cast(set_handle, c_void_p)
        self._place.argtypes = (c_void_p, ctypes.POINTER(_ArrayPlace), c_int, c_void_p)

    def bind(self, stages: Stages) -> Callable[[], int]:
        """The launch of these calls. Returns oneDNN's first status that is not 0, after which no call begins."""
        table = (_Stage * len(stages))(
            *(
                _Stage(
                    _array(_CallChunk, [_CallChunk(_array(PrimitiveCall, chunk), len(chunk)) for chunk in s]), len(s)
                )
                for s in stages
            )
        )
        run, team, n = self._run, self._team, len(stages)
        return lambda: run(team, table, n)

    def places(self, given: Sequence[tuple[int, int, int]]) -> Callable[[Addresses], int]:
        """What tells oneDNN where arguments lie, of the addresses of arrays: each argument's memory, the number of its
        array, and bytes from that one's start. Returns oneDNN's first status that is not 0."""
        place, set_handle, table, n = self._place, self._set_handle, _array(_ArrayPlace, given), len(given)
        return lambda addresses: place(set_handle, table, n, addresses)


def _array(kind: Any, items: Sequence[Any]) -> Any:
    """ctypes keeps what a structure's pointer is set to."""
    return (kind * len(items))(*items)


def team(set_threads: Any, set_handle: Any, n_threads: int) -> Team | None:
    """None where there is no compiler."""
    made = compiled.library(Path(__file__).with_suffix(".c"), works)
    return None if made is None else Team(made, set_threads, set_handle, n_threads)


def works(made: ctypes.CDLL) -> bool:
    """Whether each call is made once, a chunk's in order, a stage's before the next one's, a status ends it, and each
    argument is where its array is."""
    calls: list[tuple[int, int]] = []
    lock = threading.Lock()

    def note(primitive: int, _stream: int | None, n: int, _arguments: int | None) -> int:
        with lock:
            calls.append((primitive, n))
        return 7 if n == 99 else 0

    execute = EXECUTE(note)
    call = functools.partial(PrimitiveCall, ctypes.cast(execute, c_void_p))
    set_threads = ctypes.CFUNCTYPE(None, c_int)(lambda _: None)
    lies: dict[int, int] = {}
    set_handle = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(lambda memory, at: lies.update({memory: at}) or 0)
    _kept.append((execute, set_threads, set_handle))  # the team's threads stay
    tried = Team(made, set_threads, set_handle, 3)
    if tried.places([(1, 0, 5), (2, 1, 0), (3, 0, 0)])((c_size_t * 2)(100, 200)) or lies != {1: 105, 2: 200, 3: 100}:
        return False
    stages = [[[call(s + 1, None, None, 10 * c + k) for k in range(3)] for c in range(width)] for s, width in STAGES]
    run = tried.bind(stages)
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
    failing = tried.bind([[[call(1, None, None, 99), call(2, None, None, 0)]], [[call(3, None, None, 0)]] * 2])
    return failing() == 7 and calls == [(1, 99)] and run() == 0


STAGES = tuple(enumerate((1, 2, 5, 1, 3)))
"""Of the check: how many chunks each has."""
_kept: list[Any] = []
