"""The parts of a config's model, optimizer and step before they are made: the frozen values that rungs change.

Owns the parts and what they are when no rung changes them. Knows no rung."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.initial import NoNumbers, he_normal, normal
from tcbench.engine.feeds.spec import TensorSpec
from tcbench.engine.models.geometry import Conv, Linear
from tcbench.engine.work import stored, wide


class Unit(chainer.Chain):
    """conv -> batch norm or bias -> [add] -> [ReLU], each an operation of its own. Called with the input and, for the
    last unit of a block, the shortcut to add; both in the spec's layout."""

    def __init__(self, spec: TensorSpec, conv: Conv, rng: np.random.RandomState) -> None:
        super().__init__()
        self.spec = spec
        self.conv = conv
        scalars = wide(spec.dtype)
        channels = conv.out_channels
        with self.init_scope():
            self.w = chainer.Parameter(drawn_filter(spec, conv, rng))
            if conv.bias:
                self.b = chainer.Parameter(np.zeros(channels, scalars))
                return
            self.gamma = chainer.Parameter(np.ones(channels, scalars))
            self.beta = chainer.Parameter(np.zeros(channels, scalars))
        self.running = ops.RunningStatistics(np.zeros(channels, scalars), np.ones(channels, scalars))

    @property
    def geometry(self) -> dict[str, Any]:
        """Arguments of every convolution of this unit."""
        return {"stride": self.conv.stride, "pad": self.conv.pad, "layout": self.spec.layout, "math": self.spec.math}

    def forward(self, x: Any, shortcut: Any = None) -> Any:
        return self.normalise(self.convolve(x), shortcut)

    def convolve(self, x: Any) -> Any:
        """The convolution: what another way of computing it replaces."""
        return ops.convolution_2d(x, self.w, **self.geometry)

    def normalise(self, h: Any, shortcut: Any) -> Any:
        """Everything after the convolution: what a fusion replaces."""
        if self.conv.bias:
            h = ops.bias(h, self.b, layout=self.spec.layout)
            return ops.relu(h) if self.conv.relu else h
        h = ops.batch_norm(h, self.gamma, self.beta, self.running, layout=self.spec.layout)
        if shortcut is not None:
            h = ops.add(h, shortcut)
        return ops.relu(h) if self.conv.relu else h


class Classifier(chainer.Chain):
    """A matrix product and a bias, with ReLU or without: (N, out_features) in the spec's dtype."""

    def __init__(self, spec: TensorSpec, linear: Linear, rng: np.random.RandomState) -> None:
        super().__init__()
        self.spec = spec
        self.relu = linear.relu
        conv = Conv(linear.in_features, linear.out_features, linear.side)
        matrix = drawn_filter(spec, conv, rng, linear.std)
        with self.init_scope():
            self.w = chainer.Parameter(matrix if linear.side > 1 else matrix.reshape(linear.out_features, -1))
            self.b = chainer.Parameter(np.zeros(linear.out_features, wide(spec.dtype)))

    def forward(self, x: Any) -> Any:
        y = ops.linear(x, self.w, self.b, math=self.spec.math)
        return ops.relu(y) if self.relu else y


def drawn_filter(spec: TensorSpec, conv: Conv, rng: np.random.RandomState, std: float | None = None) -> np.ndarray:
    """A filter in the spec's layout, drawn as (K, C, R, S) in every layout; He's, or with a standard deviation."""
    shape = (conv.out_channels, conv.in_channels, conv.ksize, conv.ksize)
    if isinstance(rng, NoNumbers):
        return np.empty(stored(spec.layout, *shape), spec.dtype)
    fan_in = conv.in_channels * conv.ksize**2
    filters = he_normal(shape, fan_in, rng) if std is None else normal(shape, std, rng)
    return spec.stored(filters)


@dataclass(frozen=True)
class Parts:
    """The parts that the model is built from. `body` wraps the model's forward function, model first."""

    spec: TensorSpec
    unit: Callable[[TensorSpec, Conv, np.random.RandomState], Any] = Unit
    body: Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]] = lambda forward: forward
