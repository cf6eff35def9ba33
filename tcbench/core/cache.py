"""The user's cache: the folder of everything that can be made again, and entries by key in it, kept across processes.

An entry is one file: a line of JSON (its key, its content, how many bytes follow and their digest), then bytes. It
appears in one rename, so that processes may share the cache; one that cannot be read counts as missing and is written
anew. A cache that cannot be written costs time, never a run.
"""

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
"""The environment variable that names another folder than the user's cache folder."""

_LOG = logging.getLogger(__name__)
_SUFFIX = ".plan"

Key = Mapping[str, str | int | bool]
"""Everything that an entry depends on."""


@dataclass(frozen=True)
class Entry:
    """A JSON object, and bytes (or none)."""

    content: dict[str, Any]
    data: bytes = b""


def folder(name: str) -> Path:
    """The folder of that name in TCBENCH_CACHE, or in the user's cache folder. It may not be there yet. A name that
    ends in a version (`jpeg-v1`) names the form of what lies in it: another form takes another name."""
    override = os.environ.get(VARIABLE)
    if override:
        try:
            return Path(override).expanduser() / name
        except RuntimeError:
            raise StoreError(f"{VARIABLE}={override}: no such user's home is known; name a folder from /") from None
    return _users_folder() / name


def _users_folder() -> Path:
    """Return the user's cache folder, or where no home is known that of `_folder_without_home`. Raises StoreError."""
    import platformdirs

    with contextlib.suppress(RuntimeError):  # of a platformdirs that knows no home
        path = platformdirs.user_cache_path("tcbench")
        if path.is_absolute():
            return path
    return _folder_without_home()


@functools.cache
def _folder_without_home() -> Path:
    """Return a folder of the user's own among the temporary files, and report it once. Raises StoreError where that is
    another's."""
    path = Path(tempfile.gettempdir()) / f"tcbench-{os.geteuid()}"
    try:
        usable = private.make_folder(path)
    except OSError:
        usable = False
    if not usable:
        raise StoreError(f"no home is known, and {path} is not this user's alone; set HOME or {VARIABLE}")
    _LOG.warning("note: no home is known, so the cache is in %s; HOME or %s names another place", path, VARIABLE)
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
    """Return a folder of that name to which no other user can write, made if it is not there: in TCBENCH_CACHE or,
    where others can write to that, in the user's cache folder; None where none can be made. What is run or loaded is
    kept there alone."""
    for place in (folder(name), _users_folder() / name):
        try:
            if private.make_folder(place):
                return place
        except OSError:
            return None
    return None


class Cache:
    """Entries by key in a folder. `fresh` ignores what is there and writes it anew. `private`: entries that another
    user could have written count as missing."""

    def __init__(self, root: Path, *, fresh: bool = False, private: bool = False) -> None:
        self.root = root
        self.fresh = fresh
        self.private = private
        self._complained = False

    @classmethod
    def of_code(cls, name: str, *, fresh: bool = False) -> "Cache":
        """Make a cache of what is run or loaded, which holds nothing that another user could have written."""
        return cls(private_folder(name) or folder(name), fresh=fresh, private=True)

    def path(self, key: Key) -> Path:
        canonical = json.dumps(dict(key), sort_keys=True, separators=(",", ":"))
        return self.root / (hashlib.sha256(canonical.encode()).hexdigest()[:40] + _SUFFIX)

    def get(self, key: Key) -> Entry | None:
        """The entry of exactly this key; None where there is none, it is damaged, or the cache is to be fresh."""
        if self.fresh:
            return None
        path = self.path(key)
        try:
            content = private.read(path) if self.private else path.read_bytes()
        except OSError:
            return None
        line, _, data = content.partition(b"\n")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            header = json.loads(line)
            facts = header["key"], header["bytes"], header["sha256"]
            whole = facts == (dict(key), len(data), hashlib.sha256(data).hexdigest())
            if whole and isinstance(header["content"], dict):
                return Entry(header["content"], data)
        _LOG.info("%s is damaged and counts as missing", path)
        return None

    def put(self, key: Key, entry: Entry) -> None:
        """Keep the entry, in place of one that was there."""
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
            if not self._complained:
                _LOG.warning("what was made cannot be kept and will be made again: %s", error)
            self._complained = True

    def merge(self, key: Key, merged: Callable[[Entry | None], Entry]) -> Entry:
        """Keep, and return, what `merged` makes of the entry that is there now, undisturbed by others that merge."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # where no lock is to be had the last one's entry stays
                self.root.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context((self.root / "lock").open("ab"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            entry = merged(self.get(key))
            self.put(key, entry)
        return entry

    def keys(self) -> Iterator[Key]:
        """Yield the key of every entry whose first line can be read."""
        for path in sorted(self.root.glob(f"*{_SUFFIX}")):
            with contextlib.suppress(OSError, ValueError, KeyError), path.open("rb") as file:
                yield json.loads(file.readline())["key"]

    def drop(self, key: Key) -> None:
        with contextlib.suppress(OSError):
            self.path(key).unlink()
