"""ResNet-50 as numbers: its convolutions, in order, without a framework.

Source: K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", 2015, table 1. Variant `v1`
is the paper's and the talk's: a stage's stride sits in the first 1x1 convolution of its first block. `v1.5` moves it
to the 3x3 convolution, as PyTorch and MLPerf have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tcbench.models.geometry import Layer


@dataclass(frozen=True)
class Conv:
    """A convolution without bias, followed by batch normalisation, then by ReLU if `relu`."""

    in_channels: int
    out_channels: int
    ksize: int
    stride: int
    relu: bool = True

    @property
    def pad(self) -> int:
        return self.ksize // 2

    def out_size(self, size: int) -> int:
        return (size + 2 * self.pad - self.ksize) // self.stride + 1


@dataclass(frozen=True)
class Block:
    """A bottleneck: three convolutions; the last adds the shortcut before its ReLU. `shortcut` is None where the
    block's input is added as it is."""

    convs: tuple[Conv, Conv, Conv]
    shortcut: Conv | None


@dataclass(frozen=True)
class ResNet50:
    """Stem, max pooling 3x3 stride 2, four stages of bottlenecks, global average pooling, classifier."""

    name: str = "resnet50"
    variants: tuple[str, ...] = ("v1", "v1.5")
    min_image_size: int = 32
    stem: Conv = Conv(3, 64, 7, 2)
    blocks_per_stage: tuple[int, ...] = (3, 4, 6, 3)
    features: int = 2048

    def blocks(self, variant: str) -> Iterator[Block]:
        """The 16 bottlenecks in order. Raises ValueError for an unknown variant."""
        if variant not in self.variants:
            raise ValueError(f"unknown variant {variant!r}, expected one of {', '.join(self.variants)}")
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

    def parameters(self, n_classes: int) -> int:
        """Filters, batch normalisation's scale and shift, the classifier's weight and bias."""
        convs = [self.stem]
        for block in self.blocks("v1"):
            convs += [*block.convs, *([block.shortcut] if block.shortcut else [])]
        filters = sum(c.in_channels * c.out_channels * c.ksize**2 + 2 * c.out_channels for c in convs)
        return filters + self.features * n_classes + n_classes

    def macs(self, variant: str, image_size: int, n_classes: int) -> int:
        """Multiply-accumulates of one image's forward pass: convolutions and classifier."""

        def cost(conv: Conv, size: int) -> tuple[int, int]:
            out = conv.out_size(size)
            return conv.in_channels * conv.out_channels * conv.ksize**2 * out * out, out

        total, size = cost(self.stem, image_size)
        size = (size + 2 - 3) // 2 + 1
        for block in self.blocks(variant):
            if block.shortcut:
                total += cost(block.shortcut, size)[0]
            for conv in block.convs:
                macs, size = cost(conv, size)
                total += macs
        return total + self.features * n_classes

    def layers(self, variant: str, image_size: int, n_classes: int) -> Iterator[Layer]:
        """All layers of a forward pass, in order: "stem", "max pool", "block1.a" to "block16.c" with four shortcuts,
        "average pool", "fc". A block's shortcut comes first."""

        def layer(name: str, conv: Conv, size: int, *, add: bool = False, first: bool = False) -> Layer:
            geometry = (
                conv.in_channels,
                conv.out_channels,
                size,
                conv.out_size(size),
                conv.ksize,
                conv.stride,
                conv.pad,
            )
            return Layer(name, "conv", *geometry, relu=conv.relu, add=add, first=first)

        width = self.stem.out_channels
        yield layer("stem", self.stem, image_size, first=True)
        before = self.stem.out_size(image_size)
        size = (before + 2 - 3) // 2 + 1
        yield Layer("max pool", "max_pool", width, width, before, size, 3, 2, 1)
        for number, block in enumerate(self.blocks(variant), start=1):
            if block.shortcut:
                yield layer(f"block{number}.shortcut", block.shortcut, size)
            for part, conv in zip("abc", block.convs, strict=True):
                yield layer(f"block{number}.{part}", conv, size, add=part == "c")
                size = conv.out_size(size)
        yield Layer("average pool", "average_pool", self.features, self.features, size, 1)
        yield Layer("fc", "fc", self.features, n_classes, 1, 1)


RESNET50 = ResNet50()
