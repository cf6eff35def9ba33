"""Memory of a device that is not there: its capacity, and CuPy's pools in it, whose arrays have no contents.

A pool keeps what it was given and hands it out by best fit, as CuPy's `SingleDeviceMemoryPool` does
(cupy/cuda/memory.pyx): sizes are rounded up to 512 bytes, a free chunk that is larger than asked for is split,
neighbours that are free become one, and only when the device has nothing left do whole free blocks go back to it.
Behind each block lies as much address space of the host, of which no page is touched.
"""

from __future__ import annotations

import bisect
import gc
import itertools
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.accelerators.protocol import Array
from tcbench.accelerators.tracing import ALLOCATION_BYTES
from tcbench.core.errors import OutOfDeviceMemory


class VirtualArray(np.ndarray[Any, Any]):
    """An array on a device that is not there. It has an address and no contents."""

    __slots__ = ()


class DeviceMemory:
    """Bytes that a device has for pools, and that they hold. `peak_bytes`: the most they ever held; `spent` makes the
    error for so many bytes more."""

    def __init__(self, capacity_bytes: int, spent: Callable[[int, int], OutOfDeviceMemory]) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_bytes = self.peak_bytes = 0
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
    """Part of a block, beside its neighbours in it. `order` is its place among free ones of its size."""

    __slots__ = ("block", "next", "offset", "order", "owner", "previous", "size")

    def __init__(self, block: memoryview, offset: int, size: int) -> None:
        self.block, self.offset, self.size = block, offset, size
        self.previous: _Chunk | None = None
        self.next: _Chunk | None = None
        self.order: int | None = None
        self.owner: _Owner | None = None


class _Owner(weakref.ref[Any]):
    """The array that a chunk was made for."""

    __slots__ = ("chunk",)
    chunk: _Chunk


class Pool:
    """Best fit. `alive_bytes`: in arrays, rounded up; `held_bytes`: in blocks. `keeps`: asked when the device has
    nothing left, whether free blocks must stay all the same."""

    def __init__(self, device: DeviceMemory, keeps: Callable[[], bool] = lambda: False) -> None:
        self._device, self._keeps = device, keeps
        self._free: list[tuple[int, int, _Chunk]] = []
        # Of two free chunks of one size the later one is taken, which counting down puts first.
        self._order = itertools.count(0, -1).__next__
        self._blocks: dict[int, _Chunk] = {}
        self.held_bytes = self.alive_bytes = self.peak_alive_bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array. Raises OutOfDeviceMemory."""
        dtype = np.dtype(dtype)
        n_bytes = dtype.itemsize * math.prod(shape)
        if not n_bytes:
            return VirtualArray(shape, dtype)
        size = -(-n_bytes // ALLOCATION_BYTES) * ALLOCATION_BYTES
        free = self._free
        place = bisect.bisect_left(free, (size,))
        chunk = self._split(free.pop(place)[2], size) if place < len(free) else self._grow(size)
        chunk.order = None
        array = VirtualArray(shape, dtype, chunk.block, chunk.offset)
        chunk.owner = owner = _Owner(array, self._release)
        owner.chunk = chunk
        self.alive_bytes += size
        if self.alive_bytes > self.peak_alive_bytes:
            self.peak_alive_bytes = self.alive_bytes
        return array

    def _split(self, chunk: _Chunk, size: int) -> _Chunk:
        if chunk.size > size:
            rest = _Chunk(chunk.block, chunk.offset + size, chunk.size - size)
            chunk.size = size
            rest.previous, rest.next, chunk.next = chunk, chunk.next, rest
            if rest.next is not None:
                rest.next.previous = rest
            self._keep(rest)
        return chunk

    def _release(self, owner: Any) -> None:
        chunk: _Chunk = owner.chunk
        chunk.owner = None
        self.alive_bytes -= chunk.size
        if chunk.next is not None and chunk.next.order is not None:
            self._forget(chunk.next)
            self._join(chunk)
        if chunk.previous is not None and chunk.previous.order is not None:
            chunk = chunk.previous
            self._forget(chunk)
            self._join(chunk)
        self._keep(chunk)

    def _keep(self, chunk: _Chunk) -> None:
        chunk.order = order = self._order()
        bisect.insort(self._free, (chunk.size, order, chunk))

    def _forget(self, chunk: _Chunk) -> None:
        del self._free[bisect.bisect_left(self._free, (chunk.size, chunk.order))]

    @staticmethod
    def _join(chunk: _Chunk) -> None:
        """Make it one with the next."""
        gone = chunk.next
        assert gone is not None
        chunk.size += gone.size
        chunk.next = gone.next
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
        chunk = _Chunk(block, 0, size)
        self._blocks[id(block)] = chunk  # which has all chunks of the block behind it
        return chunk

    def _give_back_blocks(self) -> None:
        """Those that are free as a whole."""
        for _, _, chunk in [entry for entry in self._free if entry[2].previous is None and entry[2].next is None]:
            self._forget(chunk)
            del self._blocks[id(chunk.block)]
            self.held_bytes -= chunk.size
            self._device.give(chunk.size)
