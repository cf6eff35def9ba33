"""A folder of images in two: to train on, and to test with. The same files always fall to the same side."""

import dataclasses
import random
from pathlib import Path

from tcbench.core.errors import DataError
from tcbench.core.groups import grouped
from tcbench.engine.feeds.dataset import ImageFolder, scan

HELD_OUT_EVERY = 10
"""Of each class every tenth file is kept for the test."""


def split_images(root: Path) -> tuple[ImageFolder, ImageFolder]:
    """Return the folder's images to train on and those to test with. Raises DataError."""
    expected = f"expected CLASS/IMAGE.jpg in it, at least {HELD_OUT_EVERY} images a class"
    return split(scan(root, f"{expected}; without --data it trains on generated images"))


def split(folder: ImageFolder) -> tuple[ImageFolder, ImageFolder]:
    """The files to train on, and every HELD_OUT_EVERY-th of each class for the test, in an order that mixes classes.
    Raises DataError when nothing is left for the test."""
    by_class = grouped((file[1], file) for file in folder.files)
    kept = [file for files in by_class.values() for file in files[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]]
    if not kept:
        raise DataError(
            f"data folder {folder.root}: expected at least {HELD_OUT_EVERY} images in a class, one in "
            f"{HELD_OUT_EVERY} is kept for the test; add images or name another folder with --data"
        )
    away = set(kept)
    return (
        dataclasses.replace(folder, files=tuple(file for file in folder.files if file not in away)),
        dataclasses.replace(folder, files=tuple(random.Random(0).sample(kept, len(kept)))),
    )
