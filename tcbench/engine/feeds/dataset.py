"""Finding and checking the images that a run reads, in an ImageNet-style folder of class folders.

This module knows nothing of frameworks, batches or augmentation. `generated` makes such a folder."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tcbench.core.errors import DataError
from tcbench.core.text import printable
from tcbench.engine.feeds import image_header

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg"})
"""File name suffixes of images, compared in lower case: ImageNet's are .JPEG."""

Progress = Callable[[int, int], None]
"""A function that is called with (files done, files in total), in the calling thread."""


@dataclass(frozen=True)
class ImageFolder:
    """A folder with one sub-folder of images per class.

    Every feed can read its images (see `image_header`). A file's label is the index of its class in `classes`, which
    are sorted."""

    root: Path
    classes: tuple[str, ...]
    files: tuple[tuple[Path, int], ...]


_REMEDY = "expected CLASS/IMAGE.jpg in it; generate a set with 'tcbench data make' or use '--data synthetic'"
_FILES_PER_PROGRESS = 20_000


def scan(root: Path, remedy: str = _REMEDY, *, checked: bool = False, progress: Progress | None = None) -> ImageFolder:
    """Return the images in the class folders of `root`, with classes and files sorted.

    Folders without a JPEG and names that start with a dot are skipped. Unless `checked` says that it was done before,
    every file's header is read, which takes a while for very many; `progress` reports it. Raises DataError if there is
    nothing to read (the message ends with `remedy`), or for a file that some feed cannot read."""
    images = _listed(Path(root), remedy)
    if not checked:
        _check(images, progress)
    return images


def _listed(root: Path, remedy: str) -> ImageFolder:
    """Return the images under `root` without reading them. Raises DataError if there are none."""
    label = f"data folder {printable(str(root))}"
    try:
        if not root.exists():
            raise DataError(f"{label} does not exist: {remedy}")
        if not root.is_dir():
            raise DataError(f"{label} is a file, not a folder: {remedy}")
        folders = sorted(
            (entry for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")),
            key=lambda entry: entry.name,
        )
        images = {folder.name: _images_in(Path(folder.path)) for folder in folders}
    except OSError as error:
        reason = str(error.strerror).lower()
        unreadable = printable(str(error.filename or root))
        raise DataError(f"data folder {unreadable} cannot be read ({reason}): {remedy}") from None
    if not images:
        raise DataError(f"{label} has no class folders: {remedy}")
    classes = tuple(name for name, files in images.items() if files)
    if not classes:
        raise DataError(f"{label} has {len(images)} class folders but no .jpg or .jpeg image: {remedy}")
    files = tuple((path, label) for label, name in enumerate(classes) for path in images[name])
    return ImageFolder(root=root, classes=classes, files=files)


def _check(images: ImageFolder, progress: Progress | None) -> None:
    """Check that every feed can read each file. Raises DataError that names the first refused file."""
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
    """Return why some feed cannot read a file, in words that follow its name, or None if all feeds can."""
    try:
        os.fsencode(path).decode("utf-8")  # DALI takes names as UTF-8
        reason = image_header.refusal(path)
    except UnicodeDecodeError:
        return "has a name that is not UTF-8"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return reason and f"{reason}, expected {image_header.EXPECTED}"


def _images_in(folder: Path) -> list[Path]:
    """Return a class folder's image files, sorted by name."""
    with os.scandir(folder) as entries:
        names = [
            entry.name
            for entry in entries
            if Path(entry.name).suffix.lower() in IMAGE_SUFFIXES and not entry.name.startswith(".") and entry.is_file()
        ]
    return [folder / name for name in sorted(names)]
