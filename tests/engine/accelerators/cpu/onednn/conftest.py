"""Faults planted in how oneDNN's primitives take slices, on an engine that has prepared nothing yet."""

from __future__ import annotations

import pytest

from tcbench.engine.accelerators.cpu.onednn import accelerator, convolution, library
from tcbench.engine.accelerators.cpu.onednn.library import Engine, Place


@pytest.fixture
def fresh_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "_engine", Engine)


@pytest.fixture
def unadded_slices(fresh_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of the second slice and those after it are left where they are. No thread has filters of its own, which
    leave nothing to be added."""
    monkeypatch.setattr(convolution, "_by_filters", lambda engine, work: [])
    reorder = Engine._reorder

    def _reorder(engine: Engine, *arguments: object, added: bool = False) -> object:
        return (lambda addresses: None) if added else reorder(engine, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "_reorder", _reorder)


@pytest.fixture
def unmoved_slices(fresh_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slice is the first."""
    monkeypatch.setattr(library, "Place", lambda of, offset=0, n_bytes=0: Place(of, n_bytes=n_bytes))
