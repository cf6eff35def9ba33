"""Batches at fixed addresses on an accelerator: what a feed on the host needs, and what a captured graph reads."""

from __future__ import annotations

from typing import Any

from tcbench.engine.accelerators.protocol import Accelerator, current
from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.synthetic import SyntheticFeed


class FixedBuffers:
    """Copies every batch of another feed into the same two device arrays, in the order of the accelerator's stream:
    a step that still reads the batch before is not disturbed."""

    on_device = True

    def __init__(self, feed: Feed, accelerator: Accelerator) -> None:
        self._feed = feed
        self._accelerator = accelerator
        self._batch: tuple[Any, Any] | None = None
        self.prefetch_depth = feed.prefetch_depth
        self.decoding = getattr(feed, "decoding", None)
        self.epoch_size = feed.epoch_size

    def next(self) -> tuple[Any, Any]:
        arrived = self._feed.next()
        if self._batch is None:
            x, t = (self._accelerator.empty(array.shape, array.dtype) for array in arrived)
            self._batch = x, t
        for source, target in zip(arrived, self._batch, strict=True):
            self._accelerator.copy(source, target)
        return self._batch

    def close(self) -> None:
        self._feed.close()


def at_fixed_addresses(feed: Feed) -> Feed:
    """The same feed, every batch at the same addresses on the current accelerator; a kept one is there already."""
    if isinstance(feed, SyntheticFeed):
        return feed
    return FixedBuffers(feed, current())
