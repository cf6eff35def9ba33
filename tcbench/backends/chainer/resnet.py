"""Residual networks for Chainer: one class, built from parts. Everything that a rung may change is a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from tcbench.backends.chainer.compat import chainer
from tcbench.backends.chainer.parts import Parts
from tcbench.models.residual import Block, Conv


class Geometry(Protocol):
    """The shape of a residual network, as in `tcbench.models.residual`."""

    @property
    def stem(self) -> Conv: ...

    @property
    def features(self) -> int: ...

    def blocks(self, variant: str) -> Iterator[Block]: ...


class ResidualBlock(chainer.Chain):
    """Units a, b and so on, around a shortcut."""

    def __init__(self, parts: Parts, block: Block, rng: np.random.RandomState) -> None:
        super().__init__()
        self.names = "abc"[: len(block.convs)]
        with self.init_scope():
            for name, conv in zip(self.names, block.convs, strict=True):
                setattr(self, name, parts.unit(parts.spec, conv, rng))
            self.shortcut = parts.unit(parts.spec, block.shortcut, rng) if block.shortcut else None

    def forward(self, x: Any) -> Any:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        *units, last = (self[name] for name in self.names)
        for unit in units:
            x = unit(x)
        return last(x, shortcut)


class ResNet(chainer.Chain):
    """Images in the spec's layout and dtype -> logits (N, n_classes)."""

    def __init__(
        self, parts: Parts, variant: str, n_classes: int, rng: np.random.RandomState, geometry: Geometry
    ) -> None:
        super().__init__()
        self.parts = parts
        with self.init_scope():
            self.stem = parts.unit(parts.spec, geometry.stem, rng)
            self.blocks = chainer.ChainList(*(ResidualBlock(parts, block, rng) for block in geometry.blocks(variant)))
            self.head = parts.head(parts.spec, geometry.features, n_classes, rng)
        self._body = parts.body(ResNet.body)

    def forward(self, x: Any) -> Any:
        return self._body(self, x)

    def body(self, x: Any) -> Any:
        h = self.parts.max_pool(self.stem(x), self.parts.spec)
        for block in self.blocks:
            h = block(h)
        return self.head(h)
