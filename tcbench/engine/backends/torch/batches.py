"""A feed's batches as a PyTorch step takes them: at its site, images (N, 3, S, S), labels (N,) int64."""

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


class Arriving(ChangedFeed):
    """The batches of a feed, as they come."""

    def __init__(self, feed: Feed, spec: FeedSpec, site: Site) -> None:
        super().__init__(feed)
        self._site = site
        self._channels_last = spec.tensor.layout == "NHWC"

    def next(self) -> Batch:
        x, t = self._site.arrive(*self._feed.next())
        # (N, S, S, 3) in memory, seen as (N, 3, S, S): that is PyTorch's channels_last.
        return (x.permute(0, 3, 1, 2) if self._channels_last else x), t.long()


class Kept(ChangedFeed):
    """One batch for ever: no input work, and no copy to the device either."""

    def __init__(self, batches: Feed) -> None:
        super().__init__(batches)
        self.prefetch_depth = 0
        self._batch = batches.next()

    def next(self) -> Batch:
        return self._batch


def at_fixed_addresses(batches: Feed) -> Feed:
    """The same batches in the same two tensors, which a captured graph reads; one batch for ever is there already."""
    if isinstance(batches, Kept):
        return batches
    return FixedBuffers(batches, torch.empty_like, lambda source, target: target.copy_(source, non_blocking=True))


def arriving(make_feed: MakeFeed) -> MakeFeed:
    """Batches of the feed that `make_feed` makes for a spec and a site."""
    return lambda spec, site: Arriving(make_feed(spec, site), spec, site)


pillow = arriving(lambda spec, _: PillowFeed(spec))
"""Decoded by Pillow in the calling thread."""


def synthetic(spec: FeedSpec, site: Site) -> Feed:
    """One batch of noise, kept at the site."""
    return Kept(Arriving(SyntheticFeed(spec), spec, site))
