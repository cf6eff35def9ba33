"""Sums over ranks through MPI, of arrays in the host's memory. mpi4py is imported when a reducer is made.

Float32 is summed by MPI itself. Of 16 bits it has no type that every build knows (Open MPI has one for float16, and
adds it in software, slower than twice the bytes), so that such values travel as integers, with an operation of ours
that adds in float32 and rounds, as a GPU does between one rank and the next."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.engine.accelerators.protocol import Array
from tcbench.engine.work import ITEM_BYTES
from tcbench.engine.world import World

PIECE_BYTES = 8 << 20
"""Given to MPI at once. Two ranks of one host took roughly 1.2 to 2 times as long for 97 MB in one call as in
pieces of 1 to 16 MB (Open MPI 5.0.11), which caches hold."""

_CLOSE_S = 10
"""The wait for sums that nobody asked for any more. A rank that has ended will never answer."""


class MpiReducer:
    """See `tcbench.engine.accelerators.protocol.Reducer`. MPI works only while it is called: what has begun goes on in
    `advance`. `add(a, b)` adds an array of 16 bits to another."""

    def __init__(self, world: World, add: Callable[[Array, Array], None]) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._add = add
        # A communicator of its own: what is under way here does not meet what others send.
        self._comm = world.mpi.Dup()
        self._begun: list[Any] = []
        self._operations: dict[Any, Any] = {}
        self.engine = f"MPI_Allreduce, {MPI.Get_library_version().partition(',')[0].strip()}"

    def reduce(self, array: Array) -> None:
        piece = PIECE_BYTES // array.itemsize
        for begin in range(0, array.size, piece):
            self._comm.Allreduce(self._mpi.IN_PLACE, *self._of(array[begin : begin + piece]))

    def begin(self, array: Array) -> Callable[[], None]:
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, *self._of(array))
        self._begun.append(request)

        def wait() -> None:
            request.Wait()
            self._begun.remove(request)

        return wait

    def advance(self) -> None:
        for request in self._begun:
            request.Test()

    def close(self) -> None:
        until = time.monotonic() + _CLOSE_S
        while not self._mpi.Request.Testall(self._begun) and time.monotonic() < until:
            time.sleep(1e-3)
        self._begun.clear()

    def _of(self, array: Array) -> tuple[Any, Any]:
        """Message and operation."""
        dtype = array.dtype
        if ITEM_BYTES[dtype.name] != 2:
            return array, self._mpi.SUM
        if dtype not in self._operations:
            self._operations[dtype] = self._mpi.Op.Create(functools.partial(self._sum, dtype), commute=True)
        return [array.view(np.uint16), self._mpi.UINT16_T], self._operations[dtype]

    def _sum(self, dtype: np.dtype[Any], one: Any, other: Any, _: Any) -> None:
        self._add(np.frombuffer(one, dtype), np.frombuffer(other, dtype))
