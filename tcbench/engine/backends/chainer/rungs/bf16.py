"""The rung `bf16`: mixed precision with bfloat16.

Storage has 16 bits; accumulation and a master copy of the weights are float32, and so are scale, shift and statistics
of batch normalisation. bfloat16 has the range of float32, so no loss scaling is needed, and 8 bits of significand."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import BF16, Parity, Requires, Rung, Tolerance
from tcbench.hardware import tensor_cores


class Bf16(Rung):
    """Mixed precision with bfloat16 storage."""

    name = "bf16"
    says = "bfloat16 storage, 32-bit accumulation, fp32 master weights, no loss scaling"
    requires = Requires(compute_capability=tensor_cores.oldest_with("bf16"), instructions=BF16)
    conflicts = frozenset({"fp32", "tf32", "fp16"})
    parity = Parity("tolerance", bfloat16=Tolerance(2e-2, 0.5, 0.45, 0.02))
    effects: ClassVar = {"storage": "bfloat16", "master weights": "float32"}
    source = "D. Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019"

    def parts(self, parts: Any, settings: Any) -> Any:
        return replace(parts, spec=replace(parts.spec, dtype="bfloat16"))

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        return replace(optimizer, master_weights=True)
