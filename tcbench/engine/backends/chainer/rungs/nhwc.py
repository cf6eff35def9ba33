"""nhwc: activations shaped (N, H, W, C), filters (K, R, S, C): what Tensor Cores read without transposing."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import ROUNDING, Rung


class Nhwc(Rung):
    name = "nhwc"
    says = "channels last: no transposes around a convolution"
    parity = ROUNDING
    shows: ClassVar = {"layout": "NHWC"}
    source = "talk, slide 26"

    def parts(self, parts: Any, settings: Any) -> Any:
        return replace(parts, spec=replace(parts.spec, layout="NHWC"))
