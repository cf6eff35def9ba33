"""Residual networks: a stem, max pooling 3x3 with stride 2, blocks around shortcuts, means over the whole image, and a
classifier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tcbench.engine.models.geometry import Block, Conv, GlobalAverage, Linear, MaxPool, Named, Network


@dataclass(frozen=True)
class ResidualNetwork(Network):
    """See `tcbench.engine.models.geometry.Network`. Stages are "stem", "max pool", "block1" and so on, "average pool"
    and "head"."""

    stem: Conv = Conv(3, 64, 7, 2)  # noqa: RUF009  (frozen)

    @property
    def features(self) -> int:
        """Channels before the classifier."""
        raise NotImplementedError

    def blocks(self, variant: str) -> Iterator[Block]:
        """The blocks in order. Raises ValueError for an unknown variant."""
        raise NotImplementedError

    def stages(self, variant: str, n_classes: int) -> Iterator[Named]:
        yield "stem", self.stem
        yield "max pool", MaxPool(3, 2, 1)
        for number, block in enumerate(self.blocks(variant), start=1):
            yield f"block{number}", block
        yield "average pool", GlobalAverage()
        yield "head", Linear(self.features, n_classes)
