"""The memory of a simulated GPU: its capacity, and memory pools like CuPy's whose arrays have no contents.

A pool allocates by best fit, as CuPy's `SingleDeviceMemoryPool` does (cupy/cuda/memory.pyx): it rounds sizes up to 512
bytes, splits free chunks that are too large, and merges adjacent free chunks. Blocks go back to the device only when it
runs out of memory. A block is host address space whose pages are never touched."""

import bisect
import gc
import math
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.core.errors import OutOfDeviceMemory
from tcbench.engine.accelerators.protocol import Array
from tcbench.engine.accelerators.tracing import ALLOCATION_BYTES

_now = time.perf_counter_ns
_CALLS = 50


class VirtualArray(np.ndarray[Any, Any]):
    """An array on a simulated GPU. It has an address but no contents."""

    __slots__ = ()


class DeviceMemory:
    """The memory of a device and its use by pools.

    - `held_bytes`, `peak_bytes`: bytes of the pools' blocks, now and at most.
    - `alive_bytes`, `peak_alive_bytes`: bytes of live arrays (rounded up), now and at most.
    - `memory_error(requested_bytes, held_bytes)`: returns the error to raise when memory runs out."""

    def __init__(self, capacity_bytes: int, memory_error: Callable[[int, int], OutOfDeviceMemory]) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_bytes = self.peak_bytes = 0
        self.alive_bytes = self.peak_alive_bytes = 0
        self.memory_error = memory_error

    def take(self, n_bytes: int) -> bool:
        """Take memory for a block. Return whether there was enough."""
        if self.held_bytes + n_bytes > self.capacity_bytes:
            return False
        self.held_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return True

    def give(self, n_bytes: int) -> None:
        """Return a block's memory."""
        self.held_bytes -= n_bytes


class _Chunk:
    """A part of a block, linked to the adjacent parts."""

    __slots__ = ("block", "is_free", "next", "offset", "owner", "previous", "size")

    def __init__(self, block: memoryview, offset: int, size: int) -> None:
        self.block, self.offset, self.size = block, offset, size
        self.is_free = False
        self.previous: _Chunk | None = None
        self.next: _Chunk | None = None
        self.owner: _Owner | None = None


class _Owner(weakref.ref[Any]):
    """A weak reference to the array that uses a chunk."""

    __slots__ = ("chunk",)
    chunk: _Chunk


class BestFitPool:
    """A best-fit memory pool. Among free chunks of the same size it takes the one freed last (CuPy takes any).

    `held_bytes`: bytes of its blocks. `owe(since_ns)`: reports the host's time since then as simulation overhead.
    `keeps()`: whether free blocks must not go back to the device when memory runs out."""

    def __init__(
        self, device: DeviceMemory, owe: Callable[[int], None], keeps: Callable[[], bool] = lambda: False
    ) -> None:
        self._device, self._owe, self._keeps = device, owe, keeps
        self._free: dict[int, list[_Chunk]] = {}
        self._sizes: list[int] = []
        self._blocks: dict[int, _Chunk] = {}
        self.held_bytes = 0
        self._call_ns = 0

    def measure_call_ns(self) -> None:
        """Measure the time of an `empty` and a `_release` that they cannot report through `owe`: call and return."""
        reported_ns = 0

        def report(since_ns: int) -> None:
            nonlocal reported_ns
            reported_ns += _now() - since_ns

        def overhead_ns() -> int:
            """Return the mean time of a call that was not reported."""
            nonlocal reported_ns
            reported_ns, begin_ns = 0, _now()
            for _ in range(_CALLS):
                self.empty((1, 1, 1, 1), np.float16)
            return (_now() - begin_ns - reported_ns) // _CALLS

        owe, self._owe = self._owe, report
        # The third of nine: a low quantile, because disturbances only add time.
        self._call_ns = max(0, sorted(overhead_ns() for _ in range(9))[2])
        self._owe = owe

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array without contents. Raises OutOfDeviceMemory."""
        begin_ns = _now()
        dtype = np.dtype(dtype)
        size = -(-dtype.itemsize * math.prod(shape) // ALLOCATION_BYTES) * ALLOCATION_BYTES
        if not size:
            return VirtualArray(shape, dtype)
        chunk = self._take(size)
        array = VirtualArray(shape, dtype, chunk.block, chunk.offset)
        chunk.owner = owner = _Owner(array, self._release)
        owner.chunk = chunk
        device = self._device
        device.alive_bytes += size
        if device.alive_bytes > device.peak_alive_bytes:
            device.peak_alive_bytes = device.alive_bytes
        self._owe(begin_ns)
        return array

    def _take(self, size: int) -> _Chunk:
        """Return a chunk of this size: a free one, part of a larger free one, or a new block."""
        stack = self._free.get(size)
        if stack:
            chunk = stack.pop()
            chunk.is_free = False
            return chunk
        sizes = self._sizes
        place = bisect.bisect_left(sizes, size)
        while place < len(sizes):
            stack = self._free[sizes[place]]
            if stack:
                chunk = stack.pop()
                chunk.is_free = False
                self._split(chunk, size)
                return chunk
            del self._free[sizes[place]], sizes[place]
        return self._grow(size)

    def _split(self, chunk: _Chunk, size: int) -> None:
        """Shorten a chunk to `size`; the rest becomes a free chunk."""
        rest = _Chunk(chunk.block, chunk.offset + size, chunk.size - size)
        chunk.size = size
        rest.previous, rest.next, chunk.next = chunk, chunk.next, rest
        if rest.next is not None:
            rest.next.previous = rest
        self._put(rest)

    def _put(self, chunk: _Chunk) -> None:
        """Mark a chunk as free, and add it to the free chunks of its size."""
        chunk.is_free = True
        stack = self._free.get(chunk.size)
        if stack is None:
            self._free[chunk.size] = [chunk]
            bisect.insort(self._sizes, chunk.size)
        else:
            stack.append(chunk)

    def _release(self, owner: Any) -> None:
        """Free the chunk of an array that no longer exists, and merge it with free neighbours."""
        begin_ns = _now()
        chunk: _Chunk = owner.chunk
        chunk.owner = None
        self._device.alive_bytes -= chunk.size
        after, before = chunk.next, chunk.previous
        if after is not None and after.is_free:
            self._free[after.size].remove(after)
            self._join(chunk, after)
        if before is not None and before.is_free:
            self._free[before.size].remove(before)
            self._join(before, chunk)
            chunk = before
        self._put(chunk)
        self._owe(begin_ns - self._call_ns)  # includes the unreported time of `empty` and this call

    @staticmethod
    def _join(chunk: _Chunk, after: _Chunk) -> None:
        """Extend a chunk by the one after it."""
        chunk.size += after.size
        chunk.next = after.next
        if chunk.next is not None:
            chunk.next.previous = chunk

    def _grow(self, size: int) -> _Chunk:
        """Return a chunk that is a new block. If memory runs out, free unused blocks first, as CuPy does."""
        if not (self._device.take(size) or (not self._keeps() and self._take_after_freeing(size))):
            raise self._device.memory_error(size, self._device.peak_bytes)
        self.held_bytes += size
        block = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
        self._blocks[id(block)] = chunk = _Chunk(block, 0, size)  # the first chunk of the block
        return chunk

    def _take_after_freeing(self, size: int) -> bool:
        """Return unused blocks to the device, if necessary after a garbage collection, and take memory for a block.
        Return whether there was enough."""
        self._free_blocks()
        if self._device.take(size):
            return True
        gc.collect()
        self._free_blocks()
        return self._device.take(size)

    def _free_blocks(self) -> None:
        """Return the blocks that are entirely free to the device."""
        for chunk in [chunk for chunk in self._blocks.values() if chunk.is_free and chunk.next is None]:
            self._free[chunk.size].remove(chunk)
            del self._blocks[id(chunk.block)]
            self.held_bytes -= chunk.size
            self._device.give(chunk.size)
