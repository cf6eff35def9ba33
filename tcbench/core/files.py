"""Files that are there whole or not at all, and folders to work in that nothing leaves behind.

Both are made beside what they are for, under a name that begins with `.tcbench-`, and held by a lock, which the kernel
gives up when a process dies: what lies there without one was left by a process that was killed, and is removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tcbench.core.errors import StoreError

_DRAFT = ".tcbench-"
_MOST_TRIES = 100


def write(path: Path, data: bytes, remedy: str = "") -> None:
    """Put a file in place, as `replacing` does."""
    with replacing(path, remedy) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path, remedy: str = "", *, taken: str | None = None) -> Iterator[IO[bytes]]:
    """A file to write into that takes the path's place at the end; until then, and if anything goes wrong, what was
    there stays. Folders are made. What is no file (a device, a pipe) is written to as it is.

    Raises StoreError, with `remedy`, when it cannot be written. `taken`: a file that is there is kept, and this is why.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:  # a folder raises
                yield file
            return
        target = Path(os.path.realpath(path))  # a link stays one
        if not target.parent.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
        with _draft(target) as (draft, file):
            yield file
            file.flush()
            os.fsync(file.fileno())
            if taken is None:
                draft.replace(target)
            else:
                _publish(draft, target)
        sync_folder(target.parent)
    except FileExistsError as error:
        raise StoreError(taken or f"{path}: cannot be written ({error.strerror})") from None
    except OSError as error:
        raise not_writable(path, error, remedy) from None


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A folder to work in, gone at the end, and with it what killed processes left of theirs. Raises OSError."""

    def make(path: Path) -> int:
        path.mkdir(mode=0o700)
        return os.open(path, os.O_RDONLY)

    folder, held = _held(parent, make)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def not_writable(path: Path, error: OSError, remedy: str = "") -> StoreError:
    """One line that says so."""
    return StoreError(f"{path}: cannot be written ({error.strerror}){f'; {remedy}' if remedy else ''}")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A file beside the target, with the rights of the one that is there; gone at the end, unless it was renamed."""
    before = target.stat().st_mode if target.exists() else None
    if before is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    draft, held = _held(target.parent, lambda path: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        with open(held, "wb") as file:
            if before is not None:
                os.fchmod(held, stat.S_IMODE(before))
            yield draft, file
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _publish(draft: Path, target: Path) -> None:
    """Give the draft its name. Raises FileExistsError where another process was first."""
    try:
        target.hardlink_to(draft)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        draft.replace(target)


def _held(parent: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """A file or folder that `make` makes in the folder, under a new name, locked. Unlocked ones are removed."""
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{_DRAFT}*"):
            with contextlib.suppress(OSError):
                _remove_left(path)
    tries = 0
    while True:
        path = parent / f"{_DRAFT}{secrets.token_hex(8)}"
        try:
            held = make(path)
        except FileNotFoundError:
            tries += 1
            if tries == _MOST_TRIES:  # nothing can be made here, as in /proc
                raise
            continue  # another process removed the folder before it was opened
        with contextlib.suppress(OSError):  # a file system without locks, where nothing is removed either
            fcntl.flock(held, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), os.stat(path)):
                return path, held
        os.close(held)  # another process removed it before it was locked


def _remove_left(path: Path) -> None:
    """Remove one that nobody holds. Raises OSError where somebody does."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    finally:
        os.close(fd)
