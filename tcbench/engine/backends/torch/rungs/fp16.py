"""fp16: mixed precision as PyTorch has it: weights stay float32, autocast runs convolutions and the classifier in
float16, and a GradScaler scales the loss (by the scenario's static scale)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tcbench.engine.rung import FP16, Parity, Requires, Rung, Tolerance


class Fp16(Rung):
    name = "fp16"
    says = "autocast to float16, 32-bit accumulation, loss scaling, fp32 weights"
    requires = Requires(instructions=FP16)
    conflicts = frozenset({"fp32", "tf32", "bf16"})
    parity = Parity("tolerance", float16=Tolerance(1e-2, 0.3))
    source = "PyTorch documentation, Automatic Mixed Precision"

    def parts(self, parts: Any, settings: Any) -> Any:
        import torch

        return replace(parts, autocast=torch.float16, pixels=replace(parts.pixels, dtype="float16"))

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        return replace(optimizer, loss_scale=settings.train.loss_scale)


RUNG = Fp16()
