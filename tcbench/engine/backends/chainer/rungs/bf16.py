"""bf16: mixed precision with bfloat16, which has float32's range and 8 bits of significand: 16-bit storage with float32
accumulation and a float32 master copy of the weights; the loss needs no scale. Batch normalisation's scale, shift and
statistics stay float32."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import BF16, Parity, Requires, Rung, Tolerance
from tcbench.hardware import tensor_cores


class Bf16(Rung):
    name = "bf16"
    says = "bfloat16 storage, 32-bit accumulation, fp32 master weights, no loss scaling"
    requires = Requires(compute_capability=tensor_cores.oldest_with("bf16"), instructions=BF16)
    conflicts = frozenset({"fp32", "tf32", "fp16"})
    parity = Parity("tolerance", bfloat16=Tolerance(2e-2, 0.5, 0.45, 0.02))
    shows: ClassVar = {"storage": "bfloat16", "master weights": "float32"}
    source = "D. Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019"

    def parts(self, parts: Any, settings: Any) -> Any:
        return replace(parts, spec=replace(parts.spec, dtype="bfloat16"))

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        return replace(optimizer, master_weights=True)
