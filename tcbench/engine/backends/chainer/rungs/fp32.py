"""The rung `fp32`: the start of the ladder, with float32 storage and arithmetic and no TensorFloat-32."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import EXACT, Rung


class Fp32(Rung):
    """Storage and arithmetic in float32."""

    name = "fp32"
    says = "32-bit storage and arithmetic"
    conflicts = frozenset({"fp16", "bf16", "tf32"})
    parity = EXACT
    effects: ClassVar = {"storage": "float32"}
    source = "talk, slide 12"

    def parts(self, parts: Any, settings: Any) -> Any:
        return replace(parts, spec=replace(parts.spec, dtype="float32"))
