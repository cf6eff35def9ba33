"""The split of a folder of images into training and test images, which is always the same for the same files."""

import dataclasses
import random
from pathlib import Path

from tcbench.core.errors import DataError
from tcbench.core.groups import grouped
from tcbench.engine.feeds.dataset import ImageFolder, scan

HELD_OUT_EVERY = 10
"""The test images are the files whose position within their class, counted from 1, is a multiple of this."""


def split_images(root: Path) -> tuple[ImageFolder, ImageFolder]:
    """Scan a folder and return its training images and its test images. Raises DataError."""
    expected = f"expected CLASS/IMAGE.jpg in it, at least {HELD_OUT_EVERY} images per class"
    return split(scan(root, f"{expected}; without --data it trains on generated images"))


def split(folder: ImageFolder) -> tuple[ImageFolder, ImageFolder]:
    """Split a folder into training images and test images. The latter are shuffled, always in the same way,
    since files are sorted by class. Raises DataError if there would be no test images."""
    by_class = grouped((file[1], file) for file in folder.files)
    test_files = [file for files in by_class.values() for file in files[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]]
    if not test_files:
        raise DataError(
            f"data folder {folder.root}: expected at least {HELD_OUT_EVERY} images per class, since one in "
            f"{HELD_OUT_EVERY} is held out for the test; add images or name another folder with --data"
        )
    held_out = set(test_files)
    train_files = tuple(file for file in folder.files if file not in held_out)
    shuffled = tuple(random.Random(0).sample(test_files, len(test_files)))
    return dataclasses.replace(folder, files=train_files), dataclasses.replace(folder, files=shuffled)
