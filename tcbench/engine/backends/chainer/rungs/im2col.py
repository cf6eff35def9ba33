"""The rung `im2col`: convolutions by im2col and a matrix product, as before cuDNN existed.

A comparison with the same config without this rung shows the benefit of a convolution library."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import ROUNDING, Rung


class Im2colRung(Rung):
    """Convolutions by im2col and a matrix product."""

    name = "im2col"
    says = "convolutions as im2col and a matrix product, as before cuDNN"
    conflicts = frozenset({"convstats"})
    parity = ROUNDING
    effects: ClassVar = {"convolution": "im2col"}
    source = "K. Chellapilla et al., High Performance Convolutional Neural Networks for Document Processing, 2006"

    def parts(self, parts: Any, settings: Any) -> Any:
        """Replace the units by ones that convolve by im2col."""
        from tcbench.engine.backends.chainer import ops

        class Im2colUnit(parts.unit):
            def convolve(self, x: Any) -> Any:
                return ops.convolution_2d_im2col(x, self.w, **self.geometry)

        return replace(parts, unit=Im2colUnit)
