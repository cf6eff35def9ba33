"""The accelerator of a GPU on a stand-in for CuPy, cuDNN and the kernels; and cuDNN's real frontend."""

import pytest
from fake_cupy import install, site

from tcbench.engine.accelerators.cuda.cudnn import libraries


@pytest.fixture
def cupy(monkeypatch):
    return install(monkeypatch)


@pytest.fixture
def accelerator(cupy):
    place = site()
    with place.scope():
        yield place.accelerator


@pytest.fixture
def real_cudnn():
    """The real frontend, for tests marked `plans`."""
    pytest.importorskip("cudnn", exc_type=ImportError)
    if problem := libraries.problem():
        pytest.skip(problem)
    return libraries.frontend()
