"""Batches at fixed addresses on a device: what a feed on the host needs, and what a captured graph reads."""

from collections.abc import Callable
from typing import Any

from tcbench.engine.accelerators.protocol import Accelerator, current
from tcbench.engine.feeds.base import ChangedFeed, Feed
from tcbench.engine.feeds.synthetic import SyntheticFeed


class FixedBuffers(ChangedFeed):
    """Copies every batch of another feed into the same two device arrays, in the order of the device's stream: a step
    that still reads the batch before is not disturbed."""

    on_device = True

    def __init__(self, feed: Any, empty_like: Callable[[Any], Any], copy: Callable[[Any, Any], object]) -> None:
        super().__init__(feed)
        self._empty_like, self._copy = empty_like, copy
        self._batch: tuple[Any, Any] | None = None

    def next(self) -> tuple[Any, Any]:
        arrived = self._feed.next()
        if self._batch is None:
            self._batch = self._empty_like(arrived[0]), self._empty_like(arrived[1])
        for source, target in zip(arrived, self._batch, strict=True):
            self._copy(source, target)
        return self._batch


def at_fixed_addresses(feed: Feed) -> Feed:
    """The same feed, every batch at the same addresses on the current accelerator; a kept one is there already."""
    return feed if isinstance(feed, SyntheticFeed) else on_accelerator(feed, current())


def on_accelerator(feed: Feed, accelerator: Accelerator) -> Feed:
    """The same feed in two arrays of an accelerator."""
    return FixedBuffers(feed, lambda array: accelerator.empty(array.shape, array.dtype), accelerator.copy)
