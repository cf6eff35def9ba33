"""The accelerator: what operations launch work on.

`CudaAccelerator` (a GPU, through CuPy and cuDNN) fulfils the protocol, `OneDnnAccelerator` and `NumpyAccelerator` (the
processor), and two for a GPU that is not there: `TracingAccelerator` records what is launched and how much memory is
alive, `VirtualAccelerator` lets the time pass that it would take. Operations, optimizers and sessions are written
against the protocol alone: one program, whoever does the work.

Owns the protocol and which accelerator the process uses."""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tcbench.engine import work as w
from tcbench.engine.world import Current

Array = Any
"""A CuPy array, or a NumPy array that stands in for one. C-contiguous."""


@dataclass(frozen=True)
class BatchNormRoute:
    """The work that an accelerator does a batch normalisation by, forward and backward, and what forward keeps for
    backward beside the statistics. `then`: what follows as work of its own (and comes before the backward work)."""

    norm: w.Norm
    forward: w.BatchNormForward | w.BatchNormCallForward
    backward: w.BatchNormBackward | w.BatchNormCallBackward
    then: w.After

    @functools.cached_property
    def kept(self) -> tuple[tuple[int, ...], str] | None:
        """Shape and dtype of ReLU's mask, or of the calls' reserve space; None when ReLU is not fused."""
        norm = self.forward.norm
        if not norm.relu:
            return None
        if isinstance(self.forward, w.BatchNormForward):
            return norm.shape, "bool"
        return (w.reserve_bytes(norm),), "uint8"


class Reducer(Protocol):
    """Sums arrays over all ranks, in their place and in the order of calls, which is the same on every rank. `engine`
    says what does it, with its version."""

    @property
    def engine(self) -> str: ...

    def reduce(self, array: Array) -> None:
        """Sum now: the next launch sees it."""

    def begin(self, array: Array) -> Callable[[], None]:
        """Sum beside what is launched from now on. Once the result is called, what is launched sees the sum; until
        then nothing touches the array."""

    def advance(self) -> None:
        """Give what has begun a moment of the host, where it needs that."""

    def close(self) -> None:
        """End it. Waits for what is under way, but not for ever: other ranks may be gone."""


class Accelerator(Protocol):
    """Arrays on a device, and work on them, in order, on one stream; nothing here waits but `download`."""

    shares_host_memory: ClassVar[bool] = False
    """Whether its arrays are NumPy's, so that a batch on the host need not be copied."""
    computes: ClassVar[bool] = True
    """Whether its arrays have contents: without, nothing is drawn for them or read from them."""
    adds_to_dgrad: ClassVar[bool] = False
    """Whether ConvDgradAdd is one piece of work here."""

    def batch_norm(self, norm: w.Norm, eps: float, momentum: float) -> BatchNormRoute:
        """The work that does it here; the same object for the same arguments."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array whose contents are whatever was there. Raises OutOfDeviceMemory."""

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array: ...

    def upload(self, host: Any) -> Array:
        """A new array with the contents of a NumPy array."""

    def take(self, host: Any) -> Array:
        """The same for a NumPy array that nobody else will write to: where memory is shared it may be that array."""
        return self.upload(host)

    def copy(self, source: Array, target: Array) -> None:
        """From the host (NumPy) or the device, to a device array of the same shape and dtype."""

    def download(self, array: Array) -> Any:
        """A NumPy array of the contents, once all work before is done."""

    def address(self, array: Array) -> int:
        """The address of the array's first value, for tables of pointers."""
        return int(array.ctypes.data)

    def launch(self, work: w.Work, *arrays: Array) -> None:
        """Do the work on arrays in the order of `work.operands`, of those sizes and dtypes, whatever their shapes.
        Returns before it is done."""
        self.prepare(work, *arrays)()

    def prepare(self, work: w.Work, *arrays: Array) -> Callable[[], None]:
        """The launch of this work on these arrays, to be made later and as often as one likes, with nothing left to
        look up. The caller keeps the arrays' memory."""

    def graph_memory(self) -> contextlib.AbstractContextManager[None]:
        """Allocations inside lie where nothing but graphs, and the steps that precede their capture, use it."""
        return contextlib.nullcontext()

    def graph_bytes(self) -> int:
        """Bytes that `graph_memory` holds, in use or not."""
        return 0

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record what `run` launches into a graph, and compute nothing; the result launches that graph. Called within
        `graph_memory`, after `run` has been run in it."""


_current = Current[Accelerator | None](None)

use = _current.use
"""Make an accelerator the current one for the length of a with block."""


def current() -> Accelerator:
    """The accelerator that operations launch on. Raises RuntimeError where none is in use."""
    if _current.value is None:
        raise RuntimeError("no accelerator is in use: operations run within `accelerators.protocol.use(...)`")
    return _current.value
