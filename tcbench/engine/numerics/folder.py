"""A folder of images in two: to train on, and to test with. The same files always fall to the same side."""

import dataclasses
import random
from pathlib import Path

from tcbench.core.errors import DataError
from tcbench.engine.feeds.dataset import ImageFolder

HELD_OUT_EVERY = 10
"""Of each class every tenth file is kept for the test."""


def split(folder: ImageFolder) -> tuple[ImageFolder, ImageFolder]:
    """The files to train on, and every HELD_OUT_EVERY-th of each class for the test, in an order that mixes classes.

    Raises DataError when nothing is left for the test.
    """
    by_class: dict[int, list[tuple[Path, int]]] = {}
    for file in folder.files:
        by_class.setdefault(file[1], []).append(file)
    kept = [file for files in by_class.values() for file in files[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]]
    if not kept:
        raise DataError(
            f"data folder {folder.root}: expected at least {HELD_OUT_EVERY} images in a class, one in "
            f"{HELD_OUT_EVERY} is kept for the test; add images or name another folder with --data"
        )
    order = random.Random(0).sample(range(len(kept)), len(kept))
    away = set(kept)
    return (
        dataclasses.replace(folder, files=tuple(file for file in folder.files if file not in away)),
        dataclasses.replace(folder, files=tuple(kept[i] for i in order)),
    )
