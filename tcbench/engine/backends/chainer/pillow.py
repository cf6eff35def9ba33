"""Chainer's own input path, in the calling thread: a LabeledImageDataset that decodes with Pillow, the preprocessing
dataset of Chainer's ImageNet example, and a SerialIterator. Batches are bit-identical to those of `feeds.pillow`.

Source: chainer v7.8.1 examples/imagenet/train_imagenet.py (PreprocessedDataset). The example reads images that were
scaled in advance; here they are scaled after decoding, for users who kept ImageNet's original files."""

from pathlib import Path

import numpy as np

from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.dataset import ImageFolder
from tcbench.engine.feeds.pillow import augmented_image, scaled_image, shuffle_rng
from tcbench.engine.feeds.spec import FeedSpec


class ScaledImageDataset(chainer.datasets.LabeledImageDataset):
    """A LabeledImageDataset that converts to RGB and scales: examples are (float32 (3, H, W), int32 label)."""

    def __init__(self, images: ImageFolder, image_size: int) -> None:
        super().__init__([(str(path), label) for path, label in images.files], root="", dtype=np.float32)
        self._paths: list[Path] = [path for path, _ in images.files]
        self._labels = np.array([label for _, label in images.files], np.int32)
        self._image_size = image_size

    def get_example(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        return scaled_image(self._paths[i], self._image_size), self._labels[i, ...]


class PreprocessedDataset(chainer.dataset.DatasetMixin):
    """A dataset of augmented images: examples are ((3, S, S) or (S, S, 3) in the spec's dtype, int32 label)."""

    def __init__(self, base: ScaledImageDataset, spec: FeedSpec) -> None:
        self._base = base
        self._spec = spec
        self._rng = np.random.default_rng(spec.seed)

    def __len__(self) -> int:
        return len(self._base)

    def get_example(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        image, label = self._base[i]
        return augmented_image(image, self._spec, self._rng), label


class ChainerFeed(Feed):
    """Batches that Chainer's iterator makes in the calling thread."""

    def __init__(self, spec: FeedSpec) -> None:
        images = spec.required_images()
        order = shuffle_rng(spec)
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
