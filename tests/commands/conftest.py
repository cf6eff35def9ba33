"""Fixtures that several tests of commands share."""

from pathlib import Path

import pytest

from tcbench.commands.forecast import forecast
from tcbench.commands.numerics.runner import NumericsRunner
from tcbench.core.numerics import TrainingJob
from tcbench.engine.accelerators.ceilings import Ceilings
from tcbench.engine.feeds import generated as jpegs
from tcbench.engine.numerics import worker


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of JPEGs, as generated ones are."""
    root = tmp_path_factory.mktemp("images") / "set"
    jpegs.generate(root, n_files=32, workers=1)
    return root


@pytest.fixture
def generated(tmp_path: Path, images: Path) -> None:
    """Put the default images into the cache: making 512 takes 15 seconds of CPU time."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / jpegs.generated_root().name).symlink_to(images)


@pytest.fixture
def trains_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tcbench numerics` trains in the test's process in place of one for each job, which would import Chainer anew."""

    def run(runner, jobs):
        for job in jobs:
            yield job, (worker.run if isinstance(job, TrainingJob) else worker.parity)(job, lambda message: None)

    monkeypatch.setattr(NumericsRunner, "run", run)


@pytest.fixture
def ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the machine's ceilings, which would be measured, by fixed ones."""
    it = Ceilings("it", {"fp32": 1e15}, 1e13, "measured")
    monkeypatch.setattr("tcbench.run.ceilings._cached", lambda _: it)


@pytest.fixture(autouse=True)
def _traces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tcbench explain` traces no steps for what it expects, 5 s of a processor; tests of real runs do that."""
    monkeypatch.setattr(forecast, "PROCESSES", 0)
