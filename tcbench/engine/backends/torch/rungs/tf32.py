"""tf32: float32 storage, convolutions and matrix products on Tensor Cores with inputs rounded to TensorFloat-32 (10
bits of fraction)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tcbench.engine.rung import Parity, Requires, Rung, Tolerance
from tcbench.hardware import tensor_cores


class Tf32(Rung):
    name = "tf32"
    says = "32-bit storage, convolutions round their inputs to TensorFloat-32"
    requires = Requires(devices=frozenset({"cuda"}), compute_capability=tensor_cores.oldest_with("tf32"))
    conflicts = frozenset({"fp32", "fp16", "bf16"})
    parity = Parity("tolerance", float32=Tolerance(1e-2, 0.3))
    source = "PyTorch documentation, Numerical accuracy: TensorFloat-32"

    @contextlib.contextmanager
    def scope(self, settings: Any) -> Iterator[None]:
        from tcbench.engine.backends.torch.precision import float32_math

        with float32_math("tf32"):
            yield


RUNG = Tf32()
