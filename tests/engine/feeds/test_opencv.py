"""Tests of what only the OpenCV feed does."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tcbench.core.errors import DataError
from tcbench.engine.feeds.dataset import ImageFolder
from tcbench.engine.feeds.opencv import OpenCVFeed, make_opencv_feed
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec

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


def test_half_a_jpeg_is_refused_where_opencv_would_fill_it_with_grey(images: ImageFolder, folder: Path) -> None:
    path = folder / "a.jpg"
    path.write_bytes(images.files[0][0].read_bytes()[:-3000])
    lenient = SimpleNamespace(**{**vars(cv2), "imdecode": lambda *_: np.zeros((40, 40, 3), np.uint8)})
    feed = OpenCVFeed(_spec(ImageFolder(folder.parent, ("class",), ((path, 0),))), lenient)
    with pytest.raises(DataError, match=r"a\.jpg.*truncated"):
        feed.next()
    feed.close()
