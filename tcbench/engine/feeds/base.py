"""The base class of feeds, and what all feeds share: augmentation, the order of samples, and errors.

The augmentation follows Chainer's ImageNet example: decode to RGB, scale the shorter side to `scaled_side`, crop a
random square of `image_size`, mirror half of the images, subtract the mean of each channel and divide by its standard
deviation. EXIF orientation is ignored, as in Chainer's datasets."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from tcbench.core.errors import DataError
from tcbench.core.text import printable
from tcbench.engine.feeds.spec import FeedSpec

MEAN = np.array([123.675, 116.28, 103.53], np.float32)
"""ImageNet's mean per channel R, G, B in 0..255 units, shape (3,)."""
STD = np.array([58.395, 57.12, 57.375], np.float32)
"""ImageNet's standard deviation per channel R, G, B in 0..255 units, shape (3,)."""


class Feed:
    """An endless stream of batches. Each epoch has every file once, in a new order; a batch may span two epochs."""

    prefetch_depth: int = 0
    """The number of batches that may be ready before `next` is called; 0 if `next` does the work itself."""
    on_device: bool = False
    """Whether batches are delivered in the memory of the current accelerator rather than the host's."""
    decoding: str | None = None
    """How images are decoded, for the record; None for the usual decoding on the host."""

    def next(self) -> tuple[Any, Any]:
        """Return the next batch (x, t).

        x has shape (N, 3, S, S) or (N, S, S, 3), C-contiguous, in the spec's layout and dtype; t is int32 (N,). Both
        are valid until the next call of `next` or `close`. Raises DataError, naming the file, if an image cannot be
        read or decoded."""
        raise NotImplementedError

    def close(self) -> None:
        """Release threads and buffers. May be called twice."""


class ChangedFeed(Feed):
    """A feed that wraps another one; a subclass changes the batches."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self.prefetch_depth = feed.prefetch_depth
        self.decoding = feed.decoding

    def close(self) -> None:
        self._feed.close()


@dataclass(frozen=True)
class FeedRecipe:
    """A description of a config's feed, which rungs change in their `feed` stage.

    `source` makes the feed from `spec` and the backend's arguments; `modelled` replaces it where decoding is modelled.
    Each of `wrappers` is then put around the feed. They are separate fields so that rungs which change different ones
    can be combined in any order."""

    spec: FeedSpec
    source: Callable[..., Any]
    modelled: Callable[..., Any] | None = None
    wrappers: tuple[Callable[[Any], Any], ...] = ()

    def with_source(self, source: Callable[..., Any], modelled: Callable[..., Any] | None = None) -> Self:
        """Return this recipe with another source; `modelled` also changes if it is passed."""
        return replace(self, source=source, modelled=modelled or self.modelled)

    def with_wrapper(self, wrapper: Callable[[Any], Any]) -> Self:
        """Return this recipe with one more wrapper around all others."""
        return replace(self, wrappers=(*self.wrappers, wrapper))

    def make(self, *site: Any) -> Any:
        """Build the feed: the source, with the wrappers around it. `site` has the backend's arguments for `source`."""
        return functools.reduce(lambda feed, wrap: wrap(feed), self.wrappers, self.source(self.spec, *site))


def scaled_side(image_size: int) -> int:
    """Return the length in pixels of the shorter side before the crop: 256 for a crop of 224, others in proportion."""
    return round(image_size * 256 / 224)


def scaled_shape(height: int, width: int, image_size: int) -> tuple[int, int]:
    """Return (height, width) in pixels after the shorter side is scaled to `scaled_side`."""
    short = scaled_side(image_size)
    if height < width:
        return short, round(width * short / height)
    return round(height * short / width), short


def crop_window(
    rng: np.random.Generator, height: int, width: int, image_size: int, augment: bool
) -> tuple[int, int, bool]:
    """Return (top, left, mirrored) of a crop of `image_size` pixels: random if `augment`, else centred."""
    if not augment:
        return (height - image_size) // 2, (width - image_size) // 2, False
    top = int(rng.integers(0, height - image_size + 1))
    left = int(rng.integers(0, width - image_size + 1))
    return top, left, bool(rng.integers(0, 2))


def sample_order(n_files: int, rng: np.random.Generator | np.random.RandomState | None) -> Iterator[int]:
    """Yield file indices for ever: a new permutation for each epoch, or file order if `rng` is None."""
    while True:
        yield from (range(n_files) if rng is None else rng.permutation(n_files).tolist())


def image_error(path: Path | str, reason: object) -> DataError:
    """Return the error for an image file that cannot be read (`reason` is an OSError) or decoded (any other reason)."""
    name = printable(str(path))
    if isinstance(reason, OSError) and reason.strerror:
        return DataError(f"image {name} cannot be read ({reason.strerror}): restore it, or run again without it")
    detail = " ".join(str(reason).split())
    return DataError(f"image {name} cannot be decoded ({detail}): replace it with an intact JPEG, or remove it")
