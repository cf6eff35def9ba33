"""A pytest plugin (`-p fake_torch_gpu`) that lets PyTorch's GPU tests run on the processor: nothing about a GPU is
learnt so, but that the tests themselves run, and pass where all is right."""

from __future__ import annotations

import time
from typing import Any, Literal

import pytest

_PATCH = pytest.MonkeyPatch()
_fraction = [1.0]
"""The share of the GPU's memory that PyTorch may use."""


class _Event:
    def __init__(self) -> None:
        self.at_s = 0.0

    def record(self, stream: Any) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None: ...


def pytest_configure(config: pytest.Config) -> None:
    import torch

    # A build for CUDA on a machine whose driver does not serve it says so at the first backward pass.
    config.addinivalue_line("filterwarnings", "ignore:CUDA initialization")

    from tcbench.engine.accelerators.cuda import driver
    from tcbench.engine.accelerators.event_clock import EventClock
    from tcbench.engine.backends.torch import sites
    from tcbench.engine.clock import peak_resident_bytes

    class GpuSite(sites.Site):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.clock: Any = EventClock(None, _Event, lambda before, after: 1e3 * (after.at_s - before.at_s))

        def upload(self, x: Any, t: Any) -> sites.Batch:
            if x.nbytes > _fraction[0] * 2**30:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")
            return super().upload(x.copy(), t.copy())

        def peak_memory(self) -> tuple[int, Literal["process", "device"]]:
            return peak_resident_bytes(), "device"

    gpu = driver.Gpu(0, "Fake GPU", (9, 0), 132, 80 << 30)
    _PATCH.setattr(driver, "gpus", lambda: driver.Gpus((gpu,), (13, 0)))
    _PATCH.setattr(sites, "GpuSite", GpuSite)
    _PATCH.setattr(torch.cuda, "is_available", lambda: True)
    _PATCH.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: _fraction.__setitem__(0, share))
    _PATCH.setattr(torch.cuda, "empty_cache", lambda: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Graphs are captured on a GPU alone, nothing here compiles, and a whole measurement would take minutes."""
    items[:] = [item for item in items if not any(word in item.name for word in ("cuda_graph", "compile", "measured"))]


def pytest_unconfigure() -> None:
    _PATCH.undo()
