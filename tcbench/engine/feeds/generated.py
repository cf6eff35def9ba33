"""The JPEG set that tcbench generates once and that runs read by default.

This module owns the set's folder, its manifest and its file names. It imports NumPy and Pillow only to render images,
because the command line imports it."""

import contextlib
import errno
import os
from functools import partial
from io import BytesIO
from pathlib import Path

import msgspec

from tcbench.core import cache, files
from tcbench.core.errors import DataError
from tcbench.core.record import Input
from tcbench.engine.feeds import pictures
from tcbench.engine.feeds.dataset import ImageFolder, Progress, scan
from tcbench.engine.feeds.pictures import N_CLASSES
from tcbench.hardware import machine

SET_VERSION = "jpeg-v1"
"""The version of the generated set. Change it when `render` draws other pixels or sizes: results measured on different
files are not comparable."""
N_FILES = 512

_MANIFEST = "manifest.json"


class Manifest(msgspec.Struct, frozen=True):
    """The contents of a complete generated set: its version, and the size of each file."""

    version: str
    n_files: int
    file_bytes: dict[str, int]


class GeneratedImages(msgspec.Struct, frozen=True):
    """The folder of the generated set, and its number of files (None if the set was not made yet)."""

    root: Path
    n_files: int | None

    def make(self, progress: Progress | None = None, *, force: bool = False) -> ImageFolder:
        """Make the set if it is missing, incomplete or damaged, or always (`force`). Raises DataError."""
        return generate(progress=progress) if force else ensure_generated(progress)


def generated_images() -> GeneratedImages:
    """Return the generated set's folder and number of files, from its manifest only."""
    manifest = read_manifest(generated_root())
    return GeneratedImages(generated_root(), manifest.n_files if manifest else None)


def image_classes(source: Input, progress: Progress | None = None) -> int:
    """Return the number of classes of an input's images, 0 for an input without images. Raises DataError."""
    if source.kind == "folder" and source.path is not None:
        return len(scan(Path(source.path), progress=progress).classes)
    return N_CLASSES if source.kind == "generated" else 0


def generated_root() -> Path:
    """Return the folder of the generated set in the user's cache."""
    return cache.folder(SET_VERSION)


def ensure_generated(progress: Progress | None = None) -> ImageFolder:
    """Return the generated set, and generate it first if it is missing, incomplete or damaged. Raises DataError."""
    root = generated_root()
    return _complete_set(root) or generate(root, progress=progress)


def generate(
    root: Path | None = None, *, n_files: int = N_FILES, workers: int | None = None, progress: Progress | None = None
) -> ImageFolder:
    """Generate the JPEG set at `root` (default: `generated_root()`) and replace an earlier one.

    A file's bytes depend on its index and the versions of NumPy and Pillow, not on `n_files` or `workers` (default: one
    thread per usable core, at most 8). The complete set appears at `root` in one rename. Raises DataError if the folder
    cannot be written, the disk is full, or `root` holds anything but an earlier set."""
    if n_files < 1:
        raise ValueError(f"n_files must be at least 1, not {n_files}")
    root = generated_root() if root is None else Path(root)
    workers = min(8, machine.usable_cpus()) if workers is None else workers
    try:
        _check_replaceable(root)
        root.parent.mkdir(parents=True, exist_ok=True)
        before = _identity(root)
        with files.scratch(root.parent) as scratch:
            scratch.chmod(0o755)
            _write_manifest(scratch, _write_images(scratch, n_files, workers, progress))
            _put_in_place(scratch, root, before)
    except OSError as error:
        raise _cannot_write(root, error) from None
    return scan(root, checked=True)


def _complete_set(root: Path) -> ImageFolder | None:
    """Return the set at `root` if its manifest has this version and every file has its full length, else None."""
    manifest = read_manifest(root)
    if manifest is None or manifest.version != SET_VERSION or manifest.n_files != len(manifest.file_bytes):
        return None
    try:
        if any((root / name).stat().st_size != size for name, size in manifest.file_bytes.items()):
            return None
        images = scan(root, checked=True)
    except (OSError, DataError):
        return None
    return images if len(images.files) == manifest.n_files else None


def read_manifest(root: Path) -> Manifest | None:
    """Return the manifest of a generated set, or None if there is none that can be read."""
    try:
        return msgspec.json.decode((root / _MANIFEST).read_bytes(), type=Manifest)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        return None


def _cannot_write(root: Path, error: OSError) -> DataError:
    """Return the error for a set that cannot be written."""
    remedy = "set TCBENCH_CACHE to a writable folder, or use '--data PATH' or '--data synthetic'"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(
            f"the disk is full: the generated images need about 60 MB at {root}; free some space, {remedy}"
        )
    return DataError(f"cannot write the generated images at {root} ({error.strerror or error}): {remedy}")


def _check_replaceable(root: Path) -> None:
    """Raise DataError unless `root` is empty, missing or a generated set: a mistyped path must not delete files."""
    if root == generated_root() or not root.exists() or read_manifest(root) is not None:
        return
    if not root.is_dir() or any(root.iterdir()):
        raise DataError(f"{root} is not a generated set: name a new folder, or remove this one first")


def _identity(root: Path) -> tuple[int, int] | None:
    """Return the inode and modification time of the folder at `root`, or None if there is none. They change when the
    folder is replaced."""
    try:
        stat = root.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _put_in_place(scratch: Path, root: Path, before: tuple[int, int] | None) -> None:
    """Rename `scratch` to `root` and replace the folder that `before` identifies. If several processes generate at the
    same time, the first to get here wins, and the others use its set."""
    for _ in range(10):
        try:
            # On POSIX this replaces an empty folder and fails if the folder has content.
            scratch.rename(root)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if _identity(root) != before and _complete_set(root):
            return
        with files.scratch(root.parent) as old, contextlib.suppress(FileNotFoundError):
            root.rename(old / "old")
    raise OSError(errno.EBUSY, "another process keeps replacing it", str(root))


def _write_manifest(folder: Path, file_bytes: dict[str, int]) -> None:
    """Write the manifest of the set and flush it to disk."""
    manifest = Manifest(SET_VERSION, len(file_bytes), dict(sorted(file_bytes.items())))
    with open(folder / _MANIFEST, "wb") as out:
        out.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        out.flush()
        os.fsync(out.fileno())


def _write_images(folder: Path, n_files: int, workers: int, progress: Progress | None) -> dict[str, int]:
    """Write all images and return each file's size in bytes by its name below `folder`."""
    from concurrent.futures import ThreadPoolExecutor

    for name in sorted({_file_name(index).parts[0] for index in range(min(n_files, N_CLASSES))}):
        (folder / name).mkdir()
    file_bytes: dict[str, int] = {}
    if progress is not None:
        progress(0, n_files)
    with ThreadPoolExecutor(workers) as pool:
        # An interrupt waits only for the images in progress: map's iterator cancels the others.
        for name, n_bytes in pool.map(partial(_write_image, folder), range(n_files)):
            file_bytes[name] = n_bytes
            if progress is not None:
                progress(len(file_bytes), n_files)
    return file_bytes


def _file_name(index: int) -> Path:
    """Return the name of image `index` below the set's folder: CLASS/CLASS_NUMBER.JPEG."""
    kind = index % N_CLASSES
    name = f"c{kind:02d}_{pictures.texture_of(kind)}"
    return Path(name) / f"{name}_{index // N_CLASSES:05d}.JPEG"


def _write_image(folder: Path, index: int) -> tuple[str, int]:
    """Render and write an image; return its name below `folder` and its size in bytes."""
    name = _file_name(index)
    image, quality = pictures.render(index)
    # 4:2:0 and baseline, like nearly all files of ImageNet. In memory first: Pillow does not report a full disk.
    encoded = BytesIO()
    image.save(encoded, "JPEG", quality=quality, subsampling="4:2:0", progressive=False)
    return name.as_posix(), (folder / name).write_bytes(encoded.getbuffer())
