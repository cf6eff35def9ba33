"""The user's cache: folders of files that can be made again, and entries that are found by key.

An entry is a file: a line of JSON (key, content, number of the bytes that follow, their digest), then the bytes. It is
written atomically, so that processes can share the cache. A damaged entry counts as missing. A cache that cannot be
written only costs time."""

import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tcbench.core import files, private
from tcbench.core.errors import StoreError

VARIABLE = "TCBENCH_CACHE"
"""The environment variable that replaces the user's cache folder."""

_LOG = logging.getLogger(__name__)
_SUFFIX = ".plan"

Key = Mapping[str, str | int | bool]
"""The facts that an entry depends on."""


@dataclass(frozen=True)
class Entry:
    """The content of a cache entry: a JSON object and bytes, which may be empty."""

    content: dict[str, Any]
    data: bytes = b""


def folder(name: str) -> Path:
    """Return the folder `name` in the folder that TCBENCH_CACHE names, else in the user's cache folder. It need not
    exist yet. Raises StoreError if TCBENCH_CACHE is not usable or there is no place for a cache.

    Names end in a version, such as `jpeg-v1`. When the format of the files changes, so does the name."""
    override = os.environ.get(VARIABLE)
    if override:
        try:
            return Path(override).expanduser() / name
        except RuntimeError:
            raise StoreError(f"{VARIABLE}={override}: there is no such user; set it to an absolute path") from None
    return _users_folder() / name


def _users_folder() -> Path:
    """Return the user's cache folder, or a temporary one if no home folder is known. Raises StoreError."""
    import platformdirs

    with contextlib.suppress(RuntimeError):  # some versions of platformdirs raise it if no home folder is known
        path = platformdirs.user_cache_path("tcbench")
        if path.is_absolute():
            return path
    return _folder_without_home()


@functools.cache
def _folder_without_home() -> Path:
    """Make a private folder among the temporary files and report it once. Raises StoreError if it belongs to another
    user."""
    path = Path(tempfile.gettempdir()) / f"tcbench-{os.geteuid()}"
    try:
        usable = private.make_folder(path)
    except OSError:
        usable = False
    if not usable:
        raise StoreError(f"there is no home folder, and {path} is not private to this user; set HOME or {VARIABLE}")
    _LOG.warning("note: there is no home folder, so the cache is in %s; set HOME or %s to move it", path, VARIABLE)
    return path


@functools.cache
def source_digest(package: ModuleType) -> str:
    """Return a digest of a package's source files."""
    digest = hashlib.sha256()
    for root in package.__path__:
        for path in sorted(path for suffix in ("*.py", "*.c") for path in Path(root).rglob(suffix)):
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def private_folder(name: str) -> Path | None:
    """Make a cache folder for code, to which no other user can write, and return it. It is in TCBENCH_CACHE or, if
    others can write to that, in the user's cache folder. Return None if neither place is private or writable."""
    for place in (folder(name), _users_folder() / name):
        try:
            if private.make_folder(place):
                return place
        except OSError:
            return None
    return None


class Cache:
    """A folder of entries that are found by key. With `fresh`, existing entries are ignored and replaced. With
    `private`, entries that another user could have written count as missing."""

    def __init__(self, root: Path, *, fresh: bool = False, private: bool = False) -> None:
        self.root = root
        self.fresh = fresh
        self.private = private
        self._warned = False

    @classmethod
    def for_code(cls, name: str, *, fresh: bool = False) -> "Cache":
        """Return a cache for compiled code under this name. It is private, so that no other user can place code in it
        that this user would run."""
        return cls(private_folder(name) or folder(name), fresh=fresh, private=True)

    def path(self, key: Key) -> Path:
        """Return the path of the entry with this key."""
        canonical = json.dumps(dict(key), sort_keys=True, separators=(",", ":"))
        return self.root / (hashlib.sha256(canonical.encode()).hexdigest()[:40] + _SUFFIX)

    def get(self, key: Key) -> Entry | None:
        """Return the entry with this key, or None if there is none, it is damaged, or the cache is `fresh`."""
        if self.fresh:
            return None
        path = self.path(key)
        try:
            content = private.read(path) if self.private else path.read_bytes()
        except OSError:
            return None
        line, _, payload = content.partition(b"\n")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            header = json.loads(line)
            facts = header["key"], header["bytes"], header["sha256"]
            expected = dict(key), len(payload), hashlib.sha256(payload).hexdigest()
            if facts == expected and isinstance(header["content"], dict):
                return Entry(header["content"], payload)
        _LOG.info("%s is damaged and treated as missing", path)
        return None

    def put(self, key: Key, entry: Entry) -> None:
        """Write the entry, or replace an existing one. A failure is logged once."""
        header = {
            "key": dict(key),
            "content": entry.content,
            "bytes": len(entry.data),
            "sha256": hashlib.sha256(entry.data).hexdigest(),
        }
        line = json.dumps(header, sort_keys=True).encode() + b"\n"
        try:
            files.write(self.path(key), line + entry.data)
            if self.private:
                self.path(key).chmod(0o600)
        except (StoreError, OSError) as error:
            if not self._warned:
                _LOG.warning("results cannot be cached and will be computed again: %s", error)
            self._warned = True

    def merge(self, key: Key, update: Callable[[Entry | None], Entry]) -> Entry:
        """Replace the entry with this key by `update(entry)`, and return the new entry. `update` gets None if there is
        no entry. A lock keeps processes from losing each other's updates."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # without a lock the last writer wins
                self.root.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context((self.root / "lock").open("ab"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            entry = update(self.get(key))
            self.put(key, entry)
        return entry

    def keys(self) -> Iterator[Key]:
        """Yield the keys of all readable entries."""
        for path in sorted(self.root.glob(f"*{_SUFFIX}")):
            with contextlib.suppress(OSError, ValueError, KeyError), path.open("rb") as file:
                yield json.loads(file.readline())["key"]

    def drop(self, key: Key) -> None:
        """Remove the entry with this key, if there is one."""
        with contextlib.suppress(OSError):
            self.path(key).unlink()
