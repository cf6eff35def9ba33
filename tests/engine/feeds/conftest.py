"""The feeds that read files."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.spec import FeedSpec

MakeFeed = Callable[[FeedSpec], Feed]


@pytest.fixture(autouse=True)
def _on_the_processor(on_the_processor: None) -> None: ...


@pytest.fixture
def make_feed(request: pytest.FixtureRequest) -> Iterator[MakeFeed]:
    """The factory of the feed that the test's parameter names; what it makes is closed at the end."""
    name: str = request.param
    pytest.importorskip({"opencv": "cv2", "dali": "nvidia.dali"}.get(name, "PIL"))
    module = importlib.import_module(
        "tcbench.engine.backends.chainer.pillow" if name == "chainer" else f"tcbench.engine.feeds.{name}"
    )
    factories = {"chainer": "ChainerFeed", "pillow": "PillowFeed"}
    factory: MakeFeed = getattr(module, factories.get(name, f"make_{name}_feed"))
    feeds: list[Feed] = []

    def make(spec: FeedSpec) -> Feed:
        feeds.append(factory(spec))
        return feeds[-1]

    yield make
    for feed in feeds:
        feed.close()
        feed.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "class").mkdir()
    return tmp_path / "class"
