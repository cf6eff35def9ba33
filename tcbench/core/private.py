"""Files and folders that no other user could have written: what is run or loaded from a cache lies in these."""

import errno
import grp
import os
import pwd
import stat
from pathlib import Path


def is_private(path: Path, most_links: int = 40) -> bool:
    """Return whether only this user and root can write to a file or folder or replace it. Every folder above belongs to
    one of the two, and so do the links among them; others may write to none, unless they can remove only their own
    files there (a sticky folder, such as /tmp)."""
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
    """Make a folder that only this user may enter, unless it is there; return whether it is private. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    return is_private(path)


def read(path: Path) -> bytes:
    """Return the content of a private file in a private folder. The file is opened once and follows no link; folder and
    file are checked as they were opened. Raises OSError for any other file."""
    if not is_private(path.parent):
        raise PermissionError(errno.EACCES, "other users may write to its folder")
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
    """Whether others may write; a group of the user's own name in which nobody else is does not count."""
    if not state.st_mode & stat.S_IWGRP or state.st_mode & stat.S_IWOTH:
        return bool(state.st_mode & stat.S_IWOTH)
    try:
        group, user = grp.getgrgid(state.st_gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return True
    return (group.gr_gid, group.gr_name) != (user.pw_gid, user.pw_name) or bool({*group.gr_mem} - {user.pw_name})
