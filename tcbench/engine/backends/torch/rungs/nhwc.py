"""nhwc: PyTorch's channels_last: tensors seen as (N, C, H, W) lie in memory as (N, H, W, C), which is what Tensor Cores
read without transposing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tcbench.engine.rung import ROUNDING, Rung


class Nhwc(Rung):
    name = "nhwc"
    says = "channels last: no transposes around a convolution"
    parity = ROUNDING
    source = "PyTorch tutorials, Channels Last Memory Format"

    def parts(self, parts: Any, settings: Any) -> Any:
        import torch

        return replace(parts, memory_format=torch.channels_last, pixels=replace(parts.pixels, layout="NHWC"))


RUNG = Nhwc()
