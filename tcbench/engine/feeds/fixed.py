"""Batches at fixed addresses on a device, for feeds on the host and for captured graphs."""

from collections.abc import Callable
from typing import Any

from tcbench.engine.accelerators.protocol import Accelerator, current
from tcbench.engine.feeds.base import ChangedFeed, Feed
from tcbench.engine.feeds.synthetic import SyntheticFeed


class FixedBuffers(ChangedFeed):
    """A feed that copies every batch of another feed into the same two device arrays.

    The copies are in stream order, so they do not disturb a step that still reads the previous batch."""

    on_device = True

    def __init__(self, feed: Any, empty_like: Callable[[Any], Any], copy: Callable[[Any, Any], object]) -> None:
        super().__init__(feed)
        self._empty_like, self._copy = empty_like, copy
        self._batch: tuple[Any, Any] | None = None

    def next(self) -> tuple[Any, Any]:
        """Return the next batch, copied to the same buffers each time."""
        batch = self._feed.next()
        if self._batch is None:
            self._batch = self._empty_like(batch[0]), self._empty_like(batch[1])
        for source, target in zip(batch, self._batch, strict=True):
            self._copy(source, target)
        return self._batch


def at_fixed_addresses(feed: Feed) -> Feed:
    """Return a feed with the same batches, all at the same addresses on the current accelerator. A synthetic feed is
    returned as it is, because it always returns the same arrays."""
    return feed if isinstance(feed, SyntheticFeed) else on_accelerator(feed, current())


def on_accelerator(feed: Feed, accelerator: Accelerator) -> Feed:
    """Wrap a feed so that every batch is copied into the same two arrays of an accelerator."""
    return FixedBuffers(feed, lambda array: accelerator.empty(array.shape, array.dtype), accelerator.copy)
