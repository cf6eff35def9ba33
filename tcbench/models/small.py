"""A small ResNet out of the same bottlenecks as ResNet-50, for training to an end on a processor in seconds.

The stem keeps the image's size; then come max pooling 3x3 stride 2, stages of one bottleneck each, every one after the
first of half the size, global average pooling and the classifier. Known to `tcbench numerics` alone: it is no model to
measure throughput with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tcbench.models.residual import Block, Conv
from tcbench.models.resnet import ResNet

_STEM = Conv(3, 16, 3, 1)


@dataclass(frozen=True)
class SmallResNet:
    """Stem, blocks and features, from which a backend builds it."""

    name: str = "small-resnet"
    stem: Conv = _STEM
    stages: int = 3
    width: int = 8

    @property
    def features(self) -> int:
        """Channels before the classifier."""
        return 4 * self.width << (self.stages - 1)

    def last_size(self, image_size: int) -> int:
        """Side of the last feature map, pixels."""
        size = (image_size + 2 - 3) // 2 + 1
        for _ in range(self.stages - 1):
            size = (size + 1) // 2
        return size

    def blocks(self, variant: str) -> Iterator[Block]:
        """The bottlenecks in order; strides as in the variant of the same name of ResNet-50."""
        in_channels = self.stem.out_channels
        for stage in range(self.stages):
            width = self.width << stage
            stride = 2 if stage else 1
            first, second = (stride, 1) if variant == "v1" else (1, stride)
            yield Block(
                convs=(
                    Conv(in_channels, width, 1, first),
                    Conv(width, width, 3, second),
                    Conv(width, 4 * width, 1, 1),
                ),
                shortcut=Conv(in_channels, 4 * width, 1, stride, relu=False),
            )
            in_channels = 4 * width


SMALL_RESNET = SmallResNet()

WELL_CONDITIONED = ResNet("two-stage ResNet-50", blocks_per_stage=(2, 1))
"""ResNet-50's first two stages, cut to two bottlenecks and one: what rungs' tolerances are declared on, with images of
32x32 and batches of 8. ResNet-50 whole is chaotic at such sizes: its last batch normalisations see few values, and
after 5 steps at a learning rate of 0.01 float32 itself is several per cent from float64."""
