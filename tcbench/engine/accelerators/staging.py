"""Buffers of the host, through which batches go to a device: a copy is asynchronous, and its source free at once."""

from collections.abc import Callable
from typing import Any

import numpy as np

SLOTS = 2
"""Buffers per size: the host fills one while the device still reads the other."""


class Slot:
    """A buffer (bytes), and an event that says when the device has read it."""

    def __init__(self, buffer: Any, event: Any) -> None:
        self._buffer = buffer
        self.address = int(buffer.ctypes.data)
        self.event = event

    def fill(self, source: Any) -> None:
        np.copyto(self._buffer.view(source.dtype).reshape(source.shape), source)


class Staging:
    """Slots by size, used in turn. `make` makes one of so many bytes."""

    def __init__(self, make: Callable[[int], Slot]) -> None:
        self.make = make
        self._slots: dict[int, list[Slot]] = {}

    def next(self, n_bytes: int) -> Slot:
        """One that the device has read."""
        slots = self._slots.setdefault(n_bytes, [])
        slot = self.make(n_bytes) if len(slots) < SLOTS else slots.pop(0)
        slots.append(slot)
        slot.event.synchronize()
        return slot
