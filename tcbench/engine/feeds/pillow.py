"""Input by Pillow, which decodes and scales in the calling thread. Every framework's base config uses it.

`scaled_image` and `augmented_image` are the two halves of the work on an image. The input classes of a framework use
them too, so that all feeds deliver the same pixels for the same seed."""

from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from tcbench.engine.feeds.base import MEAN, STD, Feed, crop_window, image_error, sample_order, scaled_shape
from tcbench.engine.feeds.spec import FeedSpec

_MEAN = MEAN[:, None, None]
_SCALE = 1 / STD[:, None, None]


def scaled_image(path: Path, image_size: int) -> np.ndarray:
    """Return the image with its shorter side scaled, float32 (3, H, W) in 0..255. Raises DataError."""
    try:
        with Image.open(path) as image:
            height, width = scaled_shape(image.height, image.width, image_size)
            scaled = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise image_error(path, error) from error
    return np.asarray(scaled, dtype=np.float32).transpose(2, 0, 1)


def augmented_image(image: np.ndarray, spec: FeedSpec, rng: np.random.Generator) -> np.ndarray:
    """Crop, mirror and normalise a scaled image; return it as (3, S, S) or (S, S, 3) in the spec's layout and dtype."""
    size = spec.image_size
    top, left, mirror = crop_window(rng, image.shape[1], image.shape[2], size, spec.augment)
    image = image[:, top : top + size, left : left + size]
    if mirror:
        image = image[:, :, ::-1]
    # Without this copy NumPy would loop over three interleaved channels, which costs 1.6 ms per image of 224 pixels.
    image = np.ascontiguousarray(image)
    image -= _MEAN
    image *= _SCALE
    return spec.tensor.stored(image)


def shuffle_rng(spec: FeedSpec) -> np.random.RandomState | None:
    """Return the random generator for the order of samples, or None for file order."""
    return np.random.RandomState(spec.seed % 2**32) if spec.augment else None


class PillowFeed(Feed):
    """Batches that `next` decodes with Pillow in the calling thread."""

    def __init__(self, spec: FeedSpec) -> None:
        self._spec = spec
        self._files = spec.required_images().files
        self._rng = np.random.default_rng(spec.seed)
        self._order = sample_order(len(self._files), shuffle_rng(spec))

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the next batch: images that are read, scaled and augmented, and their labels."""
        samples = [self._files[index] for index in islice(self._order, self._spec.batch_size)]
        x = np.stack(
            [augmented_image(scaled_image(path, self._spec.image_size), self._spec, self._rng) for path, _ in samples]
        )
        return x, np.array([label for _, label in samples], np.int32)
