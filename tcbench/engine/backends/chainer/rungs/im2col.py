"""im2col: convolutions as im2col and a matrix product, as before there was cuDNN. A config beside the same with this
rung shows what a convolution library buys."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import ROUNDING, Rung


class Im2col(Rung):
    name = "im2col"
    says = "convolutions as im2col and a matrix product, as before cuDNN"
    conflicts = frozenset({"convstats"})
    parity = ROUNDING
    shows: ClassVar = {"convolution": "im2col"}
    source = "K. Chellapilla et al., High Performance Convolutional Neural Networks for Document Processing, 2006"

    def parts(self, parts: Any, settings: Any) -> Any:
        from tcbench.engine.backends.chainer import ops

        class Im2colUnit(parts.unit):
            def convolve(self, x: Any) -> Any:
                return ops.convolution_2d_im2col(x, self.w, **self.geometry)

        return replace(parts, unit=Im2colUnit)
