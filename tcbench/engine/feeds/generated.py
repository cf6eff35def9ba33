"""The JPEG set that tcbench generates once and that runs read by default: made by threads, put in place whole.

Owns the set's folder, its manifest and its files' names. NumPy and Pillow are imported where images are made, since the
command line imports this module."""

import contextlib
import errno
import os
from functools import partial
from io import BytesIO
from pathlib import Path

import msgspec

from tcbench.core import cache, files
from tcbench.core.errors import DataError
from tcbench.engine.feeds import pictures
from tcbench.engine.feeds.dataset import ImageFolder, Progress, scan
from tcbench.engine.feeds.pictures import N_CLASSES
from tcbench.hardware import machine

SET_VERSION = "jpeg-v1"
"""Names the generated set. A change of `render` that changes pixels or sizes needs a new version: results measured
on different files are not comparable."""
N_FILES = 512

_MANIFEST = "manifest.json"


class Manifest(msgspec.Struct, frozen=True):
    """A complete generated set's account of itself."""

    version: str
    n_files: int
    file_bytes: dict[str, int]


def generated_root() -> Path:
    """The folder of the generated set of this version, in the user's cache."""
    return cache.folder(SET_VERSION)


def ensure_generated(progress: Progress | None = None) -> ImageFolder:
    """The generated set, made first when it is missing, half made or damaged. Raises DataError."""
    root = generated_root()
    return _complete_set(root) or generate(root, progress=progress)


def generate(
    root: Path | None = None, *, n_files: int = N_FILES, workers: int | None = None, progress: Progress | None = None
) -> ImageFolder:
    """Makes the JPEG set anew at `root` (default: `generated_root()`), replacing what was there. A file's bytes depend
    on its index, NumPy's and Pillow's version, never on `workers` (default: one thread per usable core, at most 8) or
    `n_files`. The set appears at `root` in one rename when all of it is written. Raises DataError when the folder
    cannot be written, the disk is full, or `root` holds anything but an earlier set."""
    if n_files < 1:
        raise ValueError(f"n_files must be at least 1, not {n_files}")
    root = generated_root() if root is None else Path(root)
    workers = min(8, machine.usable_cpus()) if workers is None else workers
    try:
        _refuse_to_replace(root)
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
    """The set at `root` if its manifest is of this version and every file is there at its full length."""
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
    """The manifest of a generated set, None where there is none that can be read."""
    try:
        return msgspec.json.decode((root / _MANIFEST).read_bytes(), type=Manifest)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        return None


def _cannot_write(root: Path, error: OSError) -> DataError:
    where = "set TCBENCH_CACHE to a folder that can be written, or use '--data PATH' or '--data synthetic'"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(f"the disk is full: the generated images need about 60 MB at {root}; free some, {where}")
    return DataError(f"cannot write the generated images at {root} ({error.strerror or error}): {where}")


def _refuse_to_replace(root: Path) -> None:
    """A typing slip must not cost anybody's photographs: only our own set, or nothing, may be replaced."""
    if root == generated_root() or not root.exists() or read_manifest(root) is not None:
        return
    if not root.is_dir() or any(root.iterdir()):
        raise DataError(f"{root} holds something else than a generated set: name a new folder, or remove it first")


def _identity(root: Path) -> tuple[int, int] | None:
    """Tells one folder at `root` from the next that is renamed to it."""
    try:
        stat = root.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _put_in_place(scratch: Path, root: Path, before: tuple[int, int] | None) -> None:
    """Renames `scratch` to `root`, replacing the folder that `before` identifies. Of several processes that generate at
    once, the first to get here wins and the others take its set."""
    for _ in range(10):
        try:
            # On POSIX this replaces an empty folder and refuses one with content.
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
    manifest = Manifest(SET_VERSION, len(file_bytes), dict(sorted(file_bytes.items())))
    with open(folder / _MANIFEST, "wb") as out:
        out.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        out.flush()
        os.fsync(out.fileno())


def _write_images(folder: Path, n_files: int, workers: int, progress: Progress | None) -> dict[str, int]:
    """Writes all images; returns each file's bytes by its name below `folder`."""
    from concurrent.futures import ThreadPoolExecutor

    for name in sorted({_file_name(index).parts[0] for index in range(min(n_files, N_CLASSES))}):
        (folder / name).mkdir()
    file_bytes: dict[str, int] = {}
    if progress is not None:
        progress(0, n_files)
    with ThreadPoolExecutor(workers) as pool:
        # Who is interrupted waits for the images at hand alone: map's iterator cancels the others as it goes.
        for name, n_bytes in pool.map(partial(_write_image, folder), range(n_files)):
            file_bytes[name] = n_bytes
            if progress is not None:
                progress(len(file_bytes), n_files)
    return file_bytes


def _file_name(index: int) -> Path:
    kind = index % N_CLASSES
    name = f"c{kind:02d}_{pictures.texture_of(kind)}"
    return Path(name) / f"{name}_{index // N_CLASSES:05d}.JPEG"


def _write_image(folder: Path, index: int) -> tuple[str, int]:
    """Renders and writes an image: its name below `folder`, and its size in bytes."""
    name = _file_name(index)
    image, quality = pictures.render(index)
    # 4:2:0 and baseline, as ImageNet's files nearly all are.
    # In memory first: Pillow does not say when a disk is full.
    encoded = BytesIO()
    image.save(encoded, "JPEG", quality=quality, subsampling="4:2:0", progressive=False)
    return name.as_posix(), (folder / name).write_bytes(encoded.getbuffer())
