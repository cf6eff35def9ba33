"""The images a run reads: an ImageNet-style folder of class folders, or the JPEG set that tcbench generates once.

Owns finding, checking and generating files. Knows nothing of frameworks, batches or augmentation. NumPy and Pillow
are imported where images are made, since the command line imports this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcbench.backends.feeds import image_header
from tcbench.core import cache, files
from tcbench.core.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

SET_VERSION = "jpeg-v1"
"""Names the generated set. A change of `render` that changes pixels or sizes needs a new version: results measured
on different files are not comparable."""
N_FILES = 512
N_CLASSES = 16
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg"})
"""Compared in lower case, so ImageNet's .JPEG is one of them."""

_MANIFEST = "manifest.json"
_FILES_PER_TASK = 8

Progress = Callable[[int, int], None]
"""Called with (files done, files in all), in the calling thread."""


@dataclass(frozen=True)
class ImageFolder:
    """A folder of class folders of images that every feed takes (see `image_header`); a file's label is the index of
    its class in `classes` (sorted names)."""

    root: Path
    classes: tuple[str, ...]
    files: tuple[tuple[Path, int], ...]


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


# --------------------------------------------------------------------------------------------------- a user's folder


_REMEDY = "expected CLASS/IMAGE.jpg in it; generate a set with 'tcbench data make' or use '--data synthetic'"
_FILES_PER_PROGRESS = 20_000


def shown(path: Path | str) -> str:
    """A path as a message names it: on one line, and nothing in it that a terminal would act on."""
    text = str(path)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def scan(root: Path, remedy: str = _REMEDY, *, checked: bool = False, progress: Progress | None = None) -> ImageFolder:
    """The images under `root`, one level of class folders down, classes and files in sorted order.

    Folders without a JPEG and names that start with a dot are left out. Raises DataError, with one line that says
    what to do (`remedy`), when there is nothing to read, and naming a file that not every feed would take. `checked`:
    the files have been looked into before, as a command does before its first trial; for very many that takes a while,
    and `progress` is called.
    """
    images = _listed(Path(root), remedy)
    if not checked:
        _check(images, progress)
    return images


def _listed(root: Path, remedy: str) -> ImageFolder:
    try:
        if not root.exists():
            raise DataError(f"data folder {shown(root)} does not exist: {remedy}")
        if not root.is_dir():
            raise DataError(f"data folder {shown(root)} is a file, not a folder: {remedy}")
        folders = sorted(
            (entry for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")),
            key=lambda entry: entry.name,
        )
        images = {folder.name: _images_in(Path(folder.path)) for folder in folders}
    except OSError as error:
        reason = str(error.strerror).lower()
        raise DataError(f"data folder {shown(error.filename or root)} cannot be read ({reason}): {remedy}") from None
    if not images:
        raise DataError(f"data folder {shown(root)} has no class folders: {remedy}")
    classes = tuple(name for name, files in images.items() if files)
    if not classes:
        there = f"{len(images)} class folders but no .jpg or .jpeg image"
        raise DataError(f"data folder {shown(root)} has {there}: {remedy}")
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
        raise DataError(f"image {shown(path)} {reason}{more}: convert, rename or remove it")


def _refusal(path: str) -> str | None:
    try:
        path.encode()  # which is how DALI is given names
        reason = image_header.refusal(path)
    except UnicodeEncodeError:
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


# -------------------------------------------------------------------------------------------------- the generated set


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
    workers = _usable_cores() if workers is None else workers
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


def _usable_cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores)


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


# ---------------------------------------------------------------------------------------------------- what is in them

_TEXTURES = ("stripes", "rings", "checks", "blobs")
_SIZES: tuple[tuple[int, int, int], ...] = (
    # (width, height, share in %), after ImageNet's training set: three quarters are 500 wide or 500 high.
    (500, 375, 44),
    (500, 333, 15),
    (375, 500, 12),
    (333, 500, 7),
    (500, 500, 3),
    (640, 480, 6),
    (400, 300, 6),
    (320, 240, 4),
    (800, 600, 2),
    (256, 340, 1),
)
_NOISE_SIDE = 2048
_noise_bank: np.ndarray | None = None


def _file_name(index: int) -> Path:
    kind = index % N_CLASSES
    name = f"c{kind:02d}_{_TEXTURES[kind % len(_TEXTURES)]}"
    return Path(name) / f"{name}_{index // N_CLASSES:05d}.JPEG"


def write_files(folder: Path, indices: range) -> _Written:
    """Renders and writes the files of `indices`: (name below `folder`, size in bytes, (width, height)) of each."""
    written: _Written = []
    for index in indices:
        name = _file_name(index)
        image, quality = render(index)
        # 4:2:0 and baseline, as ImageNet's files nearly all are.
        # In memory first: Pillow does not say when a disk is full.
        encoded = BytesIO()
        image.save(encoded, "JPEG", quality=quality, subsampling="4:2:0", progressive=False)
        n_bytes = (folder / name).write_bytes(encoded.getbuffer())
        written.append((name.as_posix(), n_bytes, image.size))
    return written


def render(index: int) -> tuple[Image.Image, int]:
    """Image `index` of the set and its JPEG quality: a class's texture and hue under shapes and 1/f noise.

    Natural images have an amplitude spectrum of about 1/f (Field 1987, doi:10.1364/JOSAA.4.002379), which is what
    makes a JPEG's size, and the time to decode it, those of a photograph.
    """
    import numpy as np
    from PIL import Image, ImageDraw

    rng = np.random.default_rng([2018, index])
    kind = index % N_CLASSES
    width, height = _draw_size(rng)
    noise = _noise(rng, height, width)

    wave = _texture(rng, _TEXTURES[kind % len(_TEXTURES)], height, width)[..., None]
    dark, light = _colours(rng, kind)
    picture = dark + (light - dark) * wave

    canvas = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(canvas)
    for _ in range(int(rng.integers(3, 9))):
        _draw_shape(rng, draw, width, height)

    contrast = rng.uniform(26.0, 44.0)
    # Mostly luminance: the channels of a photograph are strongly correlated.
    shading = contrast * (0.9 * noise[..., :1] + 0.3 * noise)
    pixels = np.asarray(canvas, dtype=np.float32) + shading
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)), int(rng.integers(90, 96))


def _draw_size(rng: np.random.Generator) -> tuple[int, int]:
    shares = [share for _, _, share in _SIZES]
    width, height, _ = _SIZES[int(rng.choice(len(_SIZES), p=[share / sum(shares) for share in shares]))]
    # One in five was cropped by hand to something odd.
    if rng.random() < 0.2:
        height -= int(rng.integers(0, height // 6))
    return width, height


def _noise(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """1/f noise (H, W, 3), mean 0 and standard deviation 1 over the bank it is cut from."""
    import numpy as np

    global _noise_bank
    if _noise_bank is None:
        bank_rng = np.random.default_rng(2018)
        fy = np.fft.fftfreq(_NOISE_SIDE)[:, None]
        fx = np.fft.rfftfreq(_NOISE_SIDE)[None, :]
        frequency = np.hypot(fy, fx)
        frequency[0, 0] = np.inf
        bank = np.empty((_NOISE_SIDE, _NOISE_SIDE, 3), np.float32)
        for channel in range(3):
            white = bank_rng.standard_normal((_NOISE_SIDE, _NOISE_SIDE), dtype=np.float32)
            plane = np.fft.irfft2(np.fft.rfft2(white) / frequency, s=white.shape)
            bank[..., channel] = plane / plane.std()
        _noise_bank = bank
    top = int(rng.integers(0, _NOISE_SIDE - height + 1))
    left = int(rng.integers(0, _NOISE_SIDE - width + 1))
    cut = _noise_bank[top : top + height, left : left + width]
    return cut[:: -1 if rng.random() < 0.5 else 1, :: -1 if rng.random() < 0.5 else 1]


def _texture(rng: np.random.Generator, texture: str, height: int, width: int) -> np.ndarray:
    """Waves in 0..1, (H, W), of 6 to 10 periods over the longer side."""
    import numpy as np

    y, x = np.mgrid[0:height, 0:width].astype(np.float32) / max(height, width)
    periods = 2 * np.pi * rng.uniform(6.0, 10.0)
    phase = rng.uniform(0, 2 * np.pi, 2)
    if texture == "rings":
        centre = rng.uniform(0.25, 0.75, 2)
        wave = np.sin(periods * 2 * np.hypot(y - centre[0], x - centre[1]))
    elif texture == "checks":
        wave = np.sign(np.sin(periods * x + phase[0]) * np.sin(periods * y + phase[1]))
    elif texture == "blobs":
        wave = np.sin(periods * x + phase[0]) * np.sin(periods * y + phase[1])
    else:
        angle = rng.uniform(-0.4, 0.4)
        wave = np.sin(periods * (x * np.cos(angle) + y * np.sin(angle)) + phase[0])
    shades: np.ndarray = (0.5 + 0.5 * wave).astype(np.float32)
    return shades


def _colours(rng: np.random.Generator, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """The two colours (3,) of a class, in 0..255: its hue, dark and light, each image a little different."""
    import colorsys

    import numpy as np

    hue = (kind + rng.uniform(-0.25, 0.25)) / N_CLASSES
    dark = np.array(colorsys.hsv_to_rgb(hue, 0.6, rng.uniform(0.25, 0.4)), np.float32)
    light = np.array(colorsys.hsv_to_rgb(hue, 0.45, rng.uniform(0.65, 0.85)), np.float32)
    return 255 * dark, 255 * light


def _draw_shape(rng: np.random.Generator, draw: Any, width: int, height: int) -> None:
    x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
    w, h = (int(rng.integers(side // 12, side // 3)) for side in (width, height))
    colour = tuple(int(value) for value in rng.integers(20, 236, 3))
    if rng.random() < 0.5:
        draw.ellipse((x - w // 2, y - h // 2, x + w // 2, y + h // 2), fill=colour)
    else:
        corners = [(x + int(rng.integers(-w, w + 1)), y + int(rng.integers(-h, h + 1))) for _ in range(4)]
        draw.polygon(corners, fill=colour)
