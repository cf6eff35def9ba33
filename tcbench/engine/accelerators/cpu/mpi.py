"""All-reduce of arrays in host memory through MPI. mpi4py is imported when a reducer is created.

MPI itself sums float32. There is no 16-bit floating-point type that all MPI builds support (Open MPI has float16, but
adds it in software, slower than float32 with twice the bytes). So 16-bit values are sent as integers, with a custom
reduction that adds in float32 and rounds, as a GPU does between ranks."""

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
"""Bytes per MPI call. Two ranks on one host took 1.2 to 2 times as long for 97 MB in one call as in pieces of 1 to
16 MB, which fit the caches (Open MPI 5.0.11)."""

_CLOSE_S = 10
"""How long `close` waits for reductions in progress. A rank that has ended never answers."""


class MpiReducer:
    """A `tcbench.engine.accelerators.protocol.Reducer` that uses MPI.

    MPI makes progress only inside its calls, so reductions that have begun continue in `advance`. `add(a, b)` adds the
    16-bit array a to b in place."""

    def __init__(self, world: World, add: Callable[[Array, Array], None]) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._add = add
        # A separate communicator, so that reductions in progress do not match messages of other code.
        self._comm = world.mpi.Dup()
        self._pending: list[Any] = []
        self._operations: dict[Any, Any] = {}
        self.engine = f"MPI_Allreduce, {MPI.Get_library_version().partition(',')[0].strip()}"

    def reduce(self, array: Array) -> None:
        piece = PIECE_BYTES // array.itemsize
        for begin in range(0, array.size, piece):
            self._comm.Allreduce(self._mpi.IN_PLACE, *self._arguments(array[begin : begin + piece]))

    def begin(self, array: Array) -> Callable[[], None]:
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, *self._arguments(array))
        self._pending.append(request)

        def wait() -> None:
            request.Wait()
            self._pending.remove(request)

        return wait

    def advance(self) -> None:
        for request in self._pending:
            request.Test()

    def close(self) -> None:
        """Wait for pending reductions, but at most _CLOSE_S seconds."""
        until = time.monotonic() + _CLOSE_S
        while not self._mpi.Request.Testall(self._pending) and time.monotonic() < until:
            time.sleep(1e-3)
        self._pending.clear()

    def _arguments(self, array: Array) -> tuple[Any, Any]:
        """Return the buffer and the reduction operation that MPI takes for an array."""
        dtype = array.dtype
        if ITEM_BYTES[dtype.name] != 2:
            return array, self._mpi.SUM
        if dtype not in self._operations:
            self._operations[dtype] = self._mpi.Op.Create(functools.partial(self._sum, dtype), commute=True)
        return [array.view(np.uint16), self._mpi.UINT16_T], self._operations[dtype]

    def _sum(self, dtype: np.dtype[Any], addends: Any, totals: Any, _: Any) -> None:
        """Add the 16-bit values in `addends` to those in `totals`. MPI calls this with its buffers to reduce."""
        self._add(np.frombuffer(addends, dtype), np.frombuffer(totals, dtype))
