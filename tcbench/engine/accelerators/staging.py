"""Host buffers for asynchronous copies to a device. The caller may overwrite the source at once."""

from collections.abc import Callable
from typing import Any

import numpy as np

SLOTS = 2
"""Buffers per size: the host fills one while the device reads another."""


class Slot:
    """A buffer of bytes, and an event that marks when the device has read it."""

    def __init__(self, buffer: Any, event: Any) -> None:
        self._buffer = buffer
        self.address = int(buffer.ctypes.data)
        self.event = event

    def fill(self, source: Any) -> None:
        """Copy an array of the buffer's size into the buffer."""
        np.copyto(self._buffer.view(source.dtype).reshape(source.shape), source)


class Staging:
    """Slots by size, used in rotation. `make(n_bytes)` creates a slot."""

    def __init__(self, make: Callable[[int], Slot]) -> None:
        self.make = make
        self._slots: dict[int, list[Slot]] = {}

    def next(self, n_bytes: int) -> Slot:
        """Return a slot that is free to fill; wait for the device to read it if necessary."""
        slots = self._slots.setdefault(n_bytes, [])
        slot = self.make(n_bytes) if len(slots) < SLOTS else slots.pop(0)
        slots.append(slot)
        slot.event.synchronize()
        return slot
