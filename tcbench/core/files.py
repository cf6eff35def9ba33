"""Files that are written completely or not at all, and scratch folders that are always cleaned up.

A scratch folder is created next to its target. It contains a marker file and is locked. The kernel releases the lock
when a process dies, so a marked folder without a lock belonged to a killed process and is removed. Folders without the
marker are never removed."""

import codecs
import contextlib
import errno
import fcntl
import functools
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tcbench.core.errors import StoreError

LARGEST = 64 * 2**20
"""The most bytes that are read of a line of records or of a document. No file of tcbench comes near it."""

_LOG = logging.getLogger(__name__)

_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of a system call that the kernel or the file system does not support."""

ANOTHER_FOLDER = "name another folder with --out"
_HEX_DIGITS = 16
_MARK = "made-by-tcbench"
"""The marker file in a scratch folder; the folder `_WORK` next to it is the one to use."""
_WORK = "work"


def open_for_reading(path: Path) -> IO[bytes]:
    """Open a file for reading, positioned after a UTF-8 byte order mark. Raises OSError, also for UTF-16 text and for
    devices and pipes, which may be endless."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    start = os.pread(fd, len(codecs.BOM_UTF8), 0) if stat.S_ISREG(mode) else b""
    is_utf_16 = re.match(rb"\xff\xfe|\xfe\xff|[\t -~]\0|\0[\t -~]", start)
    if stat.S_ISREG(mode) and not is_utf_16:
        os.lseek(fd, len(start) if start == codecs.BOM_UTF8 else 0, os.SEEK_SET)
        return open(fd, "rb")
    os.close(fd)
    if is_utf_16:
        raise OSError(errno.EILSEQ, "UTF-16 text; convert it with `iconv -f UTF-16 -t UTF-8`")
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "not a regular file")


def read(path: Path, most: int = LARGEST) -> bytes:
    """Return the content of a file of at most `most` bytes. Raises OSError if it is larger or cannot be opened."""
    with open_for_reading(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most / 2**20:g} MiB")
    return content


def unnamed_file(content: bytes) -> int:
    """Return a descriptor, positioned at the beginning, of a new unnamed file with this content. Raises OSError."""
    try:
        fd = os.memfd_create("tcbench")
    except (AttributeError, OSError):  # not in every Python; some sandboxes forbid it
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def write(path: Path, content: bytes, remedy: str = "") -> None:
    """Write a file atomically. Raises StoreError, with `remedy` in its message."""
    with replacing(path, remedy) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path, remedy: str = "", *, error_if_exists: str | None = None) -> Iterator[IO[bytes]]:
    """Open a new file that replaces the one at `path` when the context ends without an error.

    Missing folders are created. A device or a pipe is written to directly. Raises StoreError, with `remedy` in its
    message, if the file cannot be written. With `error_if_exists`, an existing file is not replaced; then StoreError
    has this message."""
    try:
        if error_if_exists is not None and os.path.lexists(path):
            raise FileExistsError
        _check_links(path)
        if path.exists() and not path.is_file():
            with path.open("wb") as file:  # a folder raises
                yield file
            return
        target = Path(os.path.realpath(path))  # a symbolic link is not replaced, but the file that it points to
        if not target.parent.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
        before = target.stat().st_mode if target.exists() else None
        if before is not None and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with scratch(target.parent) as folder:
            draft = folder / "draft"
            with draft.open("xb") as file:
                if before is not None:
                    with contextlib.suppress(OSError):  # a file system without permissions
                        os.fchmod(file.fileno(), stat.S_IMODE(before))
                yield file
                file.flush()
                sync(file.fileno())
            if error_if_exists is None:
                draft.replace(target)
            else:
                _publish(draft, target)
        sync_folder(target.parent)
    except FileExistsError as error:
        raise StoreError(error_if_exists or f"{path}: cannot be written ({error.strerror})") from None
    except OSError as error:
        raise not_writable(path, error.strerror, remedy) from None


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Make a scratch folder in `parent` that is removed when the context ends. Scratch folders of killed processes are
    removed too. Raises OSError."""
    for abandoned in parent.glob(".tcbench-" + "[0-9a-f]" * _HEX_DIGITS):
        with contextlib.suppress(OSError):
            _remove_abandoned(abandoned)
    folder = parent / f".tcbench-{secrets.token_hex(_HEX_DIGITS // 2)}"
    folder.mkdir(mode=0o700)
    lock = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks, where abandoned folders are not removed
            fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / _MARK).touch()
        (folder / _WORK).mkdir()
        yield folder / _WORK
    finally:
        with contextlib.suppress(OSError):
            _remove(folder)
        os.close(lock)


def not_writable(path: Path, why: str | None, remedy: str = ANOTHER_FOLDER) -> StoreError:
    """Return the error for a path that cannot be written."""
    return StoreError(f"{path}: cannot be written ({why}){f'; {remedy}' if remedy else ''}")


def sync(fd: int) -> None:
    """Flush a file's content to the disk, if its file system can. Raises OSError if the content is lost."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, *_UNSUPPORTED):
            raise


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk. Failures are ignored, since the files themselves are written."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def lock(fd: int) -> bool:
    """Lock an open file until it is closed. Return False if another process holds the lock. On a file system without
    locks, log a note once and return True."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        _report_no_locks(os.strerror(error.errno or 0))
    return True


@functools.cache
def _report_no_locks(why: str) -> None:
    _LOG.warning(
        "note: this file system has no locks (%s): do not start a second tcbench that writes the same run", why
    )


def _check_links(path: Path, most: int = 40) -> None:
    """Check the symbolic links on the way to a path, `most` of them at most. Raises OSError for a link in a sticky
    folder that anyone may write to (such as /tmp), if it belongs neither to this user nor to the owner of the folder.
    The kernel applies this rule to files that are opened (fs.protected_symlinks)."""
    for link in (path, *path.parents):
        if link.is_symlink():
            folder, owner = link.parent.stat(), link.lstat().st_uid
            is_open_to_all = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
            if is_open_to_all and owner not in (os.geteuid(), folder.st_uid):
                raise OSError(errno.EACCES, f"another user created the link {link}")
            if not most:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            _check_links(link.parent / link.readlink(), most - 1)


def _publish(draft: Path, target: Path) -> None:
    """Give the file `draft` the name `target`. Raises FileExistsError if a file of this name exists by now. On a file
    system without hard links an existing file is replaced."""
    try:
        target.hardlink_to(draft)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        draft.replace(target)


def _remove_abandoned(folder: Path) -> None:
    """Remove a scratch folder that no process has locked. Raises OSError if one has."""
    lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        if os.fstat(lock).st_uid == os.geteuid() and (folder / _MARK).exists():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a scratch folder, its marker last. Raises OSError."""
    shutil.rmtree(folder / _WORK, ignore_errors=True)
    if not (folder / _WORK).exists():
        (folder / _MARK).unlink(missing_ok=True)
        folder.rmdir()
