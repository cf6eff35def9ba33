"""Networks for Chainer: one class, built from stages and parts. Everything that a rung may change is a part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tcbench.backends.chainer import ops
from tcbench.backends.chainer.compat import chainer
from tcbench.backends.chainer.parts import Classifier, Parts
from tcbench.models.geometry import Block, Conv, GlobalAverage, Linear, MaxPool, Named, Stage


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


class Operation(chainer.Link):
    """A stage without parameters."""

    def __init__(self, operate: Callable[[Any], Any]) -> None:
        super().__init__()
        self.forward = operate


def _operation(parts: Parts, stage: Stage) -> Operation:
    layout = parts.spec.layout
    if isinstance(stage, MaxPool):
        return Operation(
            lambda x: ops.max_pooling_2d(x, ksize=stage.ksize, stride=stage.stride, pad=stage.pad, layout=layout)
        )
    assert isinstance(stage, GlobalAverage)
    return Operation(lambda x: ops.global_average_pooling_2d(x, layout=layout))


def _link(parts: Parts, stage: Stage, rng: np.random.RandomState) -> Any:
    if isinstance(stage, Conv):
        return parts.unit(parts.spec, stage, rng)
    if isinstance(stage, Block):
        return ResidualBlock(parts, stage, rng)
    if isinstance(stage, Linear):
        return Classifier(parts.spec, stage, rng)
    return _operation(parts, stage)


class Network(chainer.Chain):
    """Images in the spec's layout and dtype -> logits (N, n_classes). Stages are links by their names."""

    def __init__(self, parts: Parts, stages: Iterable[Named], rng: np.random.RandomState) -> None:
        super().__init__()
        self.parts = parts
        self._order: list[str] = []
        with self.init_scope():
            for name, stage in stages:
                setattr(self, name, _link(parts, stage, rng))
                self._order.append(name)
        self._body = parts.body(Network.body)

    def forward(self, x: Any) -> Any:
        return self._body(self, x)

    def body(self, x: Any) -> Any:
        for name in self._order:
            x = self[name](x)
        return x
