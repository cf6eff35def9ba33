"""All-reduce of GPU arrays over ranks with NCCL. CuPy is imported when a reducer is created.

Each rank has one GPU. A communicator is never destroyed: destroying it is a call that all ranks of a host must make,
and it waits for every captured graph that contains one of its all-reduces, so that a failed rank would wait forever."""

import ctypes
from collections.abc import Callable
from typing import Any

from tcbench.core.errors import SelectionError
from tcbench.engine.accelerators.cuda import driver, packages
from tcbench.engine.accelerators.protocol import Array
from tcbench.engine.world import World


class NcclReducer:
    """A reducer that sums with NCCL. `reduce` runs on the accelerator's stream, `begin` on a second one beside it."""

    def __init__(self, world: World, stream: Any) -> None:
        """Create a communicator over all ranks. Raises SelectionError, on every rank, if NCCL does not load."""
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
        self._side_stream = cupy.cuda.Stream(non_blocking=True)
        self._sum = nccl.NCCL_SUM
        self._types = {"float16": nccl.NCCL_FLOAT16, "bfloat16": nccl.NCCL_BFLOAT16, "float32": nccl.NCCL_FLOAT32}
        unique_id = world.bcast(nccl.get_unique_id() if world.rank == 0 else None)
        self._communicator = nccl.NcclCommunicator(world.size, unique_id, world.rank)
        # A leaked reference: garbage collection would destroy the communicator.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._communicator))
        version = nccl.get_version()
        self.engine = f"ncclAllReduce, NCCL {version // 10000}.{version // 100 % 100}.{version % 100}"

    def reduce(self, array: Array) -> None:
        """Sum on the accelerator's stream. In a captured step the sum becomes part of the graph."""
        self._reduce(array, self._stream)

    def begin(self, array: Array) -> Callable[[], None]:
        self._after(self._stream, self._side_stream)()
        self._reduce(array, self._side_stream)
        return self._after(self._side_stream, self._stream)

    def advance(self) -> None:
        """Do nothing: NCCL advances on the GPU without the host."""

    def close(self) -> None:
        """Do nothing: the accelerator waits for the stream."""

    def _reduce(self, array: Array, stream: Any) -> None:
        address = array.data.ptr
        self._communicator.allReduce(address, address, array.size, self._types[array.dtype.name], self._sum, stream.ptr)

    def _after(self, stream: Any, waiting: Any) -> Callable[[], None]:
        """Return a function that makes the `waiting` stream wait for all work that is on `stream` now."""
        event = self._cuda.Event(disable_timing=True)
        event.record(stream)
        return lambda: waiting.wait_event(event)
