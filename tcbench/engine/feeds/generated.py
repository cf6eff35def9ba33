"""The JPEG set that tcbench generates once and that runs read by default: made by processes, put in place whole.

Owns the set's folder, its manifest and its files' names. NumPy and Pillow are imported where images are made, since the
command line imports this module.
"""

import contextlib
import dataclasses
import errno
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

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
_FILES_PER_TASK = 8


@dataclass(frozen=True)
class Manifest:
    """A complete generated set's account of itself. Sizes of files are in bytes, of images in pixels."""

    version: str
    n_files: int
    mean_file_bytes: int
    median_width: int
    median_height: int
    generated_with: dict[str, str]
    file_bytes: dict[str, int]


def generated_root() -> Path:
    """The folder of the generated set of this version, in the user's cache."""
    return cache.folder(SET_VERSION)


def ensure_generated(progress: Progress | None = None) -> ImageFolder:
    """The generated set, made first when it is missing, half made or damaged. Raises DataError."""
    root = generated_root()
    return _complete_set(root) or generate(root, progress=progress)


def generate(
    root: Path | None = None,
    *,
    n_files: int = N_FILES,
    workers: int | None = None,
    progress: Progress | None = None,
) -> ImageFolder:
    """Makes the JPEG set anew at `root` (default: `generated_root()`), replacing what was there.

    A file's bytes depend on its index, NumPy's and Pillow's version, never on `workers` (default: one process per
    usable core, at most 8) or `n_files`. The set appears at `root` in one rename when all of it is written. Raises
    DataError when the folder cannot be written, the disk is full, or `root` holds anything but an earlier set.
    """
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
            file_bytes, sizes = _write_images(scratch, n_files, workers, progress)
            _write_manifest(scratch, file_bytes, sizes)
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
        content: dict[str, Any] = json.loads((root / _MANIFEST).read_text(encoding="utf-8"))
        return Manifest(**content)
    except (OSError, ValueError, TypeError):
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
    """Renames `scratch` to `root`, replacing the folder that `before` identifies.

    Of several processes that generate at once, the first to get here wins and the others take its set.
    """
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


def _write_manifest(folder: Path, file_bytes: dict[str, int], sizes: list[tuple[int, int]]) -> None:
    import numpy as np
    import PIL

    manifest = Manifest(
        version=SET_VERSION,
        n_files=len(file_bytes),
        mean_file_bytes=round(sum(file_bytes.values()) / len(file_bytes)),
        median_width=sorted(width for width, _ in sizes)[len(sizes) // 2],
        median_height=sorted(height for _, height in sizes)[len(sizes) // 2],
        generated_with={"numpy": np.__version__, "pillow": PIL.__version__},
        file_bytes=dict(sorted(file_bytes.items())),
    )
    with open(folder / _MANIFEST, "w", encoding="utf-8") as out:
        json.dump(dataclasses.asdict(manifest), out, indent=1)
        out.flush()
        os.fsync(out.fileno())


def _write_images(
    folder: Path, n_files: int, workers: int, progress: Progress | None
) -> tuple[dict[str, int], list[tuple[int, int]]]:
    """Writes all images; returns each file's bytes by its name below `folder`, and all (width, height) in pixels."""
    for name in sorted({_file_name(index).parts[0] for index in range(min(n_files, N_CLASSES))}):
        (folder / name).mkdir()
    tasks = [range(start, min(start + _FILES_PER_TASK, n_files)) for start in range(0, n_files, _FILES_PER_TASK)]
    file_bytes: dict[str, int] = {}
    sizes: list[tuple[int, int]] = []
    if progress is not None:
        progress(0, n_files)
    for written in _written(folder, tasks, workers):
        for name, n_bytes, size in written:
            file_bytes[name] = n_bytes
            sizes.append(size)
        if progress is not None:
            progress(len(file_bytes), n_files)
    return file_bytes, sizes


_Written = list[tuple[str, int, tuple[int, int]]]


def _written(folder: Path, tasks: list[range], workers: int) -> Iterator[_Written]:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    workers = min(workers, len(tasks))
    left = set(tasks)
    if workers > 1:
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_worker)
        try:
            with _sigint_blocked():  # inherited: Ctrl-C is for this process, which then cleans up
                futures = {pool.submit(write_files, folder, task): task for task in tasks}
            for future in as_completed(futures):
                written = future.result()
                left.discard(futures[future])
                yield written
        except BrokenProcessPool:
            # A main module that cannot be imported again (a script without a __main__ guard), or a killed worker.
            pass
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    for task in tasks:
        if task in left:
            yield write_files(folder, task)


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    """A pool's workers outlive a killed parent, waiting for ever: end with it instead."""
    from multiprocessing import parent_process

    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _file_name(index: int) -> Path:
    kind = index % N_CLASSES
    name = f"c{kind:02d}_{pictures.texture_of(kind)}"
    return Path(name) / f"{name}_{index // N_CLASSES:05d}.JPEG"


def write_files(folder: Path, indices: range) -> _Written:
    """Renders and writes the files of `indices`: (name below `folder`, size in bytes, (width, height)) of each."""
    written: _Written = []
    for index in indices:
        name = _file_name(index)
        image, quality = pictures.render(index)
        # 4:2:0 and baseline, as ImageNet's files nearly all are.
        # In memory first: Pillow does not say when a disk is full.
        encoded = BytesIO()
        image.save(encoded, "JPEG", quality=quality, subsampling="4:2:0", progressive=False)
        n_bytes = (folder / name).write_bytes(encoded.getbuffer())
        written.append((name.as_posix(), n_bytes, image.size))
    return written
