"""A function in C is compiled and checked once; where it cannot be had nobody is told, and nothing fails."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tcbench.engine.accelerators.cpu import compiled

pytestmark = pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler on this machine")


class Check:
    """Counts what it was asked, and says whether the function answers 7."""

    calls = 0

    def __call__(self, library: ctypes.CDLL) -> bool:
        self.calls += 1
        return bool(library.answer() == 7)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    return Check()


@pytest.fixture
def source(tmp_path: Path) -> Callable[[str], Path]:
    def write(answer: str) -> Path:
        path = tmp_path / "answer.c"
        path.write_text(f"int answer(void) {{ return {answer}; }}")
        return path

    return write


def test_it_is_compiled_and_checked_once_for_each_source(
    source: Callable[[str], Path], check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert compiled.load_library(source("7"), check).answer() == 7  # type: ignore[union-attr]
        assert compiled.load_library(source("8"), check) is None
        assert compiled.load_library(source("nothing"), check) is None
        assert check.calls == 2
        monkeypatch.setattr(compiled, "_compile", lambda *_: pytest.fail("compiled again"))


def test_what_another_user_has_put_into_a_shared_cache_is_not_loaded(
    source: Callable[[str], Path], check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.load_library(source("7"), check)
    cache = Path(os.environ["TCBENCH_CACHE"])
    for folder in (cache, cache / "compiled-v1"):  # others may write to it, so nothing there counts any more
        folder.chmod(0o777)
        for calls in (2, 2):
            assert compiled.load_library(source("7"), check) is not None
            assert check.calls == calls


def test_a_library_that_this_process_may_not_load_is_not_remembered_as_one_that_does_not_serve(
    source: Callable[[str], Path], check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> ctypes.CDLL:
        raise OSError("failed to map segment from shared object")

    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", refuse)
        assert compiled.load_library(source("7"), check) is None
    monkeypatch.delattr(os, "memfd_create")
    assert compiled.load_library(source("7"), check) is not None


def test_without_a_compiler_or_a_folder_to_write_to_there_is_none_or_it_is_not_kept(
    source: Callable[[str], Path], check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCBENCH_CACHE", "/proc/nowhere")
    assert compiled.load_library(source("7"), check) is not None
    monkeypatch.setenv("PATH", "")
    assert compiled.load_library(source("7"), check) is None
