"""The parts of a config's model, with their defaults; rungs change them before the model is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.initial import NoRandomState, he_normal, normal
from tcbench.engine.feeds.spec import TensorSpec
from tcbench.engine.models.geometry import Conv, Linear
from tcbench.engine.work import stored, wide


class Unit(chainer.Chain):
    """A convolution with what follows it, as separate operations: batch norm or bias -> [add] -> [ReLU].

    It is called with the input and, in the last unit of a block, the shortcut to add; both in the spec's layout."""

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
        """The keyword arguments of this unit's convolution."""
        return {"stride": self.conv.stride, "pad": self.conv.pad, "layout": self.spec.layout, "math": self.spec.math}

    def forward(self, x: Any, shortcut: Any = None) -> Any:
        return self.normalise(self.convolve(x), shortcut)

    def convolve(self, x: Any) -> Any:
        """Apply the convolution. Rungs with another algorithm override this method."""
        return ops.convolution_2d(x, self.w, **self.geometry)

    def normalise(self, h: Any, shortcut: Any) -> Any:
        """Apply everything after the convolution. Rungs that fuse operations override this method."""
        if self.conv.bias:
            h = ops.bias(h, self.b, layout=self.spec.layout)
            return ops.relu(h) if self.conv.relu else h
        h = ops.batch_norm(h, self.gamma, self.beta, self.running, layout=self.spec.layout)
        if shortcut is not None:
            h = ops.add(h, shortcut)
        return ops.relu(h) if self.conv.relu else h


class Classifier(chainer.Chain):
    """A fully connected layer with a bias and an optional ReLU; its output is (N, out_features) in the spec's dtype."""

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
    """Return initial weights of a filter in the spec's layout, by He's rule or with standard deviation `std`.

    They are drawn as (K, C, R, S) for every layout, so that all layouts start with the same weights."""
    shape = (conv.out_channels, conv.in_channels, conv.ksize, conv.ksize)
    if isinstance(rng, NoRandomState):
        return np.empty(stored(spec.layout, *shape), spec.dtype)
    fan_in = conv.in_channels * conv.ksize**2
    filters = he_normal(shape, fan_in, rng) if std is None else normal(shape, std, rng)
    return spec.stored(filters)


@dataclass(frozen=True)
class Parts:
    """The parts that a model is built from: `unit` makes a convolution unit, `body` wraps the forward function."""

    spec: TensorSpec
    unit: Callable[[TensorSpec, Conv, np.random.RandomState], Any] = Unit
    body: Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]] = lambda forward: forward
