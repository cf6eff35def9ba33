"""The rung `fp16`: mixed precision with float16, as in the talk.

Storage is float16; accumulation and a master copy of the weights are float32, and so are scale, shift and statistics of
batch normalisation. The loss is scaled."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import FP16, Parity, Requires, Rung, Tolerance


class Fp16(Rung):
    """Mixed precision with float16 storage."""

    name = "fp16"
    says = "16-bit storage, 32-bit accumulation, loss scaling, fp32 master weights"
    requires = Requires(instructions=FP16)
    conflicts = frozenset({"fp32", "bf16", "tf32"})
    parity = Parity("tolerance", float16=Tolerance(1e-2, 0.3, 0.2, 0.01))
    effects: ClassVar = {"storage": "float16", "master weights": "float32"}
    source = "talk, slides 5 to 12"

    def parts(self, parts: Any, settings: Any) -> Any:
        return replace(parts, spec=replace(parts.spec, dtype="float16"))

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        return replace(optimizer, loss_scale=settings.train.loss_scale, master_weights=True)
