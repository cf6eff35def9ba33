"""Networks for Chainer, built from stages and from the parts that rungs may change."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tcbench.engine.backends import tree
from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.parts import Classifier, Parts
from tcbench.engine.models import geometry


class Container(chainer.Chain):
    """A chain that holds links by name. `flow` is its forward function (see `tree.Flow`)."""

    def __init__(self, flow: tree.Flow) -> None:
        super().__init__()
        self.flow = flow

    def add(self, name: str, link: Any) -> None:
        with self.init_scope():
            setattr(self, name, link)

    def forward(self, x: Any) -> Any:
        return self.flow(self, x)


class Operation(chainer.Link):
    """A link for a stage without parameters."""

    def __init__(self, operate: Callable[[Any], Any]) -> None:
        super().__init__()
        self.forward = operate


class DropoutLink(chainer.Link):
    """A dropout stage; see `ops.dropout` for `counter`."""

    def __init__(self, parts: Parts, ratio: float, rng: np.random.RandomState) -> None:
        super().__init__()
        self.ratio = ratio
        self.layout = parts.spec.layout
        self.counter = np.array([rng.randint(2**31), 0], np.int64)

    def forward(self, x: Any) -> Any:
        return ops.dropout(x, self.ratio, self.counter, layout=self.layout)


def _builder(parts: Parts, rng: np.random.RandomState) -> tree.NetworkBuilder:
    """Return the builder of Chainer networks from these parts, with weights drawn from `rng`."""
    layout = parts.spec.layout

    def operation(operate: Callable[..., Any], **settings: Any) -> Operation:
        return Operation(functools.partial(operate, **settings, layout=layout))

    def conv(
        in_channels: int, out_channels: int, ksize: int, stride: int, relu: bool, bias: bool, pad: int
    ) -> chainer.Link:
        return parts.unit(parts.spec, geometry.Conv(in_channels, out_channels, ksize, stride, relu, bias, pad), rng)

    def linear(in_features: int, out_features: int, relu: bool, side: int, std: float | None) -> chainer.Link:
        return Classifier(parts.spec, geometry.Linear(in_features, out_features, relu, side, std), rng)

    makers: dict[type[geometry.Stage], Callable[..., Any]] = {
        geometry.Conv: conv,
        geometry.Linear: linear,
        geometry.Dropout: lambda ratio: DropoutLink(parts, ratio, rng),
        geometry.MaxPool: lambda ksize, stride, pad, ceil: operation(
            ops.max_pooling_2d, ksize=ksize, stride=stride, pad=pad, ceil=ceil
        ),
        geometry.GlobalAverage: lambda: operation(ops.global_average_pooling_2d),
        geometry.TiledAverage: lambda out: operation(ops.tiled_average_pooling_2d, out=out),
        geometry.Lrn: lambda size, alpha, beta, k: operation(
            ops.local_response_normalization, size=size, alpha=alpha, beta=beta, k=k
        ),
    }
    return tree.NetworkBuilder("chainer", Container, lambda maps: ops.concatenate(tuple(maps), layout=layout), makers)


class ChainerNetwork(Container):
    """A network from images in the spec's layout and dtype to logits (N, n_classes)."""

    def __init__(self, parts: Parts, stages: Iterable[geometry.Named], rng: np.random.RandomState) -> None:
        stages = tuple(stages)
        super().__init__(lambda _, x: self._body(self, x)[0])
        self.parts = parts
        self.names = [name for name, _ in stages]
        self.auxiliary = tree.auxiliary_weights(stages)
        self._body = parts.body(ChainerNetwork.body)
        _builder(parts, rng).fill(self, stages)

    def loss(self, x: Any, t: Any) -> Any:
        """Return the mean softmax cross entropy with labels t (N,), plus weighted losses of auxiliary classifiers."""
        logits, *auxiliary = self._body(self, x)
        total = ops.softmax_cross_entropy(logits, t)
        for other, weight in zip(auxiliary, self.auxiliary.values(), strict=chainer.config.train):
            total = ops.add(total, ops.softmax_cross_entropy(other, t, weight))
        return total

    def body(self, x: Any) -> tuple[Any, ...]:
        """Return the logits, followed in training by those of auxiliary classifiers."""
        return tree.all_logits(self, self.names, self.auxiliary, x, chainer.config.train)
