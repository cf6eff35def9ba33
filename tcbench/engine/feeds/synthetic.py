"""A synthetic batch that is kept in memory, for runs without input work."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.engine.accelerators.protocol import current
from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.spec import FeedSpec
from tcbench.engine.work import stored


class SyntheticFeed(Feed):
    """The same batch of random pixels and labels every time, in host memory or wherever `upload` copies it. A caller
    that writes to the arrays changes all later batches."""

    def __init__(self, spec: FeedSpec, upload: Callable[[Any], Any] | None = None) -> None:
        rng = np.random.default_rng(spec.seed)
        size = spec.image_size
        x = rng.standard_normal((spec.batch_size, 3, size, size), dtype=np.float32)
        self._x: Any = spec.tensor.stored(x)
        self._t: Any = rng.integers(0, spec.n_classes, spec.batch_size, dtype=np.int32)
        self.on_device = upload is not None
        if upload is not None:
            self._x, self._t = upload(self._x), upload(self._t)

    def next(self) -> tuple[Any, Any]:
        return self._x, self._t


class UnfilledFeed(SyntheticFeed):
    """Two uninitialised arrays of the current accelerator, for traces, which read no values."""

    on_device = True

    def __init__(self, spec: FeedSpec) -> None:
        accelerator = current()
        shape = stored(spec.tensor.layout, spec.batch_size, 3, spec.image_size, spec.image_size)
        self._x = accelerator.empty(shape, spec.tensor.dtype)
        self._t = accelerator.empty((spec.batch_size,), "int32")


def make_synthetic_feed(spec: FeedSpec) -> Feed:
    """Return a synthetic feed on the current accelerator: normal pixels (mean 0, deviation 1) and uniform labels."""
    return SyntheticFeed(spec, current().upload)
