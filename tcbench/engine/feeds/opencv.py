"""Input by OpenCV, which decodes and scales in the calling thread. The factory imports this optional package."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tcbench.engine.feeds.base import MEAN, STD, Feed, crop_window, image_error, sample_order, scaled_shape
from tcbench.engine.feeds.spec import FeedSpec

_JPEG_START = b"\xff\xd8"
_JPEG_END = b"\xff\xd9"


class OpenCVFeed(Feed):
    """Batches that `next` makes in the calling thread; OpenCV may split the work on an image over `spec.threads`."""

    def __init__(self, spec: FeedSpec, cv2: Any) -> None:
        self._cv2 = cv2
        self._spec = spec
        self._files = spec.required_images().files
        self._rng = np.random.default_rng(spec.seed)
        self._order = sample_order(len(self._files), np.random.default_rng(spec.seed) if spec.augment else None)
        self._threads_before: int | None = cv2.getNumThreads()
        cv2.setNumThreads(max(1, spec.threads))

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the next batch: images that are read, scaled, cropped, mirrored and normalised, and their labels."""
        spec = self._spec
        size = spec.image_size
        samples = [self._files[index] for index in islice(self._order, spec.batch_size)]
        crops = np.empty((len(samples), size, size, 3), np.uint8)
        for crop, (path, _) in zip(crops, samples, strict=True):
            image = self._scaled(path)
            top, left, mirror = crop_window(self._rng, image.shape[0], image.shape[1], size, spec.augment)
            image = image[top : top + size, left : left + size]
            crop[...] = image[:, ::-1] if mirror else image
        x = np.empty((len(samples), 3, size, size), np.float32)
        for channel in range(3):  # OpenCV's order is B, G, R
            np.subtract(crops[..., 2 - channel], MEAN[channel], out=x[:, channel])
        x *= 1 / STD[:, None, None]
        return spec.tensor.stored(x), np.array([label for _, label in samples], np.int32)

    def close(self) -> None:
        if self._threads_before is not None:
            self._cv2.setNumThreads(self._threads_before)
            self._threads_before = None

    def _scaled(self, path: Path) -> np.ndarray:
        """Return the scaled image, uint8 (H, W, 3) in the order B, G, R."""
        cv2 = self._cv2
        try:
            encoded = path.read_bytes()
        except OSError as error:
            raise image_error(path, error) from error
        _check_complete(path, encoded)
        try:
            image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        except cv2.error as error:
            raise image_error(path, error) from error
        if image is None:
            raise image_error(path, "OpenCV does not support this image format")
        height, width = scaled_shape(image.shape[0], image.shape[1], self._spec.image_size)
        # OpenCV's linear resize does not antialias; INTER_AREA comes nearest to Pillow and DALI.
        smaller = height <= image.shape[0]
        scaled: np.ndarray = cv2.resize(
            image, (width, height), interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
        )
        return scaled


def _check_complete(path: Path, encoded: bytes) -> None:
    """Raise DataError for a truncated JPEG, as Pillow and DALI do; OpenCV 4 silently fills the missing part with grey.
    A complete JPEG ends with the EOI marker. If other bytes follow it, Pillow decides."""
    if not encoded.startswith(_JPEG_START) or encoded.endswith(_JPEG_END):
        return
    from io import BytesIO

    from PIL import Image

    try:
        with Image.open(BytesIO(encoded)) as image:
            image.load()
    except (OSError, ValueError, SyntaxError) as error:
        raise image_error(path, error) from error


def make_opencv_feed(spec: FeedSpec) -> Feed:
    """Return an OpenCV feed. Raises ImportError if the extra `opencv` is not installed."""
    import cv2

    return OpenCVFeed(spec, cv2)
