"""Sums over ranks through NCCL, called directly, of arrays on a GPU. CuPy is imported when a reducer is made.

One rank has one GPU. A communicator lives as long as its process: to destroy one is a call that all ranks of a host
must make, and it waits for every captured graph that holds an all-reduce of it, so that a rank which failed would wait
for ever."""

import ctypes
from collections.abc import Callable
from typing import Any

from tcbench.core.errors import SelectionError
from tcbench.engine.accelerators.cuda import driver, packages
from tcbench.engine.accelerators.protocol import Array
from tcbench.engine.world import World


class NcclReducer:
    """See `tcbench.engine.accelerators.protocol.Reducer`. `stream`: the accelerator's; what has begun has another."""

    def __init__(self, world: World, stream: Any) -> None:
        """Raises SelectionError, on every rank, where NCCL does not load."""
        import cupy
        from cupy.cuda import nccl

        if not nccl.available:
            extra = packages.extra_for(driver.gpus())
            raise SelectionError(
                f"{world.size} ranks on GPUs: NCCL is not installed: "
                f"uv sync --extra {extra.name} --extra mpi --extra nccl{extra.cuda}"
            )
        self._cuda = cupy.cuda
        self._stream = stream
        self._beside = cupy.cuda.Stream(non_blocking=True)
        self._sum = nccl.NCCL_SUM
        self._types = {"float16": nccl.NCCL_FLOAT16, "bfloat16": nccl.NCCL_BFLOAT16, "float32": nccl.NCCL_FLOAT32}
        number = world.bcast(nccl.get_unique_id() if world.rank == 0 else None)
        self._communicator = nccl.NcclCommunicator(world.size, number, world.rank)
        # Its end would be its destruction.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._communicator))
        version = nccl.get_version()
        self.engine = f"ncclAllReduce, NCCL {version // 10000}.{version // 100 % 100}.{version % 100}"

    def reduce(self, array: Array) -> None:
        """See Reducer. In a captured step it becomes part of the graph."""
        self._reduce(array, self._stream)

    def begin(self, array: Array) -> Callable[[], None]:
        self._after(self._stream, self._beside)()
        self._reduce(array, self._beside)
        return self._after(self._beside, self._stream)

    def advance(self) -> None:
        """See Reducer: a GPU needs no help."""

    def close(self) -> None:
        """See Reducer: the stream is waited for by the accelerator."""

    def _reduce(self, array: Array, stream: Any) -> None:
        address = array.data.ptr
        self._communicator.allReduce(address, address, array.size, self._types[array.dtype.name], self._sum, stream.ptr)

    def _after(self, stream: Any, other: Any) -> Callable[[], None]:
        """Once called, the other stream waits for all that this one has been given before now."""
        event = self._cuda.Event(disable_timing=True)
        event.record(stream)
        return lambda: other.wait_event(event)
