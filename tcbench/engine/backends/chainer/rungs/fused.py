"""The rung `fused`: batch normalisation, the shortcut's addition and ReLU in one operation. This saves launches and
memory traffic."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import ROUNDING, Rung


class Fused(Rung):
    """Batch normalisation, addition and ReLU in one operation."""

    name = "fused"
    says = "batch norm + add + ReLU, or bias + ReLU, in one operation"
    parity = ROUNDING
    effects: ClassVar = {"ReLU": "fused"}
    source = "talk, slide 25"

    def parts(self, parts: Any, settings: Any) -> Any:
        """Replace the units by ones that fuse what follows a convolution."""
        from tcbench.engine.backends.chainer import ops

        class FusedUnit(parts.unit):
            """A unit that computes batch normalisation (or a bias), addition and ReLU in one operation."""

            def normalise(self, h: Any, shortcut: Any) -> Any:
                """Apply everything after the convolution in one operation. Without ReLU there is nothing to fuse."""
                if self.conv.bias:
                    return ops.bias(h, self.b, layout=self.spec.layout, relu=self.conv.relu)
                if not self.conv.relu:
                    return super().normalise(h, shortcut)
                settings: Any = {"layout": self.spec.layout, "relu": True, "residual": shortcut}
                return ops.batch_norm(h, self.gamma, self.beta, self.running, **settings)

        return replace(parts, unit=FusedUnit)
