"""fp32: the start of the ladder. Storage and arithmetic in float32, no TensorFloat-32: PyTorch's own default for
convolutions is tf32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tcbench.engine.rung import EXACT, Rung


class Fp32(Rung):
    name = "fp32"
    says = "32-bit storage and arithmetic"
    conflicts = frozenset({"fp16", "bf16", "tf32"})
    parity = EXACT
    source = "PyTorch documentation, Numerical accuracy: TensorFloat-32"

    @contextlib.contextmanager
    def scope(self, settings: Any) -> Iterator[None]:
        from tcbench.engine.backends.torch.precision import float32_math

        with float32_math("ieee"):
            yield


RUNG = Fp32()
