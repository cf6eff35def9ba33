"""The accelerator protocol, which operations launch work through, and the process's current accelerator.

Implementations:

- `CudaAccelerator`: a GPU, through CuPy and cuDNN
- `OneDnnAccelerator`, `NumpyAccelerator`: the CPU
- `TracingAccelerator`: an absent GPU; records launches and live memory
- `VirtualAccelerator`: an absent GPU; waits as long as the work would take

Operations, optimizers and sessions use only the protocol, so that the same program runs on all of them."""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tcbench.engine import work as w
from tcbench.engine.world import Current

Array = Any
"""A CuPy array, or a NumPy array on an accelerator without CuPy. C-contiguous."""


@dataclass(frozen=True)
class BatchNormRoute:
    """The operations that make up a batch normalisation on an accelerator.

    `then`: the ReLU or addition that `forward` does not fuse. A separate operation does it after `forward`, and another
    one computes its gradient before `backward`."""

    norm: w.Norm
    forward: w.BatchNormForward | w.BatchNormCallForward
    backward: w.BatchNormBackward | w.BatchNormCallBackward
    then: w.After

    @functools.cached_property
    def saved(self) -> tuple[tuple[int, ...], str] | None:
        """Shape and dtype of what forward saves for backward besides the statistics; None without a fused ReLU. It is
        ReLU's mask, or the reserve space of cuDNN's older calls."""
        norm = self.forward.norm
        if not norm.relu:
            return None
        if isinstance(self.forward, w.BatchNormForward):
            return norm.shape, "bool"
        return (w.reserve_bytes(norm),), "uint8"


class Reducer(Protocol):
    """All-reduce of arrays over ranks, in place. Every rank must make the same calls in the same order. `engine`: the
    name and version of the library that sums."""

    @property
    def engine(self) -> str: ...

    def reduce(self, array: Array) -> None:
        """Sum an array over all ranks. Work launched afterwards sees the sum."""

    def begin(self, array: Array) -> Callable[[], None]:
        """Begin to sum an array while other work runs. Return a function that waits for the sum.

        Work that is launched after the function is called sees the sum. Until then, nothing may use the array."""

    def advance(self) -> None:
        """Let begun sums progress, if they need the host to do so."""

    def close(self) -> None:
        """Release the reducer. Waits for begun sums, but not forever: other ranks may have died."""


class Accelerator(Protocol):
    """Arrays on a device and a stream that works on them in order. Only `upload` and `download` wait for the device."""

    shares_host_memory: ClassVar[bool] = False
    """Whether arrays are NumPy arrays, so that a batch on the host need not be copied."""
    computes: ClassVar[bool] = True
    """Whether arrays have contents. Otherwise they are neither initialised nor read."""
    adds_to_dgrad: ClassVar[bool] = False
    """Whether the accelerator can do ConvDgradAdd as a single operation."""

    def batch_norm(self, norm: w.Norm, eps: float, momentum: float) -> BatchNormRoute:
        """Return the operations for a batch normalisation; the same object for the same arguments."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array. Raises OutOfDeviceMemory."""

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array: ...

    def upload(self, host: Any) -> Array:
        """Return a new device array with the contents of a NumPy array."""

    def take(self, host: Any) -> Array:
        """Upload a NumPy array that nobody else will write to. If memory is shared, it can return the array itself."""
        return self.upload(host)

    def copy(self, source: Array, target: Array) -> None:
        """Copy a host (NumPy) or device array to a device array of the same shape and dtype."""

    def download(self, array: Array) -> Any:
        """Wait for all launched work, and return the array's contents as a NumPy array."""

    def address(self, array: Array) -> int:
        """Return the address of the array's first value, for tables of pointers."""
        return int(array.ctypes.data)

    def launch(self, work: w.Work, *arrays: Array) -> None:
        """Launch an operation on arrays in the order of `work.operands`. It can return before the operation has
        finished. Sizes and dtypes must be those of the operands; shapes may differ."""
        self.prepare(work, *arrays)()

    def prepare(self, work: w.Work, *arrays: Array) -> Callable[[], None]:
        """Return a function that launches an operation on these arrays, any number of times, with little overhead. The
        caller keeps the arrays' memory alive."""

    def graph_memory(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which arrays are allocated from memory that is reserved for captured graphs. The steps
        just before a capture use it too."""
        return contextlib.nullcontext()

    def graph_bytes(self) -> int:
        """Return the bytes that `graph_memory` holds, in use or free."""
        return 0

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture the work that `run` launches as a graph, without doing it. Return a function that launches the graph.
        Call it within `graph_memory`, after calling `run` there."""


_current = Current[Accelerator | None](None)

use = _current.use
"""Make an accelerator the current one within a `with` block."""


def current() -> Accelerator:
    """Return the accelerator that operations launch on. Raises RuntimeError if there is none."""
    if _current.value is None:
        raise RuntimeError("no accelerator is in use: operations run within `accelerators.protocol.use(...)`")
    return _current.value
