"""Tests of the contract of every feed that reads files: order, labels, pixels and clear errors."""

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import odd_images
import pytest
from PIL import Image

from tcbench.core.errors import DataError
from tcbench.engine.feeds.base import MEAN, STD, Feed, scaled_shape
from tcbench.engine.feeds.dataset import ImageFolder, scan
from tcbench.engine.feeds.pillow import PillowFeed
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec

MakeFeed = Callable[[FeedSpec], Feed]

FEEDS = ("pillow", "chainer", "opencv", "dali")
MEAN_PIXEL_ERROR = {"pillow": 0.5, "chainer": 0.5, "opencv": 3.0, "dali": 0.5}
"""Mean |difference| of centre crops at 64 pixels, in 0..255 units, from the reference below. Measured: 0.26 for Pillow
(in Chainer's own classes too) and DALI (8-bit rounding), 2.8 for OpenCV (it averages over areas where the others weigh
by a triangle)."""

every_feed = pytest.mark.parametrize("make_feed", FEEDS, indirect=True)


def _spec(images: ImageFolder | None, **changes: Any) -> FeedSpec:
    spec = FeedSpec(images, 5, 32, 24, TensorSpec("NCHW", "float32"), seed=1, threads=2, augment=True)
    return dataclasses.replace(spec, **changes)


def _labels(feed: Feed) -> Iterator[int]:
    while True:
        yield from feed.next()[1].tolist()


def _reference(path: Path, size: int) -> np.ndarray:
    """Centre crop (size, size, 3) in 0..255, scaled in float64 by the textbook's antialiased triangle filter."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"), np.float64)
    height, width = scaled_shape(*pixels.shape[:2], size)

    def weights(n_in: int, n_out: int) -> np.ndarray:
        scale = n_in / n_out
        centres = (np.arange(n_out)[:, None] + 0.5) * scale
        w = np.maximum(0, 1 - np.abs(np.arange(n_in) + 0.5 - centres) / max(scale, 1))
        return w / w.sum(1, keepdims=True)

    # (height, H) · (H, W, 3), then (width, W) · (height, W, 3): NumPy's matmul broadcasts over the first axis.
    scaled = np.tensordot(weights(pixels.shape[0], height), pixels, 1)
    scaled = weights(pixels.shape[1], width) @ scaled
    top, left = (height - size) // 2, (width - size) // 2
    return scaled[top : top + size, left : left + size]


# ------------------------------------------------------------------------------------------------------------- order


@every_feed
def test_without_augmentation_files_come_in_order(make_feed: MakeFeed, images: ImageFolder) -> None:
    feed = make_feed(_spec(images, augment=False))
    assert list(itertools.islice(_labels(feed), 50)) == [*range(24), *range(24), 0, 1]


@every_feed
@pytest.mark.parametrize("batch_size", [5, 40], ids=["spanning epochs", "larger than them"])
def test_every_epoch_is_a_permutation_of_its_own(make_feed: MakeFeed, images: ImageFolder, batch_size: int) -> None:
    stream = list(itertools.islice(_labels(make_feed(_spec(images, batch_size=batch_size))), 96))
    epochs = [stream[start : start + 24] for start in range(0, 96, 24)]
    assert all(sorted(epoch) == list(range(24)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in [*epochs, range(24)]}) == 5


@every_feed
def test_the_seed_decides_order_and_pixels(make_feed: MakeFeed, images: ImageFolder) -> None:
    def batches(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
        feed = make_feed(_spec(images, seed=seed))
        return [(x.copy(), t.copy()) for x, t in (feed.next() for _ in range(4))]

    first, again, other = batches(1), batches(1), batches(2)
    assert all((x == y).all() and (t == u).all() for (x, t), (y, u) in zip(first, again, strict=True))
    assert [t.tolist() for _, t in first] != [t.tolist() for _, t in other]


@every_feed
def test_the_thread_count_changes_no_pixel(make_feed: MakeFeed, images: ImageFolder) -> None:
    x, t = make_feed(_spec(images, threads=0)).next()
    y, u = make_feed(_spec(images, threads=3)).next()
    assert (x == y).all()
    assert (t == u).all()


# ------------------------------------------------------------------------------------------------------------ pixels


@pytest.fixture(scope="module")
def reference_crops(images: ImageFolder) -> np.ndarray:
    return np.stack([_reference(path, 64) for path, _ in images.files])


@every_feed
def test_centre_crops_are_within_the_stated_error(
    make_feed: MakeFeed, images: ImageFolder, reference_crops: np.ndarray, request: pytest.FixtureRequest
) -> None:
    stated = MEAN_PIXEL_ERROR[request.node.callspec.params["make_feed"]]
    x, _ = make_feed(_spec(images, augment=False, batch_size=24, image_size=64)).next()
    pixels = x.transpose(0, 2, 3, 1) * STD + MEAN
    assert np.abs(pixels - reference_crops).mean() < stated
    # A crop that is off by one pixel, or channels in another order, would be far outside.
    assert np.abs(pixels - np.roll(reference_crops, 1, axis=2)).mean() > 2 * MEAN_PIXEL_ERROR["opencv"]
    assert np.abs(pixels - reference_crops[..., ::-1]).mean() > 2 * MEAN_PIXEL_ERROR["opencv"]


@every_feed
@pytest.mark.parametrize(
    ("layout", "dtype"), [("NCHW", "float16"), ("NHWC", "bfloat16"), ("NHWC", "float32"), ("NCHW", "float64")]
)
def test_layout_and_dtype_are_all_that_the_tensor_spec_changes(
    make_feed: MakeFeed, images: ImageFolder, layout: Any, dtype: Any
) -> None:
    expected, labels = make_feed(_spec(images, batch_size=8)).next()
    x, t = make_feed(_spec(images, batch_size=8, tensor=TensorSpec(layout, dtype))).next()
    assert x.shape == ((8, 3, 32, 32) if layout == "NCHW" else (8, 32, 32, 3))
    assert x.dtype == dtype
    assert x.flags.c_contiguous
    assert t.shape == (8,)
    assert t.dtype == np.int32
    assert (t == labels).all()
    pixels = x if layout == "NCHW" else x.transpose(0, 3, 1, 2)
    # Normalised pixels are below 4, where neighbouring numbers are 2**-9 or 2**-6 apart.
    most = {"float16": 2**-9, "bfloat16": 2**-6}.get(dtype, 1e-5)
    assert np.abs(pixels.astype(np.float32) - expected).max() <= most


@every_feed
def test_augmentation_crops_everywhere_and_mirrors_half(make_feed: MakeFeed, folder: Path) -> None:
    """Red increases to the right, so a crop's mean red shows its position and the sign of its slope the mirroring."""
    ramp = np.zeros((64, 256, 3), np.uint8)
    ramp[..., 0] = np.arange(256)
    Image.fromarray(ramp).save(folder / "a.jpg", quality=95)
    images = ImageFolder(folder.parent, ("class",), ((folder / "a.jpg", 0),))
    feed = make_feed(_spec(images, batch_size=64, image_size=32))
    red = np.concatenate([feed.next()[0][:, 0].copy() for _ in range(3)]) * STD[0] + MEAN[0]
    mirrored = (red[:, :, -1] < red[:, :, 0]).mean()
    middle = red.mean((1, 2))
    assert 0.3 < mirrored < 0.7
    # Scaled to 37 × 148, the crop's middle lies between 16 and 132 of 148: 28 and 228 of 256.
    assert middle.min() < 45
    assert middle.max() > 210
    assert middle.std() > 40


@every_feed
def test_images_smaller_than_the_crop_are_enlarged(make_feed: MakeFeed, folder: Path) -> None:
    Image.new("RGB", (20, 31), (200, 100, 50)).save(folder / "a.jpg", quality=95)
    images = ImageFolder(folder.parent, ("class",), ((folder / "a.jpg", 0),))
    x, _ = make_feed(_spec(images, batch_size=2, image_size=32)).next()
    assert np.abs(x.transpose(0, 2, 3, 1) * STD + MEAN - [200, 100, 50]).max() < 5


@every_feed
def test_what_the_rule_takes_comes_out_of_every_feed_as_pillow_reads_it(make_feed: MakeFeed, folder: Path) -> None:
    for name, data in odd_images.accepted().items():
        (folder / f"{name}.JPEG").write_bytes(data)
    odd = scan(folder.parent)
    names = [path.stem for path, _ in odd.files]
    assert len(names) == len(odd_images.accepted())
    spec = _spec(odd, batch_size=len(names), augment=False)
    pixels = make_feed(spec).next()[0] * STD[:, None, None]
    expected = PillowFeed(spec).next()[0] * STD[:, None, None]
    error = dict(zip(names, np.abs(pixels - expected).mean((1, 2, 3)).tolist(), strict=True))
    assert all(value < 4.0 for value in error.values()), error


# ------------------------------------------------------------------------------------------------------------ errors


DAMAGES: dict[str, tuple[Callable[[bytes], bytes] | None, bool]] = {
    "half": (lambda data: data[: len(data) // 2], False),
    "without its end": (lambda data: data[:-300], True),
    "no JPEG": (lambda data: b"<html>404</html>" * 100, False),
    "its header alone": (lambda data: data[:300], True),
    "empty": (lambda data: b"", False),
    "gone": (None, True),
}
"""Damages by name: a function that returns the rest of the file, and whether images are augmented."""


@every_feed
@pytest.mark.parametrize(("damage", "augment"), DAMAGES.values(), ids=DAMAGES)
def test_a_broken_file_is_named(
    make_feed: MakeFeed, images: ImageFolder, folder: Path, damage: Any, augment: bool
) -> None:
    copies = [(Path(shutil.copy(path, folder)), label) for path, label in images.files[:9]]
    broken = copies[6][0]
    broken.write_bytes(damage(broken.read_bytes())) if damage else broken.unlink()
    feed = make_feed(_spec(ImageFolder(folder.parent, images.classes, tuple(copies)), augment=augment, batch_size=3))
    with pytest.raises(DataError) as caught:
        for _ in range(3):
            feed.next()
    assert str(broken) in str(caught.value)
    assert "\n" not in str(caught.value)


@every_feed
def test_a_feed_of_files_without_files_says_so(make_feed: MakeFeed) -> None:
    with pytest.raises(DataError, match="--data PATH"):
        make_feed(_spec(None))
