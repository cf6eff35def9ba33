"""Initial weights, drawn once for every framework: the same seed gives all of them the same numbers."""

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np


def he_normal(shape: tuple[int, ...], fan_in: int, rng: np.random.RandomState) -> np.ndarray:
    """Normal with variance 2 / fan_in (He et al., "Delving Deep into Rectifiers", 2015, eq. 12). float32 whatever is
    stored later, so that every dtype starts from the same numbers."""
    return normal(shape, np.sqrt(2.0 / fan_in), rng)


def normal(shape: tuple[int, ...], std: float, rng: np.random.RandomState) -> np.ndarray:
    """Normal with this standard deviation, float32."""
    drawn = rng.standard_normal(shape)
    return np.multiply(drawn, std, out=np.empty(shape, np.float32), casting="same_kind")


class NoNumbers(np.random.RandomState):
    """For a network that never computes: its weights are arrays whose pages nobody touches."""


_BLOCK = 1 << 18
_MOST_BLOCKS = 32


class DrawnAhead(np.random.RandomState):
    """A RandomState of a seed whose normal numbers a thread draws before they are asked for, at most 64 MiB of them.
    It holds no GIL meanwhile, so that a process can import what it needs. The numbers are the same to the bit."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._blocks: queue.Queue[tuple[Any, np.ndarray]] = queue.Queue(_MOST_BLOCKS)
        self._block, self._at = np.empty(0), 0
        self._before = self.get_state(legacy=False)
        self._is_over = threading.Event()
        threading.Thread(target=self._draw, args=(seed,), name="initial weights", daemon=True).start()

    def _draw(self, seed: int) -> None:
        rng = np.random.RandomState(seed)
        while not self._is_over.is_set():
            before = rng.get_state(legacy=False)
            self._blocks.put((before, rng.standard_normal(_BLOCK)))

    def standard_normal(self, size: Any = None) -> Any:
        if size is None or self._is_over.is_set():
            self.end()
            return super().standard_normal(size)
        drawn = np.empty(size)
        flat, n = drawn.reshape(-1), 0
        while n < flat.size:
            if self._at == self._block.size:
                (self._before, self._block), self._at = self._blocks.get(), 0
            part = self._block[self._at : self._at + flat.size - n]
            flat[n : n + part.size] = part
            n, self._at = n + part.size, self._at + part.size
        return drawn

    def randint(self, *arguments: Any, **more: Any) -> Any:
        """See RandomState. Nothing is drawn ahead from here on."""
        self.end()
        return super().randint(*arguments, **more)

    def end(self) -> None:
        """Go on without the thread, from the number after the last that was asked for."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        with contextlib.suppress(queue.Empty):
            self._blocks.get_nowait()  # which a thread with nowhere to put its block waits for
        self.set_state(self._before)
        super().standard_normal(self._at)
        self._block = np.empty(0)


class Repeated(np.random.RandomState):
    """Normal numbers of which a block comes again and again: for a network that learns nothing, and is as fast as with
    others."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._block = super().standard_normal(_BLOCK)

    def standard_normal(self, size: Any = None) -> Any:
        return np.resize(self._block, size)

    def end(self) -> None:
        """There is nothing to end."""


_begun: dict[int, DrawnAhead | Repeated] = {}


@contextlib.contextmanager
def given(seed: int, source: DrawnAhead | Repeated) -> Iterator[None]:
    """The first `numbers` of this seed are this source's."""
    _begun[seed] = source
    try:
        yield
    finally:
        source.end()
        _begun.pop(seed, None)


def ahead(seed: int) -> contextlib.AbstractContextManager[None]:
    """Draw meanwhile what the first `numbers` of this seed will give."""
    return given(seed, DrawnAhead(seed))


@contextlib.contextmanager
def numbers(seed: int) -> Iterator[np.random.RandomState]:
    """The random numbers of a seed, from its first, for as long as a network is built."""
    begun = _begun.pop(seed, None)
    try:
        yield begun or np.random.RandomState(seed)
    finally:
        if begun is not None:
            begun.end()
