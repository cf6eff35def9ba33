"""Networks for Chainer: one class, built from stages and parts. Everything that a rung may change is a part."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.parts import Classifier, Parts
from tcbench.engine.models.geometry import (
    Auxiliary,
    Block,
    Branches,
    Conv,
    Dropout,
    GlobalAverage,
    Linear,
    Lrn,
    MaxPool,
    Named,
    Stage,
    TiledAverage,
)


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


class Sequence(chainer.Chain):
    """Stages one after the other: links by their names."""

    def __init__(self, parts: Parts, stages: Iterable[Named], rng: np.random.RandomState) -> None:
        super().__init__()
        self.names: list[str] = []
        with self.init_scope():
            for name, stage in stages:
                setattr(self, name, _link(parts, stage, rng))
                self.names.append(name)

    def forward(self, x: Any) -> Any:
        for name in self.names:
            x = self[name](x)
        return x


class BesideEachOther(chainer.Chain):
    """Sequences on one input, concatenated. Their stages are links of this one."""

    def __init__(self, parts: Parts, stage: Branches, rng: np.random.RandomState) -> None:
        super().__init__()
        self.layout = parts.spec.layout
        self.branches = [[name for name, _ in branch] for branch in stage.branches]
        with self.init_scope():
            for name, inner in (named for branch in stage.branches for named in branch):
                setattr(self, name, _link(parts, inner, rng))

    def forward(self, x: Any) -> Any:
        outputs = (functools.reduce(lambda h, name: self[name](h), branch, x) for branch in self.branches)
        return ops.concatenate(tuple(outputs), layout=self.layout)


class AuxiliaryClassifier(Sequence):
    """Logits for a loss of their own, which counts `weight`."""

    def __init__(self, parts: Parts, stage: Auxiliary, rng: np.random.RandomState) -> None:
        super().__init__(parts, stage.stages, rng)
        self.weight = stage.weight


class Operation(chainer.Link):
    """A stage without parameters."""

    def __init__(self, operate: Callable[[Any], Any]) -> None:
        super().__init__()
        self.forward = operate


class DropoutLink(chainer.Link):
    """`counter`: see `ops.dropout`."""

    def __init__(self, parts: Parts, ratio: float, rng: np.random.RandomState) -> None:
        super().__init__()
        self.ratio = ratio
        self.layout = parts.spec.layout
        self.counter = np.array([rng.randint(2**31), 0], np.int64)

    def forward(self, x: Any) -> Any:
        return ops.dropout(x, self.ratio, self.counter, layout=self.layout)


def _operation(parts: Parts, stage: MaxPool | GlobalAverage | TiledAverage | Lrn) -> Operation:
    layout = parts.spec.layout
    if isinstance(stage, MaxPool):
        window: dict[str, Any] = {
            "ksize": stage.ksize,
            "stride": stage.stride,
            "pad": stage.pad,
            "ceil": stage.ceil,
        }
        return Operation(functools.partial(ops.max_pooling_2d, **window, layout=layout))
    if isinstance(stage, GlobalAverage):
        return Operation(functools.partial(ops.global_average_pooling_2d, layout=layout))
    if isinstance(stage, TiledAverage):
        return Operation(functools.partial(ops.tiled_average_pooling_2d, out=stage.out, layout=layout))
    settings: dict[str, Any] = {"size": stage.size, "alpha": stage.alpha, "beta": stage.beta, "k": stage.k}
    return Operation(functools.partial(ops.local_response_normalization, **settings, layout=layout))


def _link(parts: Parts, stage: Stage, rng: np.random.RandomState) -> Any:
    if isinstance(stage, Conv):
        return parts.unit(parts.spec, stage, rng)
    if isinstance(stage, Block):
        return ResidualBlock(parts, stage, rng)
    if isinstance(stage, Branches):
        return BesideEachOther(parts, stage, rng)
    if isinstance(stage, Auxiliary):
        return AuxiliaryClassifier(parts, stage, rng)
    if isinstance(stage, Linear):
        return Classifier(parts.spec, stage, rng)
    if isinstance(stage, Dropout):
        return DropoutLink(parts, stage.ratio, rng)
    return _operation(parts, stage)


class Network(Sequence):
    """Images in the spec's layout and dtype -> logits (N, n_classes)."""

    def __init__(self, parts: Parts, stages: Iterable[Named], rng: np.random.RandomState) -> None:
        super().__init__(parts, stages, rng)
        self.parts = parts
        self._body = parts.body(Network.body)

    def forward(self, x: Any) -> Any:
        return self._body(self, x)[0]

    def loss(self, x: Any, t: Any) -> Any:
        """The mean softmax cross entropy with labels t (N,), and those of auxiliary classifiers by their weights."""
        logits, *others = self._body(self, x)
        total = ops.softmax_cross_entropy(logits, t)
        for other, link in zip(others, self._auxiliaries(), strict=True):
            total = ops.add(total, ops.softmax_cross_entropy(other, t, link.weight))
        return total

    def _auxiliaries(self) -> list[AuxiliaryClassifier]:
        """Those that work: none outside training."""
        links = (self[name] for name in self.names) if chainer.config.train else ()
        return [link for link in links if isinstance(link, AuxiliaryClassifier)]

    def body(self, x: Any) -> tuple[Any, ...]:
        """Logits, and those of auxiliary classifiers."""
        working, others = self._auxiliaries(), []
        for name in self.names:
            link = self[name]
            if link in working:
                others.append(link(x))
            elif not isinstance(link, AuxiliaryClassifier):
                x = link(x)
        return (x, *others)
