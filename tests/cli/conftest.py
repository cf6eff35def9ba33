"""What several tests of commands share."""

from __future__ import annotations

import pytest

from tcbench.backends.feeds import dataset
from tcbench.core.numerics import Job
from tcbench.numerics import worker
from tcbench.run.numerics_runner import Runner


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in the test's process generate so many where they have no data: in fewer seconds than 512 take."""
    assert dataset.generate.__kwdefaults__ is not None
    monkeypatch.setitem(dataset.generate.__kwdefaults__, "n_files", 64)


@pytest.fixture
def trains_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tcbench numerics` trains in the test's process in place of one for each job, which would import Chainer anew."""

    def run(runner, jobs):
        for job in jobs:
            yield job, (worker.run if isinstance(job, Job) else worker.parity)(job, lambda message: None)

    monkeypatch.setattr(Runner, "run", run)
