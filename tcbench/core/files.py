"""Files that are there whole or not at all, and folders to work in that nothing leaves behind.

Both are made in a folder beside what they are for, which holds a file that marks it as ours, and which is held by a
lock. The kernel gives the lock up when a process dies: a marked folder without one was left by a process that was
killed, and is removed. Nothing else ever is, whatever its name.
"""

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
"""Bytes of a line of records, or of a document, that are read; none of tcbench's comes near it."""

_LOG = logging.getLogger(__name__)

_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of a system call that a kernel or a file system does not have."""

ANOTHER_FOLDER = "name another folder with --out"
_HEX_DIGITS = 16
_MARK = "made-by-tcbench"
"""The file in a scratch folder that says whose it is; what is worked on stands in `_WORK` beside it."""
_WORK = "work"


def opened(path: Path) -> IO[bytes]:
    """Open a file for reading, after its UTF-8 byte order mark if it has one. Raises OSError, also for a device or a
    pipe, which may have no end, and for UTF-16 text."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    start = os.pread(fd, len(codecs.BOM_UTF8), 0) if stat.S_ISREG(mode) else b""
    is_utf_16 = re.match(rb"\xff\xfe|\xfe\xff|[\t -~]\0|\0[\t -~]", start)
    if stat.S_ISREG(mode) and not is_utf_16:
        os.lseek(fd, len(start) if start == codecs.BOM_UTF8 else 0, os.SEEK_SET)
        return open(fd, "rb")
    os.close(fd)
    if is_utf_16:
        raise OSError(errno.EILSEQ, "UTF-16 text; `iconv -f UTF-16 -t UTF-8` makes UTF-8 of it")
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "not a regular file")


def read(path: Path, most: int = LARGEST) -> bytes:
    """The content of a file of at most so many bytes. Raises OSError for a larger one, and as `opened`."""
    with opened(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than {most / 2**20:g} MiB")
    return data


def unnamed_file(content: bytes) -> int:
    """Return the descriptor of a new file without a name that holds the content, at its beginning. Raises OSError."""
    try:
        fd = os.memfd_create("tcbench")
    except (AttributeError, OSError):  # some Pythons lack it, some sandboxes refuse it
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def write(path: Path, data: bytes, remedy: str = "") -> None:
    """Put a file in place, as `replacing` does."""
    with replacing(path, remedy) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path, remedy: str = "", *, taken: str | None = None) -> Iterator[IO[bytes]]:
    """A file to write into that takes the path's place at the end; until then, and if anything goes wrong, what was
    there stays. Folders are made. What is no file (a device, a pipe) is written to as it is. Raises StoreError, with
    `remedy`, when it cannot be written. `taken`: what is there is kept, and this is why."""
    try:
        if taken is not None and os.path.lexists(path):
            raise FileExistsError
        _check_links(path)
        if path.exists() and not path.is_file():
            with path.open("wb") as file:  # a folder raises
                yield file
            return
        target = Path(os.path.realpath(path))  # a link stays one
        if not target.parent.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
        before = target.stat().st_mode if target.exists() else None
        if before is not None and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with scratch(target.parent) as folder:
            draft = folder / "draft"
            with draft.open("xb") as file:
                if before is not None:
                    with contextlib.suppress(OSError):  # a file system without modes
                        os.fchmod(file.fileno(), stat.S_IMODE(before))
                yield file
                file.flush()
                sync(file.fileno())
            if taken is None:
                draft.replace(target)
            else:
                _publish(draft, target)
        sync_folder(target.parent)
    except FileExistsError as error:
        raise StoreError(taken or f"{path}: cannot be written ({error.strerror})") from None
    except OSError as error:
        raise not_writable(path, error.strerror, remedy) from None


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A folder to work in, gone at the end, and with it what killed processes left of theirs. Raises OSError."""

    for left in parent.glob(".tcbench-" + "[0-9a-f]" * _HEX_DIGITS):
        with contextlib.suppress(OSError):
            _remove_left(left)
    folder = parent / f".tcbench-{secrets.token_hex(_HEX_DIGITS // 2)}"
    folder.mkdir(mode=0o700)
    lock = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks, where nothing is removed either
            fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / _MARK).touch()
        (folder / _WORK).mkdir()
        yield folder / _WORK
    finally:
        with contextlib.suppress(OSError):
            _remove(folder)
        os.close(lock)


def not_writable(path: Path, why: str | None, remedy: str = ANOTHER_FOLDER) -> StoreError:
    """One line that says so."""
    return StoreError(f"{path}: cannot be written ({why}){f'; {remedy}' if remedy else ''}")


def sync(fd: int) -> None:
    """Make a file's content durable where its file system can. Raises OSError where the content is lost."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, *_UNSUPPORTED):
            raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. A failure changes nothing that was written, and is not reported."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def lock(fd: int) -> bool:
    """Lock an open file against other processes until it is closed; False where another process holds the lock. A file
    system without locks is reported once, and its files count as locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        _report_no_locks(os.strerror(error.errno or 0))
    return True


@functools.cache
def _report_no_locks(why: str) -> None:
    _LOG.warning("note: this file system has no locks (%s): start no second tcbench that writes the same run", why)


def _check_links(path: Path, most: int = 40) -> None:
    """Raises OSError for a link on the way that is neither ours nor its folder's owner's, where anyone may write to
    that folder. The kernel has this rule (fs.protected_symlinks), for files that are opened."""
    for link in (path, *path.parents):
        if link.is_symlink():
            folder, owner = link.parent.stat(), link.lstat().st_uid
            anyones = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
            if anyones and owner not in (os.geteuid(), folder.st_uid):
                raise OSError(errno.EACCES, f"another user laid the link {link}")
            if not most:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            _check_links(link.parent / link.readlink(), most - 1)


def _publish(draft: Path, target: Path) -> None:
    """Give the draft its name. Raises FileExistsError where another process was first."""
    try:
        target.hardlink_to(draft)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        draft.replace(target)


def _remove_left(folder: Path) -> None:
    """Remove a scratch folder that nobody holds. Raises OSError where somebody does."""
    lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        if os.fstat(lock).st_uid == os.geteuid() and (folder / _MARK).exists():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a scratch folder, its mark last. Raises OSError."""
    shutil.rmtree(folder / _WORK, ignore_errors=True)
    if not (folder / _WORK).exists():
        (folder / _MARK).unlink(missing_ok=True)
        folder.rmdir()
