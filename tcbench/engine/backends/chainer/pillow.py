"""Chainer's own input path: a LabeledImageDataset that decodes with Pillow, the preprocessing dataset of its ImageNet
example and a SerialIterator, all in the calling thread. Batches are those of `feeds.pillow`, bit for bit.

Source: chainer v7.8.1 examples/imagenet/train_imagenet.py (PreprocessedDataset). That example reads images scaled
beforehand; here they are scaled when read, as users who kept ImageNet's own files did."""

from pathlib import Path

import numpy as np

from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.feeds.base import Feed, images_of
from tcbench.engine.feeds.dataset import ImageFolder
from tcbench.engine.feeds.pillow import finished, scaled_image, shuffled
from tcbench.engine.feeds.spec import FeedSpec


class ScaledImageDataset(chainer.datasets.LabeledImageDataset):
    """LabeledImageDataset that converts to RGB and scales: examples are (float32 (3, H, W), int32 label)."""

    def __init__(self, images: ImageFolder, image_size: int) -> None:
        super().__init__([(str(path), label) for path, label in images.files], root="", dtype=np.float32)
        self._paths: list[Path] = [path for path, _ in images.files]
        self._labels = np.array([label for _, label in images.files], np.int32)
        self._image_size = image_size

    def get_example(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        return scaled_image(self._paths[i], self._image_size), self._labels[i, ...]


class PreprocessedDataset(chainer.dataset.DatasetMixin):
    """Crops, mirrors and normalises: examples are ((3, S, S) or (S, S, 3) in the spec's dtype, int32 label)."""

    def __init__(self, base: ScaledImageDataset, spec: FeedSpec) -> None:
        self._base = base
        self._spec = spec
        self._rng = np.random.default_rng(spec.seed)

    def __len__(self) -> int:
        return len(self._base)

    def get_example(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        image, label = self._base[i]
        return finished(image, self._spec, self._rng), label


class ChainerFeed(Feed):
    """Batches made in `next`, by the thread that calls it."""

    def __init__(self, spec: FeedSpec) -> None:
        images = images_of(spec)
        order = shuffled(spec)
        self._iterator = chainer.iterators.SerialIterator(
            PreprocessedDataset(ScaledImageDataset(images, spec.image_size), spec),
            spec.batch_size,
            order_sampler=None if order is None else chainer.iterators.ShuffleOrderSampler(order),
            shuffle=None if order is not None else False,
        )

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        x, t = chainer.dataset.concat_examples(self._iterator.next())
        return x, t

    def close(self) -> None:
        self._iterator.finalize()
