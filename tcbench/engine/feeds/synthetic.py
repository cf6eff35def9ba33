"""One batch kept in memory: a run without any input work."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.engine.accelerators.protocol import current
from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.spec import FeedSpec
from tcbench.engine.work import stored


class SyntheticFeed(Feed):
    """Hands out the same two arrays for ever; who writes to them writes to the next batch. They are in the host's
    memory, or where `upload` brings them."""

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
    """Two arrays of the current accelerator with nothing in them: for a trace, which reads no number."""

    on_device = True

    def __init__(self, spec: FeedSpec) -> None:
        accelerator = current()
        shape = stored(spec.tensor.layout, spec.batch_size, 3, spec.image_size, spec.image_size)
        self._x = accelerator.empty(shape, spec.tensor.dtype)
        self._t = accelerator.empty((spec.batch_size,), "int32")


def make_synthetic_feed(spec: FeedSpec) -> Feed:
    """Pixels as of normalised images (mean 0, standard deviation 1), uniform labels, on the current accelerator."""
    return SyntheticFeed(spec, current().upload)
