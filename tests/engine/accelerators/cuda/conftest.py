"""The accelerator of a GPU on a stand-in for CuPy, cuDNN and the kernels."""

import pytest
from fake_cupy import install, site


@pytest.fixture
def cupy(monkeypatch):
    return install(monkeypatch)


@pytest.fixture
def accelerator(cupy):
    place = site()
    with place.scope():
        yield place.accelerator
