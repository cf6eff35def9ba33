"""The rung `convstats`: each convolution also computes the sum and sum of squares of its output's channels.

Batch normalisation, addition and ReLU then become one pass, which reads the convolution's output only once."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import Needs, Parity, Requires, Rung, Tolerance


class ConvStats(Rung):
    """Batch statistics computed by the convolution."""

    name = "convstats"
    says = "batch statistics from the convolution: batch norm skips one read"
    requires = Requires(
        compute_capability=(8, 0),
        rungs=(
            Needs("fp16", why="cuDNN fuses statistics into float16 convolutions only"),
            Needs("nhwc", why="cuDNN fuses statistics into NHWC convolutions only"),
            Needs("fused", why="the operations after the convolution become one pass"),
        ),
    )
    parity = Parity("tolerance", float16=Tolerance(1e-2, 0.3, 0.15, 0.01))
    effects: ClassVar = {"batch statistics": "from the convolution"}
    source = "NVIDIA cuDNN documentation, graph patterns: ConvGenStats; MLPerf Training v1.0 ResNet-50"

    def parts(self, parts: Any, settings: Any) -> Any:
        """Replace the units by ones whose convolutions compute batch statistics."""
        from tcbench.engine.backends.chainer import ops

        class StatsUnit(parts.unit):
            """A unit whose convolution also computes the statistics of its batch normalisation."""

            # cuDNN cannot fuse statistics into a convolution of an image's three channels.
            def forward(self, x: Any, shortcut: Any = None) -> Any:
                """Apply the unit. With a bias or fewer input channels than MIN_CHANNELS, apply that of earlier
                rungs."""
                if self.conv.bias or self.conv.in_channels < MIN_CHANNELS:
                    return super().forward(x, shortcut)
                sums = ops.convolution_2d_stats(x, self.w, **self.geometry)
                settings: Any = {"layout": self.spec.layout, "relu": self.conv.relu, "residual": shortcut}
                return ops.batch_norm(sums, self.gamma, self.beta, self.running, **settings)

        return replace(parts, unit=StatsUnit)


MIN_CHANNELS = 8
"""The fewest input channels: one 16-byte load of float16."""
