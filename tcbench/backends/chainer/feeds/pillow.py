"""Chainer's own input path: a LabeledImageDataset that decodes with Pillow, the preprocessing dataset of its ImageNet
example and a SerialIterator, all in the calling thread.

Source: chainer v7.8.1 examples/imagenet/train_imagenet.py (PreprocessedDataset). That example reads images scaled
beforehand; here they are scaled when read, as users who kept ImageNet's own files did.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tcbench.backends.chainer.compat import chainer
from tcbench.backends.chainer.feeds.base import (
    MEAN,
    STD,
    Feed,
    broken_image,
    crop_window,
    images_of,
    scaled_shape,
)
from tcbench.backends.chainer.spec import FeedSpec
from tcbench.dataset import ImageFolder


class ScaledImageDataset(chainer.datasets.LabeledImageDataset):
    """LabeledImageDataset that converts to RGB and scales: examples are (float32 (3, H, W), int32 label)."""

    def __init__(self, images: ImageFolder, image_size: int) -> None:
        super().__init__([(str(path), label) for path, label in images.files], root="", dtype=np.float32)
        self._paths: list[Path] = [path for path, _ in images.files]
        self._labels = np.array([label for _, label in images.files], np.int32)
        self._image_size = image_size

    def get_example(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        path = self._paths[i]
        try:
            with Image.open(path) as image:
                height, width = scaled_shape(image.height, image.width, self._image_size)
                scaled = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise broken_image(path, error) from error
        return np.asarray(scaled, dtype=np.float32).transpose(2, 0, 1), self._labels[i, ...]


class PreprocessedDataset(chainer.dataset.DatasetMixin):
    """Crops, mirrors and normalises: examples are ((3, S, S) or (S, S, 3) in the spec's dtype, int32 label)."""

    def __init__(self, base: ScaledImageDataset, spec: FeedSpec) -> None:
        self._base = base
        self._spec = spec
        self._rng = np.random.default_rng(spec.seed)
        self._mean = MEAN[:, None, None]
        self._scale = 1 / STD[:, None, None]

    def __len__(self) -> int:
        return len(self._base)

    def get_example(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        image, label = self._base[i]
        size = self._spec.image_size
        top, left, mirror = crop_window(self._rng, image.shape[1], image.shape[2], size, self._spec.augment)
        image = image[:, top : top + size, left : left + size]
        if mirror:
            image = image[:, :, ::-1]
        # Plane by plane in memory before the arithmetic: NumPy would otherwise loop over three channels at a time,
        # which costs 1.6 ms per image of 224 pixels.
        image = np.ascontiguousarray(image)
        image -= self._mean
        image *= self._scale
        if self._spec.tensor.layout == "NHWC":
            image = image.transpose(1, 2, 0)
        return np.ascontiguousarray(image, dtype=self._spec.tensor.dtype), label


class PillowFeed:
    """Batches made in `next`, by the thread that calls it."""

    prefetch_depth = 0
    on_device = False

    def __init__(self, spec: FeedSpec) -> None:
        images = images_of(spec)
        self.epoch_size = len(images.files)
        self._iterator = chainer.iterators.SerialIterator(
            PreprocessedDataset(ScaledImageDataset(images, spec.image_size), spec),
            spec.batch_size,
            order_sampler=chainer.iterators.ShuffleOrderSampler(np.random.RandomState(spec.seed % 2**32))
            if spec.augment
            else None,
            shuffle=None if spec.augment else False,
        )

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        x, t = chainer.dataset.concat_examples(self._iterator.next())
        return x, t

    def close(self) -> None:
        self._iterator.finalize()


def make_pillow_feed(spec: FeedSpec) -> Feed:
    """Chainer's own path, on the images of `spec`."""
    return PillowFeed(spec)
