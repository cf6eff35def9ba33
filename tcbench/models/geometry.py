"""What the rest of tcbench may know of a model: its name, its variants, the least image size, its cost."""

from __future__ import annotations

from typing import Protocol


class Model(Protocol):
    """A model's framework-free description."""

    @property
    def name(self) -> str: ...

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
