"""Files and folders that no other user can write to. Code is loaded from a cache only if the cache is private."""

import errno
import grp
import os
import pwd
import stat
from pathlib import Path


def is_private(path: Path, most_links: int = 40) -> bool:
    """Return whether only this user and root can write to or replace a file or folder.

    All folders above it, and all symbolic links on the way, must belong to this user or root. None of the folders may
    be writable for others, unless it is sticky (as /tmp is), so that others can remove only their own files."""
    path = path.absolute()
    for place in (path, *path.parents):
        try:
            state = place.lstat()
            target = place.parent / place.readlink() if stat.S_ISLNK(state.st_mode) else None
        except OSError:
            return False
        if state.st_uid not in (0, os.geteuid()):
            return False
        if target is None and _others_write(state) and not (place != path and state.st_mode & stat.S_ISVTX):
            return False
        if target is not None and not (most_links and is_private(target, most_links - 1)):
            return False
    return True


def make_folder(path: Path) -> bool:
    """Create a folder that only this user may enter, unless it exists, and return whether it is private. Raises
    OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    return is_private(path)


def read(path: Path) -> bytes:
    """Return the content of a private file in a private folder. Raises OSError for any other file.

    Links are not followed. The checks use the open descriptors, so that a file cannot be swapped in between."""
    if not is_private(path.parent):
        raise PermissionError(errno.EACCES, "other users can write to its folder")
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        file = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with open(file, "rb") as content:
            states = os.fstat(folder), os.fstat(file)
            owned = all(state.st_uid in (0, os.geteuid()) and not _others_write(state) for state in states)
            if not (owned and stat.S_ISREG(states[1].st_mode)):
                raise PermissionError(errno.EACCES, "another user may have written it")
            return content.read()
    finally:
        os.close(folder)


def _others_write(state: os.stat_result) -> bool:
    """Return whether the mode of a file or folder lets other users write to it. Permission for the user's own private
    group, which has no other members, does not count."""
    if not state.st_mode & stat.S_IWGRP or state.st_mode & stat.S_IWOTH:
        return bool(state.st_mode & stat.S_IWOTH)
    try:
        group, user = grp.getgrgid(state.st_gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return True
    return (group.gr_gid, group.gr_name) != (user.pw_gid, user.pw_name) or bool({*group.gr_mem} - {user.pw_name})
