"""OpenCV decodes and scales in the calling thread. OpenCV is an optional package: it is imported by the factory."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tcbench.engine.feeds.base import MEAN, STD, Feed, broken_image, crop_window, images_of, sample_order, scaled_shape
from tcbench.engine.feeds.spec import FeedSpec

_JPEG_START = b"\xff\xd8"
_JPEG_END = b"\xff\xd9"


class OpenCVFeed(Feed):
    """Batches made in `next`, by the thread that calls it; OpenCV may split one image's work over `spec.threads`."""

    def __init__(self, spec: FeedSpec, cv2: Any) -> None:
        self._cv2 = cv2
        self._spec = spec
        self._files = images_of(spec).files
        self._rng = np.random.default_rng(spec.seed)
        self._order = sample_order(len(self._files), np.random.default_rng(spec.seed) if spec.augment else None)
        self._threads_before: int | None = cv2.getNumThreads()
        cv2.setNumThreads(max(1, spec.threads))

    def next(self) -> tuple[np.ndarray, np.ndarray]:
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
        for channel in range(3):  # OpenCV's are B, G, R
            np.subtract(crops[..., 2 - channel], MEAN[channel], out=x[:, channel])
        x *= 1 / STD[:, None, None]
        return spec.tensor.stored(x), np.array([label for _, label in samples], np.int32)

    def close(self) -> None:
        if self._threads_before is not None:
            self._cv2.setNumThreads(self._threads_before)
            self._threads_before = None

    def _scaled(self, path: Path) -> np.ndarray:
        """The image with its shorter side scaled, uint8 (H, W, 3) in B, G, R."""
        cv2 = self._cv2
        try:
            data = path.read_bytes()
        except OSError as error:
            raise broken_image(path, error) from error
        _refuse_half_a_jpeg(path, data)
        try:
            image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        except cv2.error as error:
            raise broken_image(path, error) from error
        if image is None:
            raise broken_image(path, "OpenCV knows no such image format")
        height, width = scaled_shape(image.shape[0], image.shape[1], self._spec.image_size)
        # OpenCV's linear resize does not antialias; averaging over areas is what comes nearest to Pillow and DALI.
        smaller = height <= image.shape[0]
        scaled: np.ndarray = cv2.resize(
            image, (width, height), interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
        )
        return scaled


def _refuse_half_a_jpeg(path: Path, data: bytes) -> None:
    """OpenCV 4 fills what a truncated JPEG lacks with grey and says nothing; Pillow and DALI refuse it, so do we. A
    whole JPEG ends with the EOI marker. Some have other bytes behind it: for those Pillow decides."""
    if not data.startswith(_JPEG_START) or data.endswith(_JPEG_END):
        return
    from io import BytesIO

    from PIL import Image

    try:
        with Image.open(BytesIO(data)) as image:
            image.load()
    except (OSError, ValueError, SyntaxError) as error:
        raise broken_image(path, error) from error


def make_opencv_feed(spec: FeedSpec) -> Feed:
    """OpenCV's decoder on the images of `spec`. Raises ImportError without the extra `opencv`."""
    import cv2

    return OpenCVFeed(spec, cv2)
