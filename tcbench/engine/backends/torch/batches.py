"""Feeds whose batches are tensors at a PyTorch site: images (N, 3, S, S) and int64 labels (N,)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tcbench.engine.backends.torch.sites import Batch, Site
from tcbench.engine.feeds.base import ChangedFeed, Feed
from tcbench.engine.feeds.fixed import FixedBuffers
from tcbench.engine.feeds.pillow import PillowFeed
from tcbench.engine.feeds.spec import FeedSpec
from tcbench.engine.feeds.synthetic import SyntheticFeed

MakeFeed = Callable[[FeedSpec, Site], Feed]
"""A function that makes a feed for a site."""


class TensorFeed(ChangedFeed):
    """The batches of another feed, moved to a site as tensors."""

    def __init__(self, feed: Feed, spec: FeedSpec, site: Site) -> None:
        super().__init__(feed)
        self._site = site
        self._channels_last = spec.tensor.layout == "NHWC"

    def next(self) -> Batch:
        x, t = self._site.upload(*self._feed.next())
        # PyTorch's channels_last: (N, S, S, 3) in memory, viewed as (N, 3, S, S).
        return (x.permute(0, 3, 1, 2) if self._channels_last else x), t.long()


class ConstantFeed(ChangedFeed):
    """The first batch of another feed, returned every time: no input work and no copy to the device."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed)
        self.prefetch_depth = 0
        self._batch = feed.next()

    def next(self) -> Batch:
        return self._batch


def at_fixed_addresses(feed: Feed) -> Feed:
    """Wrap a feed so that all batches are in the same two tensors, as a captured graph requires."""
    if isinstance(feed, ConstantFeed):
        return feed
    return FixedBuffers(feed, torch.empty_like, lambda source, target: target.copy_(source, non_blocking=True))


def as_tensors(make_feed: MakeFeed) -> MakeFeed:
    """Return a function that makes the same feed as `make_feed`, with batches as tensors at the site."""
    return lambda spec, site: TensorFeed(make_feed(spec, site), spec, site)


pillow = as_tensors(lambda spec, _: PillowFeed(spec))
"""Makes a feed that decodes with Pillow in the calling thread."""


def synthetic(spec: FeedSpec, site: Site) -> Feed:
    """Return a feed that repeats one batch of noise, kept at the site."""
    return ConstantFeed(TensorFeed(SyntheticFeed(spec), spec, site))
