"""A model as the rest of tcbench knows it: its name, its variants, the least image size, its cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class Layer:
    """One place in a model: `conv` (batch normalisation follows, then the addition of a shortcut if `add`, then ReLU if
    `relu`), `max_pool`, `average_pool` (over the whole image) or `fc` (with a bias). Sizes are of square images.
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


class Model(Protocol):
    """A model's framework-free description."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str:
        """The publication that defines it."""
        ...

    @property
    def variants(self) -> tuple[str, ...]: ...

    @property
    def min_image_size(self) -> int:
        """The smallest square image, in pixels, that leaves no empty feature map."""
        ...

    def parameters(self, n_classes: int) -> int:
        """Number of trained values."""
        ...

    def macs(self, variant: str, image_size: int, n_classes: int) -> int:
        """Multiply-accumulates of the convolutions and the classifier for one image's forward pass."""
        ...

    def layers(self, variant: str, image_size: int, n_classes: int) -> Iterator[Layer]:
        """All layers of a forward pass, in order."""
        ...
