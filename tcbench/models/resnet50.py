"""ResNet-50 as numbers: its convolutions, in order, without a framework.

Source: K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", 2015, table 1. Variant `v1`
is the paper's and the talk's: a stage's stride sits in the first 1x1 convolution of its first block. `v1.5` moves it
to the 3x3 convolution, as PyTorch and MLPerf have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tcbench.models.residual import Block, Conv, ResidualNetwork

_STEM = Conv(3, 64, 7, 2)


@dataclass(frozen=True)
class ResNet50(ResidualNetwork):
    """Four stages of bottlenecks."""

    name: str = "resnet50"
    variants: tuple[str, ...] = ("v1", "v1.5")
    stem: Conv = _STEM
    features: int = 2048
    blocks_per_stage: tuple[int, ...] = (3, 4, 6, 3)

    def blocks(self, variant: str) -> Iterator[Block]:
        """The 16 bottlenecks in order. Raises ValueError for an unknown variant."""
        self.check(variant)
        in_channels = self.stem.out_channels
        for stage, n_blocks in enumerate(self.blocks_per_stage):
            width = 64 << stage
            for index in range(n_blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                first, second = (stride, 1) if variant == "v1" else (1, stride)
                yield Block(
                    convs=(
                        Conv(in_channels, width, 1, first),
                        Conv(width, width, 3, second),
                        Conv(width, 4 * width, 1, 1),
                    ),
                    shortcut=Conv(in_channels, 4 * width, 1, stride, relu=False) if index == 0 else None,
                )
                in_channels = 4 * width


MODEL = RESNET50 = ResNet50()
