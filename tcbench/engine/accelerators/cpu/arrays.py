"""Host memory: the part of an accelerator that both CPU accelerators share."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.engine import work
from tcbench.engine.accelerators.cpu.mpi import MpiReducer
from tcbench.engine.accelerators.cpu.threads import use
from tcbench.engine.accelerators.protocol import Accelerator, Array, Reducer
from tcbench.engine.world import World


class HostArrays(Accelerator):
    """Base class of CPU accelerators: arrays are NumPy arrays in host memory."""

    shares_host_memory = True

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def enter(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that sets the number of threads; work is launched inside it."""
        return use(self._threads)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.zeros(shape, dtype)

    def upload(self, host: Any) -> Array:
        return np.array(host, order="C")

    def take(self, host: Any) -> Array:
        return np.asarray(host, order="C")

    def copy(self, source: Array, target: Array) -> None:
        np.copyto(target, source)

    def download(self, array: Array) -> Any:
        return np.array(array)

    def reducer(self, world: World) -> Reducer:
        return MpiReducer(world, lambda a, b: self.launch(work.Add.interned(a.size, a.dtype.name), a, b, b))

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        raise NotImplementedError("a CPU cannot capture graphs: the rung cuda_graph needs a GPU")
