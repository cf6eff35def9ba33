"""Random numbers for initial weights: the same seed gives every framework the same weights."""

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np


def he_normal(shape: tuple[int, ...], fan_in: int, rng: np.random.RandomState) -> np.ndarray:
    """Draw weights from a normal distribution with variance 2 / fan_in, as float32.

    They are float32 whatever the model stores, so that every dtype starts from the same numbers. Source: He et al.,
    "Delving Deep into Rectifiers", 2015, eq. 12."""
    return normal(shape, np.sqrt(2.0 / fan_in), rng)


def normal(shape: tuple[int, ...], std: float, rng: np.random.RandomState) -> np.ndarray:
    """Draw weights from a normal distribution with standard deviation `std`, as float32."""
    drawn = rng.standard_normal(shape)
    return np.multiply(drawn, std, out=np.empty(shape, np.float32), casting="same_kind")


class NoRandomState(np.random.RandomState):
    """A placeholder for networks that never compute; it tells `drawn_filter` to leave weights uninitialised."""


_BLOCK = 1 << 18
_MAX_BLOCKS = 32


class PrefetchedRandomState(np.random.RandomState):
    """A RandomState whose normal numbers a thread draws in advance, at most 64 MiB of them.

    The thread does not hold the GIL while it draws, so the process can import modules meanwhile. The numbers are
    bit-identical to those of a plain RandomState."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._blocks: queue.Queue[tuple[Any, np.ndarray]] = queue.Queue(_MAX_BLOCKS)
        self._block, self._position = np.empty(0), 0
        self._block_state = self.get_state(legacy=False)
        self._is_over = threading.Event()
        threading.Thread(target=self._draw, args=(seed,), name="initial weights", daemon=True).start()

    def _draw(self, seed: int) -> None:
        """Fill the queue with blocks of numbers, each with the generator's state before it."""
        rng = np.random.RandomState(seed)
        while not self._is_over.is_set():
            state = rng.get_state(legacy=False)
            self._blocks.put((state, rng.standard_normal(_BLOCK)))

    def standard_normal(self, size: Any = None) -> Any:
        """Return the next numbers from the queue. Without a size, or after `end`, draw them in this thread."""
        if size is None or self._is_over.is_set():
            self.end()
            return super().standard_normal(size)
        drawn = np.empty(size)
        flat, n = drawn.reshape(-1), 0
        while n < flat.size:
            if self._position == self._block.size:
                (self._block_state, self._block), self._position = self._blocks.get(), 0
            part = self._block[self._position : self._position + flat.size - n]
            flat[n : n + part.size] = part
            n, self._position = n + part.size, self._position + part.size
        return drawn

    def randint(self, *arguments: Any, **more: Any) -> Any:
        """Draw integers as RandomState does. Stops drawing in advance."""
        self.end()
        return super().randint(*arguments, **more)

    def end(self) -> None:
        """Stop the thread. This generator then continues itself, after the last number that was returned."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        with contextlib.suppress(queue.Empty):
            self._blocks.get_nowait()  # unblocks a thread that waits for space in the queue
        self.set_state(self._block_state)
        super().standard_normal(self._position)
        self._block = np.empty(0)


class RepeatedRandomState(np.random.RandomState):
    """A generator that repeats one block of normal numbers, for networks that only have to run at their usual speed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._block = super().standard_normal(_BLOCK)

    def standard_normal(self, size: Any = None) -> Any:
        return np.resize(self._block, size)

    def end(self) -> None:
        """Do nothing; there is no thread to stop."""


_sources: dict[int, PrefetchedRandomState | RepeatedRandomState] = {}


@contextlib.contextmanager
def use_source(seed: int, source: PrefetchedRandomState | RepeatedRandomState) -> Iterator[None]:
    """Make the first `random_state` of this seed yield `source` while the context is active."""
    _sources[seed] = source
    try:
        yield
    finally:
        source.end()
        _sources.pop(seed, None)


def prefetch(seed: int) -> contextlib.AbstractContextManager[None]:
    """Draw the numbers of the next `random_state` of this seed in a thread."""
    return use_source(seed, PrefetchedRandomState(seed))


@contextlib.contextmanager
def random_state(seed: int) -> Iterator[np.random.RandomState]:
    """Yield the random generator of a seed while a network is built.

    The first call after `use_source` or `prefetch` yields their generator, and later calls a new RandomState."""
    source = _sources.pop(seed, None)
    try:
        yield source or np.random.RandomState(seed)
    finally:
        if source is not None:
            source.end()
