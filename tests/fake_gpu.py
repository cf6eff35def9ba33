"""A pytest plugin (`-p fake_gpu`) that lets the GPU tests run on the stand-in for CuPy: nothing about a GPU is learnt
so, but that the tests themselves run, and pass where all is right."""

import pytest

_PATCH = pytest.MonkeyPatch()


def pytest_configure() -> None:
    from fake_cupy import install

    from tcbench.engine.accelerators.cuda import driver

    gpu = driver.Gpu(0, "Fake GPU", (9, 0), 132, 80 << 30)
    _PATCH.setattr(driver, "gpus", lambda: driver.Gpus((gpu,), (13, 0)))
    install(_PATCH)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """DALI has no stand-in, nor have kernels by themselves."""
    items[:] = [item for item in items if item.path.name in ("test_gpu_ops.py", "test_gpu_training.py")]


def pytest_unconfigure() -> None:
    _PATCH.undo()
