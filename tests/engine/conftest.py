"""A small set of images; a small network; the accelerator of what is called outside a session."""

from collections.abc import Iterator

import pytest
from networks import THIN

from tcbench.engine.accelerators import protocol as accelerators
from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator
from tcbench.engine.feeds.dataset import ImageFolder
from tcbench.engine.feeds.generated import generate
from tcbench.engine.models import MODELS


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """24 generated images, each a class of its own, so that a label tells which file a sample is."""
    images = generate(tmp_path_factory.mktemp("images") / "set", n_files=24, workers=1)
    files = tuple((path, number) for number, (path, _) in enumerate(images.files))
    return ImageFolder(images.root, tuple(str(number) for number in range(len(files))), files)


@pytest.fixture
def thin_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model "thin" that computes little."""
    monkeypatch.setitem(MODELS, "thin", THIN["resnet18"][0])


@pytest.fixture
def on_the_processor() -> Iterator[None]:
    """Operations compute on the processor."""
    accelerator = NumpyAccelerator(threads=2)
    with accelerator.enter(), accelerators.use(accelerator):
        yield
