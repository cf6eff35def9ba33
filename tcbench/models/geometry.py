"""Networks as numbers, without a framework: stages, of which follow parameters, arithmetic and layers.

A network is a sequence of named stages. Each backend builds a stage of its own parts; nothing else looks inside.
Sizes are of square images and square windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Conv:
    """A convolution followed by batch normalisation, or by the addition of a bias if `bias`; then by ReLU if `relu`.
    `pad`: by default what keeps the image's size at stride 1."""

    in_channels: int
    out_channels: int
    ksize: int
    stride: int = 1
    relu: bool = True
    bias: bool = False
    pad: int = -1

    def __post_init__(self) -> None:
        if self.pad < 0:
            object.__setattr__(self, "pad", self.ksize // 2)


@dataclass(frozen=True)
class Block:
    """Convolutions around a shortcut, which the last of them adds before its ReLU: two (basic) or three (bottleneck).
    `shortcut` is None where the block's input is added as it is."""

    convs: tuple[Conv, ...]
    shortcut: Conv | None


@dataclass(frozen=True)
class MaxPool:
    """Maxima over windows."""

    ksize: int
    stride: int
    pad: int = 0


@dataclass(frozen=True)
class GlobalAverage:
    """Means over the whole image: (N, C)."""


@dataclass(frozen=True)
class Linear:
    """A product with a matrix, and a bias; then ReLU if `relu`."""

    in_features: int
    out_features: int
    relu: bool = False


Stage = Conv | Block | MaxPool | GlobalAverage | Linear
Named = tuple[str, Stage]


@dataclass(frozen=True)
class Layer:
    """One place in a network: `conv` (batch normalisation follows, then the addition of a shortcut if `add`, then ReLU
    if `relu`), `max_pool`, `average_pool` (over the whole image) or `fc` (with a bias). Sizes are of square images.
    `first`: its input is the image, which needs no gradient."""

    name: str
    kind: Literal["conv", "max_pool", "average_pool", "fc"]
    in_channels: int
    out_channels: int
    in_size: int
    out_size: int
    ksize: int = 1
    stride: int = 1
    pad: int = 0
    relu: bool = False
    add: bool = False
    first: bool = False
    bias: bool = False

    @property
    def macs(self) -> int:
        """Multiply-accumulates for one image's forward pass; of convolutions and matrix products alone."""
        if self.kind not in ("conv", "fc"):
            return 0
        return self.in_channels * self.out_channels * (self.ksize * self.out_size) ** 2

    @property
    def parameters(self) -> int:
        """Trained values: filters or a matrix, and batch normalisation's scale and shift, or a bias."""
        if self.kind not in ("conv", "fc"):
            return 0
        vectors = 1 if self.bias else 2
        return self.in_channels * self.out_channels * self.ksize**2 + vectors * self.out_channels


@dataclass(frozen=True)
class Network:
    """A network that says which stages it has. `source`: the publication that defines it. `min_image_size`: the side,
    in pixels, of the smallest image that leaves no empty feature map."""

    name: str
    source: str = ""
    variants: tuple[str, ...] = ("v1",)
    min_image_size: int = 32

    def stages(self, variant: str, n_classes: int) -> Iterator[Named]:
        """The stages in order, by name; the last gives the logits. Raises ValueError for an unknown variant."""
        raise NotImplementedError

    def check(self, variant: str) -> None:
        """Raises ValueError for a variant that there is not."""
        if variant not in self.variants:
            raise ValueError(f"unknown variant {variant!r}, expected one of {', '.join(self.variants)}")

    def parameters(self, n_classes: int) -> int:
        """Number of trained values; the same for every variant and size of images."""
        return sum(layer.parameters for layer in self.layers(self.variants[0], self.min_image_size, n_classes))

    def macs(self, variant: str, image_size: int, n_classes: int) -> int:
        """Multiply-accumulates of the convolutions and matrix products for one image's forward pass."""
        return sum(layer.macs for layer in self.layers(variant, image_size, n_classes))

    def layers(self, variant: str, image_size: int, n_classes: int) -> Iterator[Layer]:
        """All layers of a forward pass, in order, under their stages' names; in a block these are "block1.a" and so on,
        the shortcut first."""
        layers = _Walk(image_size).sequence(self.stages(variant, n_classes))
        yield replace(next(layers), first=True)
        yield from layers


class _Walk:
    """Follows the channels and the side of an image through stages."""

    def __init__(self, size: int) -> None:
        self.channels = 0
        self.size = size

    def sequence(self, stages: Iterator[Named]) -> Iterator[Layer]:
        for name, stage in stages:
            yield from self.stage(name, stage)

    def stage(self, name: str, stage: Stage) -> Iterator[Layer]:
        if isinstance(stage, Conv):
            yield self._conv(name, stage)
        elif isinstance(stage, Block):
            if stage.shortcut:
                yield _Walk(self.size)._conv(f"{name}.shortcut", stage.shortcut)
            for part, conv in zip("abc", stage.convs, strict=False):
                yield replace(self._conv(f"{name}.{part}", conv), add=conv is stage.convs[-1])
        elif isinstance(stage, MaxPool):
            before = self.size
            self.size = _out(before, stage.ksize, stage.stride, stage.pad)
            sizes = self.channels, self.channels, before, self.size
            yield Layer(name, "max_pool", *sizes, stage.ksize, stage.stride, stage.pad)
        elif isinstance(stage, GlobalAverage):
            before, self.size = self.size, 1
            yield Layer(name, "average_pool", self.channels, self.channels, before, 1)
        else:
            yield Layer(name, "fc", stage.in_features, stage.out_features, 1, 1, relu=stage.relu, bias=True)

    def _conv(self, name: str, conv: Conv) -> Layer:
        before = self.size
        self.channels, self.size = conv.out_channels, _out(before, conv.ksize, conv.stride, conv.pad)
        sizes = conv.in_channels, conv.out_channels, before, self.size
        return Layer(name, "conv", *sizes, conv.ksize, conv.stride, conv.pad, relu=conv.relu, bias=conv.bias)


def _out(size: int, ksize: int, stride: int, pad: int) -> int:
    return (size + 2 * pad - ksize) // stride + 1
