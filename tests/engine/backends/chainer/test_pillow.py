"""Tests of Chainer's base feed: it uses Chainer's classes and delivers the same batches as every framework's base."""

import dataclasses

import numpy as np
import pytest

from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.pillow import ChainerFeed, PreprocessedDataset
from tcbench.engine.feeds.dataset import ImageFolder
from tcbench.engine.feeds.pillow import PillowFeed
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec


def _spec(images: ImageFolder) -> FeedSpec:
    return FeedSpec(images, 4, 64, 24, TensorSpec(), seed=1, threads=1)


def test_it_is_chainers_dataset_and_iterator(images: ImageFolder) -> None:
    feed = ChainerFeed(_spec(images))
    iterator = feed._iterator  # type: ignore[attr-defined]
    assert isinstance(iterator, chainer.iterators.SerialIterator)
    assert isinstance(iterator.dataset, PreprocessedDataset)
    assert isinstance(iterator.dataset._base, chainer.datasets.LabeledImageDataset)
    assert feed.prefetch_depth == 0


@pytest.mark.parametrize("augment", [True, False])
def test_its_batches_are_those_of_the_feed_without_a_framework_bit_for_bit(images: ImageFolder, augment: bool) -> None:
    spec = dataclasses.replace(_spec(images), batch_size=7, augment=augment)
    chainers, plain = ChainerFeed(spec), PillowFeed(spec)
    for _ in range(9):  # two and a half epochs of 24 images
        (x, t), (y, u) = chainers.next(), plain.next()
        assert (x.dtype, t.dtype) == (y.dtype, u.dtype)
        assert np.array_equal(x, y)
        assert np.array_equal(t, u)
