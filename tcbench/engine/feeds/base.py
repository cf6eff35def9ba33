"""The base of every feed: the protocol, the augmentation's numbers, the order of samples, the errors.

The augmentation is that of Chainer's ImageNet example on images scaled as usual: decode to RGB, scale the shorter side
to `scaled_side`, crop a random square of `image_size`, mirror half of them, subtract the channels' mean and divide by
their standard deviation. EXIF orientation is ignored, as Chainer's datasets do."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from tcbench.core.errors import DataError
from tcbench.core.text import printable
from tcbench.engine.feeds.dataset import ImageFolder
from tcbench.engine.feeds.spec import FeedSpec

MEAN = np.array([123.675, 116.28, 103.53], np.float32)
"""ImageNet's mean of R, G, B in 0..255 units, (3,)."""
STD = np.array([58.395, 57.12, 57.375], np.float32)
"""ImageNet's standard deviation of R, G, B in 0..255 units, (3,)."""


class Feed:
    """An endless stream of batches. Each epoch brings every file once, in a permutation of its own; a batch may span
    two epochs. `decoding`: a record's words for it, where it is not as on every host."""

    prefetch_depth: int = 0
    """Batches that may lie ready before `next` is called; 0 when `next` does the work itself."""
    on_device: bool = False
    """Whether batches are delivered in the memory of the current accelerator, rather than the host's."""
    decoding: str | None = None

    def next(self) -> tuple[Any, Any]:
        """x: (N, 3, S, S) or (N, S, S, 3), C-contiguous, in the spec's layout and dtype; t: int32 (N,). Both are valid
        until the following call of `next` or `close`; who needs them longer copies them. Raises DataError, naming the
        file, when an image cannot be read or decoded."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives threads and buffers back. May be called twice."""


class ChangedFeed(Feed):
    """The batches of another feed, which a subclass changes on their way."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self.prefetch_depth = feed.prefetch_depth
        self.decoding = feed.decoding

    def close(self) -> None:
        self._feed.close()


@dataclass(frozen=True)
class FeedRecipe:
    """The recipe of a config's feed: what rungs change in their stage `feed`. `source` makes it of `spec` and of where
    a backend computes, or `modelled` where decoding is modelled; then `wrappers` are put around it, one after the
    other. They stand apart so that a rung which changes one of them loses nothing of what others changed, in any
    order."""

    spec: FeedSpec
    source: Callable[..., Any]
    modelled: Callable[..., Any] | None = None
    wrappers: tuple[Callable[[Any], Any], ...] = ()

    def of(self, source: Callable[..., Any], modelled: Callable[..., Any] | None = None) -> Self:
        """The same from another source, and by another model where one is given."""
        return replace(self, source=source, modelled=modelled or self.modelled)

    def within(self, wrapper: Callable[[Any], Any]) -> Self:
        """The same with one more wrapper around all others."""
        return replace(self, wrappers=(*self.wrappers, wrapper))

    def make(self, *where: Any) -> Any:
        return functools.reduce(lambda feed, wrap: wrap(feed), self.wrappers, self.source(self.spec, *where))


def images_of(spec: FeedSpec) -> ImageFolder:
    """The images of a spec whose feed reads files. Raises DataError when it has none."""
    if spec.images is None or not spec.images.files:
        raise DataError("this feed reads JPEG files and got none: use '--data PATH', or the synthetic feed")
    return spec.images


def scaled_side(image_size: int) -> int:
    """Pixels of the shorter side before the crop: 256 for 224, and in that proportion."""
    return round(image_size * 256 / 224)


def scaled_shape(height: int, width: int, image_size: int) -> tuple[int, int]:
    """(height, width) in pixels after scaling the shorter side to `scaled_side`."""
    short = scaled_side(image_size)
    if height < width:
        return short, round(width * short / height)
    return round(height * short / width), short


def crop_window(
    rng: np.random.Generator, height: int, width: int, image_size: int, augment: bool
) -> tuple[int, int, bool]:
    """(top, left, mirrored) of a square of `image_size` pixels: random, or centred and not mirrored."""
    if not augment:
        return (height - image_size) // 2, (width - image_size) // 2, False
    top = int(rng.integers(0, height - image_size + 1))
    left = int(rng.integers(0, width - image_size + 1))
    return top, left, bool(rng.integers(0, 2))


def sample_order(n_files: int, rng: np.random.Generator | np.random.RandomState | None) -> Iterator[int]:
    """File indices without end: a fresh permutation per epoch, or file order without a generator."""
    while True:
        yield from (range(n_files) if rng is None else rng.permutation(n_files).tolist())


def broken_image(path: Path | str, reason: object) -> DataError:
    """The error for a file that is there but is no whole image, or is no longer there."""
    name = printable(str(path))
    if isinstance(reason, OSError) and reason.strerror:
        return DataError(f"image {name} cannot be read ({reason.strerror}): bring it back, or run again without it")
    said = " ".join(str(reason).split())
    return DataError(f"image {name} cannot be decoded ({said}): replace it by a whole JPEG, or remove it")
