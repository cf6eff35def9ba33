"""Fixtures for tests of oneDNN: the library, an accelerator on it, and an engine that has prepared nothing yet."""

from collections.abc import Iterator

import pytest

from tcbench.engine.accelerators.cpu import compiled
from tcbench.engine.accelerators.cpu.onednn import accelerator, library
from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator
from tcbench.engine.accelerators.cpu.onednn.library import Engine


@pytest.fixture(autouse=True)
def onednn() -> None:
    if problem := library.problem():
        pytest.skip(problem)


@pytest.fixture
def fresh_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "_engine", Engine)


@pytest.fixture
def quickly_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions in C without optimisation, which takes most of a compiler's time."""
    quick = tuple("-O0" if option == "-O3" else option for option in compiled._OPTIONS)
    assert quick != compiled._OPTIONS
    monkeypatch.setattr(compiled, "_OPTIONS", quick)


@pytest.fixture
def processor() -> Iterator[OneDnnAccelerator]:
    accelerator = OneDnnAccelerator(threads=2)
    with accelerator.enter():
        yield accelerator
