"""A small set of images."""

from __future__ import annotations

import pytest

from tcbench.backends.feeds.dataset import ImageFolder
from tcbench.backends.feeds.generated import generate


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """24 generated images, each a class of its own, so that a label tells which file a sample is."""
    made = generate(tmp_path_factory.mktemp("images") / "set", n_files=24, workers=1)
    files = tuple((path, number) for number, (path, _) in enumerate(made.files))
    return ImageFolder(made.root, tuple(str(number) for number in range(len(files))), files)
