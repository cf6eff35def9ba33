"""The accelerator: what operations launch work on.

Three fulfil the protocol: `CudaAccelerator` (a GPU, through CuPy and cuDNN), `TracingAccelerator` (no GPU at all: it
records what is launched and how much memory is alive), and in the tests one that computes every piece of work with
NumPy. Operations, optimizers and sessions are written against the protocol alone.

Owns the protocol and which accelerator the process uses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tcbench.hardware.gpus import GpuProperties
from tcbench.work import Work

Array = Any
"""A CuPy array, or a NumPy array that stands in for one. C-contiguous."""


class Accelerator(Protocol):
    """Arrays on a device, and work on them, in order, on one stream; nothing here waits but `download`."""

    @property
    def properties(self) -> GpuProperties: ...

    @property
    def fast_batch_norm(self) -> bool:
        """Whether cuDNN's persistent mode of batch normalisation is allowed (slide 10)."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array whose contents are whatever was there. Raises OutOfDeviceMemory."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array: ...

    def upload(self, host: Any) -> Array:
        """A new array with the contents of a NumPy array."""
        ...

    def copy(self, source: Array, target: Array) -> None:
        """From the host (NumPy) or the device, to a device array of the same shape and dtype."""
        ...

    def download(self, array: Array) -> Any:
        """A NumPy array of the contents, once all work before is done."""
        ...

    def address(self, array: Array) -> int:
        """The address of the array's first value, for tables of pointers."""
        ...

    def launch(self, work: Work, *arrays: Array) -> None:
        """Do the work on arrays in the order of `work.operands`, of those sizes and dtypes, whatever their shapes.
        Returns before it is done."""
        ...

    def graph_memory(self) -> contextlib.AbstractContextManager[None]:
        """Allocations inside lie where nothing but graphs, and the steps that precede their capture, use it."""
        ...

    def graph_bytes(self) -> int:
        """Bytes that `graph_memory` holds, in use or not."""
        ...

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record what `run` launches into a graph, and compute nothing; the result launches that graph. Called within
        `graph_memory`, after `run` has been run in it."""
        ...


_current: Accelerator | None = None


def current() -> Accelerator | None:
    """The accelerator that operations launch on; None: they compute on the host."""
    return _current


@contextlib.contextmanager
def use(accelerator: Accelerator | None) -> Iterator[None]:
    """Make an accelerator the current one for the length of a with block."""
    global _current
    before, _current = _current, accelerator
    try:
        yield
    finally:
        _current = before
