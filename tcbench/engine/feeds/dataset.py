"""The images a run reads: an ImageNet-style folder of class folders.

Owns finding and checking files. Knows nothing of frameworks, batches or augmentation; `generated` makes such a folder.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tcbench.core.errors import DataError
from tcbench.core.text import printable
from tcbench.engine.feeds import image_header

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg"})
"""Compared in lower case, so ImageNet's .JPEG is one of them."""

Progress = Callable[[int, int], None]
"""Called with (files done, files in all), in the calling thread."""


@dataclass(frozen=True)
class ImageFolder:
    """A folder of class folders of images that every feed takes (see `image_header`); a file's label is the index of
    its class in `classes` (sorted names)."""

    root: Path
    classes: tuple[str, ...]
    files: tuple[tuple[Path, int], ...]


_REMEDY = "expected CLASS/IMAGE.jpg in it; generate a set with 'tcbench data make' or use '--data synthetic'"
_FILES_PER_PROGRESS = 20_000


def scan(root: Path, remedy: str = _REMEDY, *, checked: bool = False, progress: Progress | None = None) -> ImageFolder:
    """The images under `root`, one level of class folders down, classes and files in sorted order. Folders without a
    JPEG and names that start with a dot are left out. Raises DataError, with one line that says what to do (`remedy`),
    when there is nothing to read, and naming a file that not every feed would take. `checked`: the files have been
    looked into before, as a command does before its first trial; for very many that takes a while, and `progress` is
    called."""
    images = _listed(Path(root), remedy)
    if not checked:
        _check(images, progress)
    return images


def _listed(root: Path, remedy: str) -> ImageFolder:
    where = f"data folder {printable(str(root))}"
    try:
        if not root.exists():
            raise DataError(f"{where} does not exist: {remedy}")
        if not root.is_dir():
            raise DataError(f"{where} is a file, not a folder: {remedy}")
        folders = sorted(
            (entry for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")),
            key=lambda entry: entry.name,
        )
        images = {folder.name: _images_in(Path(folder.path)) for folder in folders}
    except OSError as error:
        reason = str(error.strerror).lower()
        there = printable(str(error.filename or root))
        raise DataError(f"data folder {there} cannot be read ({reason}): {remedy}") from None
    if not images:
        raise DataError(f"{where} has no class folders: {remedy}")
    classes = tuple(name for name, files in images.items() if files)
    if not classes:
        there = f"{len(images)} class folders but no .jpg or .jpeg image"
        raise DataError(f"{where} has {there}: {remedy}")
    files = tuple((path, label) for label, name in enumerate(classes) for path in images[name])
    return ImageFolder(root=root, classes=classes, files=files)


def _check(images: ImageFolder, progress: Progress | None) -> None:
    """Raises DataError, naming the first of the files that not every feed would take."""
    refused: list[tuple[Path, str]] = []
    for done, (path, _) in enumerate(images.files, 1):
        if reason := _refusal(str(path)):
            refused.append((path, reason))
        if progress is not None and done % _FILES_PER_PROGRESS == 0:
            progress(done, len(images.files))
    if refused:
        path, reason = refused[0]
        more = f" ({len(refused) - 1:,} more of {len(images.files):,} are refused)" if len(refused) > 1 else ""
        raise DataError(f"image {printable(str(path))} {reason}{more}: convert, rename or remove it")


def _refusal(path: str) -> str | None:
    try:
        os.fsencode(path).decode("utf-8")  # how DALI is given names
        reason = image_header.refusal(path)
    except UnicodeDecodeError:
        return "has a name that is not UTF-8"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return reason and f"{reason}, expected {image_header.EXPECTED}"


def _images_in(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = [
            entry.name
            for entry in entries
            if Path(entry.name).suffix.lower() in IMAGE_SUFFIXES and not entry.name.startswith(".") and entry.is_file()
        ]
    return [folder / name for name in sorted(names)]
