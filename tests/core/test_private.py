"""Only what no other user could have written counts as private."""

import os

import pytest

from tcbench.core import cache, private
from tcbench.core.cache import Cache, Entry

KEY, ENTRY = {"work": "x"}, Entry({}, b"code")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A private folder in the cache, with a file."""
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    place = cache.private_folder("code")
    (place / "file").write_bytes(b"mine")
    (place / "file").chmod(0o600)
    return place


def test_a_file_of_this_user_in_folders_of_this_user_is_read(folder):
    assert private.read(folder / "file") == b"mine"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.parent.chmod(0o1777)  # like /tmp: others can remove only their own files there
    assert private.read(folder / "file") == b"mine"


def linked(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    "opened",
    [
        lambda folder: (folder / "file").chmod(0o602),
        lambda folder: folder.chmod(0o777),
        lambda folder: folder.parent.chmod(0o777),
        lambda folder: linked(folder / "file"),
        lambda folder: (linked(folder), folder.with_name("elsewhere").chmod(0o777)),
        lambda folder: ((folder / "file").unlink(), os.mkfifo(folder / "file", 0o600)),
    ],
    ids=["the file", "its folder", "the folder above", "a link", "a link to an open folder", "a pipe"],
)
def test_a_file_that_others_may_have_written_is_not_read(folder, opened):
    opened(folder)
    with pytest.raises(OSError):
        private.read(folder / "file")


@pytest.mark.parametrize("place", ["the file", "its folder", "the folder above", "a link above"])
def test_nothing_of_another_user_is_read(folder, monkeypatch, place):
    """Root changes the owner of the files. Other users patch their own user id."""
    if os.geteuid() == 0:
        if place == "a link above":
            linked(folder)
        path = {"the file": folder / "file", "the folder above": folder.parent}.get(place, folder)
        os.chown(path, 4242, 4242, follow_symlinks=False)
    else:
        monkeypatch.setattr(private.os, "geteuid", lambda: 4242)
    with pytest.raises(PermissionError):
        private.read(folder / "file")


def test_code_is_kept_in_the_users_own_folder_where_others_may_write_to_the_cache(folder, tmp_path):
    cache = Cache.for_code("code")
    cache.put(KEY, ENTRY)
    assert (cache.root, Cache.for_code("code").get(KEY)) == (folder, ENTRY)
    folder.chmod(0o777)
    assert cache.get(KEY) is None
    cache = Cache.for_code("code")
    assert cache.root.is_relative_to(tmp_path / "own")
    cache.put(KEY, ENTRY)
    assert cache.get(KEY) == ENTRY
