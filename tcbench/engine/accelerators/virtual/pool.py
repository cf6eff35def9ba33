"""Memory of a device that is not there: its capacity, and CuPy's pools in it, whose arrays have no contents.

A pool keeps what it was given and hands it out by best fit, as CuPy's `SingleDeviceMemoryPool` does
(cupy/cuda/memory.pyx): sizes are rounded up to 512 bytes, a free chunk that is larger than asked for is split,
neighbours that are free become one, and only when the device has nothing left do whole free blocks go back to it.
Behind each block lies as much address space of the host, of which no page is touched.
"""

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
    """An array on a device that is not there. It has an address and no contents."""

    __slots__ = ()


class DeviceMemory:
    """Bytes that a device has for pools, and that they hold; and bytes in their arrays, rounded up. `peak_bytes`,
    `peak_alive_bytes`: the most of each there ever were. `spent` makes the error for so many bytes more."""

    def __init__(self, capacity_bytes: int, spent: Callable[[int, int], OutOfDeviceMemory]) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_bytes = self.peak_bytes = 0
        self.alive_bytes = self.peak_alive_bytes = 0
        self.spent = spent

    def take(self, n_bytes: int) -> bool:
        """Whether there were as many."""
        if self.held_bytes + n_bytes > self.capacity_bytes:
            return False
        self.held_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return True

    def give(self, n_bytes: int) -> None:
        self.held_bytes -= n_bytes


class _Chunk:
    """Part of a block, beside its neighbours in it."""

    __slots__ = ("block", "is_free", "next", "offset", "owner", "previous", "size")

    def __init__(self, block: memoryview, offset: int, size: int) -> None:
        self.block, self.offset, self.size = block, offset, size
        self.is_free = False
        self.previous: _Chunk | None = None
        self.next: _Chunk | None = None
        self.owner: _Owner | None = None


class _Owner(weakref.ref[Any]):
    """The array that a chunk was made for."""

    __slots__ = ("chunk",)
    chunk: _Chunk


class BestFitPool:
    """Best fit; of two chunks of one size that which was freed last, where CuPy takes any. `held_bytes`: in blocks.
    `owe` is called with the time since when the host has been busy with simulating. `keeps`: asked when the device has
    nothing left, whether free blocks must stay all the same.
    """

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
        """Measure the time of calling `empty`, and of its array's end, that these do not see themselves."""
        seen_ns = 0

        def see(since_ns: int) -> None:
            nonlocal seen_ns
            seen_ns += _now() - since_ns

        def beyond_ns() -> int:
            nonlocal seen_ns
            seen_ns, begin_ns = 0, _now()
            for _ in range(_CALLS):
                self.empty((1, 1, 1, 1), np.float16)
            return (_now() - begin_ns - seen_ns) // _CALLS

        owe, self._owe = self._owe, see
        self._call_ns = max(0, sorted(beyond_ns() for _ in range(9))[2])
        self._owe = owe

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array. Raises OutOfDeviceMemory."""
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
        """A chunk of this size that is no longer free."""
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
        rest = _Chunk(chunk.block, chunk.offset + size, chunk.size - size)
        chunk.size = size
        rest.previous, rest.next, chunk.next = chunk, chunk.next, rest
        if rest.next is not None:
            rest.next.previous = rest
        self._put(rest)

    def _put(self, chunk: _Chunk) -> None:
        chunk.is_free = True
        stack = self._free.get(chunk.size)
        if stack is None:
            self._free[chunk.size] = [chunk]
            bisect.insort(self._sizes, chunk.size)
        else:
            stack.append(chunk)

    def _release(self, owner: Any) -> None:
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
        self._owe(begin_ns - self._call_ns)

    @staticmethod
    def _join(chunk: _Chunk, after: _Chunk) -> None:
        """Make the second a part of the first."""
        chunk.size += after.size
        chunk.next = after.next
        if chunk.next is not None:
            chunk.next.previous = chunk

    def _grow(self, size: int) -> _Chunk:
        if not self._device.take(size):
            if self._keeps():
                raise self._device.spent(size, self._device.peak_bytes)
            self._give_back_blocks()
            if not self._device.take(size):
                gc.collect()
                self._give_back_blocks()
                if not self._device.take(size):
                    raise self._device.spent(size, self._device.peak_bytes)
        self.held_bytes += size
        block = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
        self._blocks[id(block)] = chunk = _Chunk(block, 0, size)  # which has all chunks of the block behind it
        return chunk

    def _give_back_blocks(self) -> None:
        """Those that are free as a whole."""
        for chunk in [chunk for chunk in self._blocks.values() if chunk.is_free and chunk.next is None]:
            self._free[chunk.size].remove(chunk)
            del self._blocks[id(chunk.block)]
            self.held_bytes -= chunk.size
            self._device.give(chunk.size)
