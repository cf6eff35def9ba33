"""A small set of images and the feeds that read files."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tcbench.backends.chainer.feeds.base import Feed
from tcbench.backends.chainer.spec import FeedSpec
from tcbench.dataset import ImageFolder, generate

MakeFeed = Callable[[FeedSpec], Feed]


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """24 generated images, each a class of its own, so that a label tells which file a sample is."""
    made = generate(tmp_path_factory.mktemp("images") / "set", n_files=24, workers=1)
    files = tuple((path, number) for number, (path, _) in enumerate(made.files))
    return ImageFolder(made.root, tuple(str(number) for number in range(len(files))), files)


@pytest.fixture
def make_feed(request: pytest.FixtureRequest) -> Iterator[MakeFeed]:
    """The factory of the feed that the test's parameter names; what it makes is closed at the end."""
    name: str = request.param
    module = importlib.import_module(f"tcbench.backends.chainer.feeds.{name}")
    pytest.importorskip({"pillow": "PIL", "opencv": "cv2", "dali": "nvidia.dali"}[name])
    factory: MakeFeed = getattr(module, f"make_{name}_feed")
    made: list[Feed] = []

    def make(spec: FeedSpec) -> Feed:
        made.append(factory(spec))
        return made[-1]

    yield make
    for feed in made:
        feed.close()
        feed.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "class").mkdir()
    return tmp_path / "class"
