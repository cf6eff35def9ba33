"""bf16: autocast to bfloat16, which has float32's range: no loss scaling. Weights stay float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tcbench.engine.rung import BF16, Parity, Requires, Rung, Tolerance


class Bf16(Rung):
    name = "bf16"
    says = "autocast to bfloat16, 32-bit accumulation, fp32 weights, no loss scaling"
    requires = Requires(instructions=BF16)
    conflicts = frozenset({"fp32", "tf32", "fp16"})
    parity = Parity("tolerance", bfloat16=Tolerance(3e-2, 0.6))  # 8 bits of significand, 3 fewer than float16
    source = "PyTorch documentation, Automatic Mixed Precision"

    def parts(self, parts: Any, settings: Any) -> Any:
        import torch

        return replace(parts, autocast=torch.bfloat16)


RUNG = Bf16()
