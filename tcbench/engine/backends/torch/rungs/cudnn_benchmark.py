"""cudnn_benchmark: cuDNN times its algorithms for each convolution on the first steps and keeps the fastest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tcbench.engine.rung import ROUNDING, Requires, Rung


class CudnnBenchmark(Rung):
    name = "cudnn_benchmark"
    says = "cuDNN's algorithms chosen by timing them (torch.backends.cudnn.benchmark)"
    requires = Requires(devices=frozenset({"cuda"}))
    parity = ROUNDING
    source = "PyTorch tutorials, Performance Tuning Guide"

    @contextlib.contextmanager
    def scope(self, settings: Any) -> Iterator[None]:
        import torch

        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before


RUNG = CudnnBenchmark()
