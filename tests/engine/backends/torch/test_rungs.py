"""Tests of the settings that PyTorch's rungs change, on a stand-in for PyTorch."""

import sys
from types import SimpleNamespace

from tcbench.engine.backends.torch.rungs import CudnnBenchmark


def test_all_algorithms_of_cudnn_are_timed_and_its_settings_are_put_back(monkeypatch):
    cudnn = SimpleNamespace(benchmark=False, benchmark_limit=10)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(backends=SimpleNamespace(cudnn=cudnn)))
    with CudnnBenchmark().scope(None):
        assert (cudnn.benchmark, cudnn.benchmark_limit) == (True, 0)
    assert (cudnn.benchmark, cudnn.benchmark_limit) == (False, 10)
