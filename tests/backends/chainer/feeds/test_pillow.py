"""What the base feed is: Chainer's own classes."""

from __future__ import annotations

import numpy as np

from tcbench.backends.chainer.compat import chainer
from tcbench.backends.chainer.feeds.pillow import PreprocessedDataset, ScaledImageDataset, make_pillow_feed
from tcbench.backends.chainer.spec import FeedSpec, TensorSpec
from tcbench.dataset import ImageFolder


def _spec(images: ImageFolder) -> FeedSpec:
    return FeedSpec(images, 4, 64, 24, TensorSpec(), seed=1, threads=1)


def test_it_is_chainers_dataset_and_iterator(images: ImageFolder) -> None:
    feed = make_pillow_feed(_spec(images))
    iterator = feed._iterator  # type: ignore[attr-defined]
    assert isinstance(iterator, chainer.iterators.SerialIterator)
    assert isinstance(iterator.dataset, PreprocessedDataset)
    assert isinstance(iterator.dataset._base, chainer.datasets.LabeledImageDataset)
    assert feed.prefetch_depth == 0


def test_the_shorter_side_is_scaled_to_256_for_224(images: ImageFolder) -> None:
    dataset = ScaledImageDataset(images, 224)
    shapes = {dataset[i][0].shape for i in range(len(dataset))}
    assert all(shape[0] == 3 and min(shape[1:]) == 256 for shape in shapes)
    assert len(shapes) > 3
    assert dataset[0][0].dtype == np.float32
    assert dataset[3][1] == 3
