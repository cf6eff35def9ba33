"""Finding, checking and generating images."""

import contextlib
import errno
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median
from typing import Any
from unittest.mock import Mock

import odd_images
import pytest
from PIL import Image

from tcbench.core.errors import DataError
from tcbench.core.text import printable
from tcbench.engine.feeds import dataset, generated, image_header, pictures
from tcbench.engine.feeds.dataset import scan
from tcbench.engine.feeds.generated import ensure_generated, generate, read_manifest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The set's place in a cache of its own, small so that tests are quick."""
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(generated.generate, "__kwdefaults__", {"n_files": 4, "progress": None, "workers": 1})
    return tmp_path / "cache" / generated.SET_VERSION


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dataset.ImageFolder:
    """Enough files for their statistics."""
    return generate(tmp_path_factory.mktemp("photos") / "set", n_files=64, workers=1)


def _touch(path: Path, data: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _digest(root: Path) -> dict[str, str]:
    return {p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in root.rglob("*.JPEG")}


# ------------------------------------------------------------------------------------------------------------- scan


def test_scan_finds_classes_and_files_in_sorted_order(tmp_path: Path) -> None:
    for name in ("n02/b.JPEG", "n02/a.jpg", "n01/z.jpeg", "n01/notes.txt", "n01/.hidden.jpg", ".git/x.jpg", "top.jpg"):
        _touch(tmp_path / name, odd_images.accepted()["plain"])
    (tmp_path / "n00_empty").mkdir()
    images = scan(tmp_path)
    assert images.classes == ("n01", "n02")
    assert [(path.relative_to(tmp_path).as_posix(), label) for path, label in images.files] == [
        ("n01/z.jpeg", 0),
        ("n02/a.jpg", 1),
        ("n02/b.JPEG", 1),
    ]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda root: None, "does not exist"),
        (_touch, "is a file"),
        (Path.mkdir, "no class folders"),
        (lambda root: _touch(root / "a.jpg"), "no class folders"),
        (lambda root: _touch(root / "class" / "a.png"), "no .jpg or .jpeg image"),
    ],
)
def test_scan_says_in_one_line_what_is_wrong_and_what_mends_it(tmp_path: Path, make: Any, says: str) -> None:
    root = tmp_path / "images"
    make(root)
    with pytest.raises(DataError) as caught:
        scan(root)
    message = str(caught.value)
    assert all(
        part in message for part in (says, str(root), "CLASS/IMAGE.jpg", "tcbench data make", "--data synthetic")
    )
    assert "\n" not in message


@pytest.mark.parametrize("name", ["gif", "16-bit png", "300 megapixels", "cmyk of unknown sign", "empty"])
def test_scan_names_the_file_that_not_every_feed_would_take(tmp_path: Path, name: str) -> None:
    data, reason = odd_images.refused()[name]
    _touch(tmp_path / "a" / "good.jpg", odd_images.accepted()["plain"])
    _touch(tmp_path / "b" / "bad.jpg", data)
    with pytest.raises(DataError) as caught:
        scan(tmp_path)
    assert str(caught.value).startswith(f"image {tmp_path / 'b' / 'bad.jpg'} {reason}")
    assert str(caught.value).endswith(f"expected {image_header.EXPECTED}: convert, rename or remove it")
    assert len(scan(tmp_path, checked=True).files) == 2


def test_scan_counts_all_that_it_refuses(tmp_path: Path) -> None:
    for number in range(5):
        _touch(tmp_path / "a" / f"{number}.jpg", odd_images.refused()["gif"][0] if number % 2 else b"")
    with pytest.raises(DataError, match=r"0\.jpg is empty.* \(4 more of 5 are refused\)"):
        scan(tmp_path)


def test_scan_tells_how_far_it_is_when_there_is_much_to_look_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "_FILES_PER_PROGRESS", 2)
    for number in range(5):
        _touch(tmp_path / "a" / f"{number}.jpg", odd_images.accepted()["plain"])
    seen: list[tuple[int, int]] = []
    scan(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2, 5), (4, 5)]


def test_a_name_that_is_not_utf8_is_refused_for_all_feeds(tmp_path: Path) -> None:
    """DALI cannot be given it."""
    _touch(Path(os.fsdecode(os.fsencode(tmp_path / "a") + b"/n\xff.jpg")), odd_images.accepted()["plain"])
    says = printable(os.fsdecode(b"n\xff.jpg")) + " has a name that is not UTF-8: convert, rename"
    with pytest.raises(DataError, match=re.escape(says)):
        scan(tmp_path)


@pytest.mark.parametrize("make", [_touch, lambda path: _touch(path / "x.jpg"), lambda path: path.mkdir()])
def test_a_name_in_a_message_is_one_line_that_no_terminal_acts_on(tmp_path: Path, make: Any) -> None:
    """A broken image, a folder without classes, an empty folder."""
    root = tmp_path / os.fsdecode("a\nb\x1b[31m\x9b\u202e.jpg".encode())
    make(root)
    messages = []
    for folder in (root, tmp_path):
        with contextlib.suppress(DataError):
            scan(folder)
            continue
        with pytest.raises(DataError) as caught:
            scan(folder)
        messages.append(str(caught.value))
    assert messages
    assert all(message.isprintable() for message in messages)
    assert r"a\nb\x1b[31m" in messages[0] and printable(root.name) in messages[0]


def test_scan_names_the_folder_it_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _touch(tmp_path / "class" / "a.jpg")
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "class":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"class cannot be read \(permission denied\).*tcbench data make"):
        scan(tmp_path)


# --------------------------------------------------------------------------------------------------------- generated


def test_generated_images_are_like_imagenets(photos: dataset.ImageFolder) -> None:
    sizes = []
    for path, _ in photos.files:
        with Image.open(path) as image:
            sizes.append(image.size)
            assert image.mode == "RGB"
            assert "progressive" not in image.info
            # 4:2:0: one chroma sample per 2 × 2 luminance samples.
            assert [component[1:3] for component in image.layer] == [(2, 2), (1, 1), (1, 1)]  # type: ignore[attr-defined]
    portrait = sum(height > width for width, height in sizes) / len(sizes)
    assert len(photos.files) == 64
    assert len(photos.classes) == 16
    assert 480 <= median(width for width, _ in sizes) <= 520
    assert 330 <= median(height for _, height in sizes) <= 400
    assert 0.05 < portrait < 0.4
    assert len(set(sizes)) > 8
    assert 90_000 <= mean(path.stat().st_size for path, _ in photos.files) <= 130_000


def test_classes_differ_in_colour(photos: dataset.ImageFolder) -> None:
    """The nearest class mean of three colour channels tells the class far more often than chance (1/16) would."""
    import numpy as np

    means = np.stack([np.asarray(Image.open(path), np.float32).mean((0, 1)) for path, _ in photos.files])
    means = means / means.sum(1, keepdims=True)
    labels = np.array([label for _, label in photos.files])
    first = np.arange(len(labels)) % 4 < 2  # four files per class: two to learn from, two to ask
    centres = np.stack([means[first & (labels == label)].mean(0) for label in range(16)])
    guess = np.argmin(((means[~first, None] - centres) ** 2).sum(-1), axis=1)
    assert (guess == labels[~first]).mean() > 0.5


def test_bytes_do_not_depend_on_the_number_of_workers_or_files(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    first = generate(tmp_path / "one", n_files=8, workers=1)
    second = generate(tmp_path / "two", n_files=6, workers=2, progress=lambda done, total: seen.append((done, total)))
    alone, together = _digest(first.root), _digest(second.root)
    assert len(together) == 6
    assert together.items() <= alone.items()
    assert seen == [(done, 6) for done in range(7)]


def test_a_complete_set_is_taken_as_it_is(cache: Path) -> None:
    first = ensure_generated()
    before = cache.stat().st_mtime_ns
    assert first.root == cache
    assert len(first.files) == 4
    assert ensure_generated(progress=lambda *_: pytest.fail("makes it again")) == first
    assert cache.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda image, _: image.unlink(),
        lambda image, _: _touch(image.with_name("extra.jpg")),
        lambda image, _: os.truncate(image, 1000),
        lambda _, manifest: manifest.unlink(),
        lambda _, manifest: os.truncate(manifest, 20),
        lambda _, manifest: manifest.write_text(manifest.read_text().replace(generated.SET_VERSION, "jpeg-v0")),
    ],
    ids=["a file less", "a file more", "a file cut", "no manifest", "half a manifest", "another version"],
)
def test_a_damaged_set_is_made_anew(cache: Path, damage: Any) -> None:
    complete = _digest(ensure_generated().root)
    damage(next(cache.rglob("*.JPEG")), cache / "manifest.json")
    again = ensure_generated()
    manifest = read_manifest(cache)
    assert _digest(again.root) == complete
    assert manifest is not None
    assert manifest.version == generated.SET_VERSION
    assert len(again.files) == 4
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]


def test_an_interrupted_generation_ends_soon_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = []
    render = pictures.render

    def counted(index: int) -> tuple[Image.Image, int]:
        rendered.append(index)
        return render(index)

    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    monkeypatch.setattr(pictures, "render", counted)
    with pytest.raises(KeyboardInterrupt):
        generate(n_files=64, progress=interrupt)
    assert len(rendered) < 64
    assert list(cache.parent.iterdir()) == []


@contextlib.contextmanager
def _generating(folder: Path, out: Path, n_files: int) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that generates with two workers and has finished some files."""
    script = folder / "make.py"
    script.write_text(
        "import pathlib, tcbench.engine.feeds.generated as d\n"
        f"d.generate(pathlib.Path({str(out)!r}), n_files={n_files}, workers=2,\n"
        "           progress=lambda done, of: print(done, flush=True))\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        while int(process.stdout.readline()) == 0:
            pass
        yield process


@pytest.mark.slow
def test_ctrl_c_stops_the_workers_and_leaves_nothing(tmp_path: Path) -> None:
    """The terminal sends SIGINT to the whole process group."""
    with _generating(tmp_path, tmp_path / "out" / "set", n_files=100_000) as process:
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGINT
    assert stderr.count("Traceback") == 1
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_what_a_killed_generation_left_is_taken_away_by_the_next(tmp_path: Path) -> None:
    out = tmp_path / "out" / "set"
    with _generating(tmp_path, out, n_files=5000) as process:
        process.kill()
    assert len(list(out.parent.iterdir())) == 1
    assert len(generated.generate(out, n_files=4, workers=1).files) == 4
    assert list(out.parent.iterdir()) == [out]


def test_of_two_generations_at_once_one_set_stays(cache: Path) -> None:
    barrier = threading.Barrier(2)

    def make(_: int) -> dataset.ImageFolder:
        barrier.wait()
        return ensure_generated()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(make, range(2))
    assert first == second == scan(cache)
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]


def test_the_winner_of_a_race_is_not_replaced(cache: Path) -> None:
    inode = 0

    def overtake(done: int, total: int) -> None:
        nonlocal inode
        if done == total:
            inode = generate().root.stat().st_ino

    generate(progress=overtake)
    assert cache.stat().st_ino == inode


@pytest.mark.parametrize("kind", ["file", "incomplete set"])
def test_what_another_process_left_unfinished_meanwhile_is_replaced(cache: Path, kind: str) -> None:
    def leave(done: int, total: int) -> None:
        if done == total and not cache.exists():
            if kind == "incomplete set":
                cache.mkdir()
            (cache if kind == "file" else cache / "n01440764").touch()

    assert len(generate(progress=leave).files) == 4


def test_generating_replaces_an_earlier_set(cache: Path) -> None:
    generate()
    generate(n_files=5)
    assert len(scan(cache).files) == 5


def test_generating_never_replaces_anything_else(tmp_path: Path) -> None:
    photo = tmp_path / "mine" / "holiday" / "a.jpg"
    _touch(photo)
    with pytest.raises(DataError, match="is not a generated set"):
        generate(tmp_path / "mine", n_files=1, workers=1)
    assert photo.read_bytes() == b"x"


@pytest.mark.parametrize(("code", "says"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "cannot write")])
def test_a_cache_that_takes_no_more_is_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch, code: int, says: str
) -> None:
    monkeypatch.setattr(Path, "write_bytes", Mock(side_effect=OSError(code, os.strerror(code))))
    with pytest.raises(DataError, match=says) as caught:
        ensure_generated()
    assert str(cache) in str(caught.value)
    assert "TCBENCH_CACHE" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(cache.parent.iterdir()) == []


def test_a_cache_below_a_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _touch(tmp_path / "file")
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot write the generated images"):
        ensure_generated()


def test_importing_it_costs_no_array_library() -> None:
    heavy = ("numpy", "PIL", "platformdirs")
    code = f"import sys, tcbench.engine.feeds.generated; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "[]"
