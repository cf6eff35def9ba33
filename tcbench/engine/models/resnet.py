"""Residual networks for ImageNet.

Source: K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", 2015, table 1. Variant `v1` is
that of the paper and the talk: the stride of a stage is in the first convolution of its first block. Variant `v1.5` has
it in the 3x3 convolution of the bottleneck, as PyTorch and MLPerf do. Basic blocks begin with a 3x3 convolution, so
networks made of them have only `v1`."""

from collections.abc import Iterator
from dataclasses import dataclass

from tcbench.engine.models.geometry import Block, Conv, GlobalAverage, Linear, MaxPool, Named, Network


@dataclass(frozen=True)
class ResNet(Network):
    """A residual network: stem, 3x3 max pooling with stride 2, residual blocks, global average pooling and classifier.

    Blocks are bottlenecks (1x1, 3x3, 1x1 to four times the width) or basic blocks (3x3, 3x3). They come in stages; each
    stage after the first halves the image's side and doubles the channels. `width` is that of the first stage."""

    stem: Conv = Conv(3, 64, 7, 2)  # noqa: RUF009  (frozen)
    source: str = "K. He et al., Deep Residual Learning for Image Recognition, 2015, table 1"
    variants: tuple[str, ...] = ("v1", "v1.5")
    blocks_per_stage: tuple[int, ...] = (3, 4, 6, 3)
    bottleneck: bool = True
    width: int = 64

    @property
    def features(self) -> int:
        """The number of channels before the classifier."""
        return self._channels(len(self.blocks_per_stage) - 1)

    def stages(self, variant: str, n_classes: int) -> Iterator[Named]:
        """Yield the named stages in order. Raises ValueError for an unknown variant."""
        yield "stem", self.stem
        yield "max pool", MaxPool(3, 2, 1)
        for number, block in enumerate(self.blocks(variant), start=1):
            yield f"block{number}", block
        yield "average pool", GlobalAverage()
        yield "head", Linear(self.features, n_classes)

    def _channels(self, stage: int) -> int:
        return (self.width << stage) * (4 if self.bottleneck else 1)

    def blocks(self, variant: str) -> Iterator[Block]:
        """Yield all blocks in order. Raises ValueError for an unknown variant."""
        self.check(variant)
        in_channels = self.stem.out_channels
        for stage, n_blocks in enumerate(self.blocks_per_stage):
            width, out_channels = self.width << stage, self._channels(stage)
            for index in range(n_blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                first, second = (stride, 1) if variant == "v1" else (1, stride)
                convs: tuple[Conv, ...]
                if self.bottleneck:
                    convs = (
                        Conv(in_channels, width, 1, first),
                        Conv(width, width, 3, second),
                        Conv(width, out_channels, 1, 1),
                    )
                else:
                    convs = Conv(in_channels, width, 3, stride), Conv(width, width, 3, 1)
                widens = stride > 1 or in_channels != out_channels
                yield Block(convs, Conv(in_channels, out_channels, 1, stride, relu=False) if widens else None)
                in_channels = out_channels


RESNET50 = ResNet("resnet50")
MODELS = (
    ResNet("resnet18", variants=("v1",), blocks_per_stage=(2, 2, 2, 2), bottleneck=False),
    ResNet("resnet34", variants=("v1",), blocks_per_stage=(3, 4, 6, 3), bottleneck=False),
    RESNET50,
    ResNet("resnet101", blocks_per_stage=(3, 4, 23, 3)),
    ResNet("resnet152", blocks_per_stage=(3, 8, 36, 3)),
)
