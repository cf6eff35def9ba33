import logging
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import platformdirs
import pytest

from tcbench.core import cache as module
from tcbench.core.cache import Cache, Entry
from tcbench.core.errors import StoreError

KEY = {"work": "a convolution", "gpu": "H200", "sm": 90, "autotuned": True}
ENTRY = Entry({"plan": "eng1", "timed": [1.5]}, b"\x00bytes\nwith a newline\n")


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "plans")


def test_what_was_put_comes_back_in_another_process_too_by_the_whole_key_only_until_it_is_dropped(cache):
    cache.put(KEY, ENTRY)
    assert cache.get(KEY) == Cache(cache.root).get(KEY) == ENTRY
    for name in KEY:
        assert cache.get({**KEY, name: False if name == "autotuned" else "another"}) is None
    cache.drop(KEY)
    assert cache.get(KEY) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"not JSON at all",
        lambda content: b"[1, 2]\n",
        lambda content: content[:-1],
        lambda content: content + b"more",
        lambda content: content.replace(b"bytes\nwith", b"other\nwith"),
        lambda content: content.replace(b"a convolution", b"another work"),
        lambda content: b'{"key": null}\n' + content,
    ],
    ids=["empty", "text", "list", "cut", "longer", "changed", "other key", "other header"],
)
def test_a_damaged_entry_counts_as_missing_and_is_written_anew(cache, damage):
    cache.put(KEY, ENTRY)
    path = cache.path(KEY)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get(KEY) is None
    cache.put(KEY, ENTRY)
    assert cache.get(KEY) == ENTRY


def test_a_cache_that_cannot_be_written_complains_once_and_no_more(tmp_path, caplog):
    place = tmp_path / "file"
    place.write_text("in the way")
    cache = Cache(place)
    with caplog.at_level(logging.WARNING):
        cache.put(KEY, ENTRY)
        cache.put(KEY, ENTRY)
    assert cache.get(KEY) is None
    [record] = caplog.records
    assert str(place) in record.getMessage()


def test_of_what_many_merge_nothing_is_lost(cache):
    def add(_):
        return Cache(cache.root).merge(KEY, lambda entry: Entry({"n": 1 + (entry.content["n"] if entry else 0)}))

    with ThreadPoolExecutor(8) as pool:
        merged = list(pool.map(add, range(24)))
    assert sorted(entry.content["n"] for entry in merged) == [*range(1, 25)]
    assert cache.get(KEY) == Entry({"n": 24})


def test_the_users_cache_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    assert module.folder("plans-v1") == tmp_path / "plans-v1"
    monkeypatch.delenv("TCBENCH_CACHE")
    assert module.folder("plans-v1").name == "plans-v1"
    assert "tcbench" in str(module.folder("plans-v1"))


@pytest.mark.parametrize("home", ["~/.cache/tcbench", None])
def test_without_a_home_the_cache_is_in_a_folder_of_the_users_own_and_that_is_reported_once(
    tmp_path, monkeypatch, caplog, home
):
    def unknown(_: str) -> Path:
        if home is None:
            raise RuntimeError("could not determine the home directory")
        return Path(home)

    monkeypatch.delenv("TCBENCH_CACHE", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_path", unknown)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    module._folder_without_home.cache_clear()
    folder_path = tmp_path / f"tcbench-{os.geteuid()}"
    assert [module.folder(name) for name in ("a", "b")] == [folder_path / "a", folder_path / "b"]
    assert len(caplog.records) == 1
    module._folder_without_home.cache_clear()
    folder_path.chmod(0o777)
    with pytest.raises(StoreError, match="is not private to this user; set HOME or TCBENCH_CACHE"):
        module._users_folder()
    monkeypatch.setenv("TCBENCH_CACHE", "~no-such-user/x")
    with pytest.raises(StoreError, match="there is no such user"):
        module.folder("a")
