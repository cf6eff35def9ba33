"""The rung `nhwc`: activations (N, H, W, C) and filters (K, R, S, C), which Tensor Cores read without a transpose."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import ROUNDING, Rung


class Nhwc(Rung):
    """Channels-last storage of activations and filters."""

    name = "nhwc"
    says = "channels last: no transposes around a convolution"
    parity = ROUNDING
    effects: ClassVar = {"layout": "NHWC"}
    source = "talk, slide 26"

    def parts(self, parts: Any, settings: Any) -> Any:
        return replace(parts, spec=replace(parts.spec, layout="NHWC"))
