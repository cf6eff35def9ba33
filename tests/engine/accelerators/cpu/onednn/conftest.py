"""An engine of oneDNN that has prepared nothing yet."""

import pytest

from tcbench.engine.accelerators.cpu.onednn import accelerator
from tcbench.engine.accelerators.cpu.onednn.library import Engine


@pytest.fixture
def fresh_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "_engine", Engine)
