"""What only the OpenCV feed does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcbench.backends.chainer.feeds.opencv import make_opencv_feed
from tcbench.backends.chainer.spec import FeedSpec, TensorSpec
from tcbench.dataset import ImageFolder

cv2 = pytest.importorskip("cv2")


def _spec(images: ImageFolder) -> FeedSpec:
    return FeedSpec(images, 2, 32, 24, TensorSpec(), seed=1, threads=2)


def test_opencvs_thread_count_is_the_specs_until_closed(images: ImageFolder) -> None:
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    feed = make_opencv_feed(_spec(images))
    assert cv2.getNumThreads() == 2
    feed.close()
    assert cv2.getNumThreads() == 1
    feed.close()
    cv2.setNumThreads(before)


def test_a_whole_jpeg_with_other_bytes_behind_it_is_read(images: ImageFolder, folder: Path) -> None:
    path = folder / "a.jpg"
    path.write_bytes(images.files[0][0].read_bytes() + b"\0" * 100)
    whole = make_opencv_feed(_spec(ImageFolder(folder.parent, ("class",), ((images.files[0][0], 0),))))
    longer = make_opencv_feed(_spec(ImageFolder(folder.parent, ("class",), ((path, 0),))))
    assert (whole.next()[0] == longer.next()[0]).all()
    whole.close()
    longer.close()
