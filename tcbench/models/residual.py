"""Residual networks as numbers: what every one of them has, without a framework.

A network is a stem, max pooling 3x3 with stride 2, blocks around shortcuts, global average pooling and a classifier.
One that says which blocks it has can be measured: parameters, arithmetic and layers follow from them, and each backend
builds it from them.
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
    """Convolutions around a shortcut, which the last of them adds before its ReLU: two (basic) or three (bottleneck).
    `shortcut` is None where the block's input is added as it is."""

    convs: tuple[Conv, ...]
    shortcut: Conv | None


@dataclass(frozen=True)
class ResidualNetwork:
    """See `tcbench.models.geometry.Model`."""

    name: str
    source: str
    variants: tuple[str, ...]
    stem: Conv
    min_image_size: int = 32

    @property
    def features(self) -> int:
        """Channels before the classifier."""
        raise NotImplementedError

    def blocks(self, variant: str) -> Iterator[Block]:
        """The blocks in order. Raises ValueError for an unknown variant."""
        raise NotImplementedError

    def check(self, variant: str) -> None:
        """Raises ValueError for a variant that there is not."""
        if variant not in self.variants:
            raise ValueError(f"unknown variant {variant!r}, expected one of {', '.join(self.variants)}")

    def parameters(self, n_classes: int) -> int:
        """Filters, batch normalisation's scale and shift, the classifier's weight and bias."""
        convs = [self.stem]
        for block in self.blocks(self.variants[0]):
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
        """All layers of a forward pass, in order: "stem", "max pool", "block1.a" and so on, with shortcuts,
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
            for part, conv in zip("abc", block.convs, strict=False):
                yield layer(f"block{number}.{part}", conv, size, add=conv is block.convs[-1])
                size = conv.out_size(size)
        yield Layer("average pool", "average_pool", self.features, self.features, size, 1)
        yield Layer("fc", "fc", self.features, n_classes, 1, 1)
