"""Networks in PyTorch's own modules, as its users write them: nn.Conv2d, nn.BatchNorm2d, in-place ReLU.

Variants, initial weights, epsilon and running momentum equal those of the other backends. Weights are drawn from the
same generator in the same order, so they are identical."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tcbench.engine.backends import tree
from tcbench.engine.backends.initial import he_normal, normal
from tcbench.engine.models import geometry

EPS = 2e-5
"""Chainer's epsilon of batch normalisation; PyTorch's default is 1e-5."""


class TorchUnit(nn.Module):
    """A convolution with what follows it: batch norm -> [add] -> [ReLU], or a bias -> [ReLU]."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        ksize: int,
        stride: int,
        relu: bool,
        bias: bool,
        pad: int,
        *,
        rng: np.random.RandomState,
    ) -> None:
        super().__init__()
        self.conv: Any = nn.utils.skip_init(nn.Conv2d, in_channels, out_channels, ksize, stride, pad, bias=bias)
        shape = (out_channels, in_channels, ksize, ksize)
        self.conv.weight = nn.Parameter(torch.from_numpy(he_normal(shape, in_channels * ksize**2, rng)))
        if bias:
            nn.init.zeros_(self.conv.bias)
        self.bn = nn.Identity() if bias else nn.BatchNorm2d(out_channels, eps=EPS)
        self.relu = nn.ReLU(inplace=True) if relu else nn.Identity()

    def forward(self, x: Any, shortcut: Any = None) -> Any:
        """Apply the unit; `shortcut` is added before ReLU."""
        h = self.bn(self.conv(x))
        if shortcut is not None:
            h += shortcut
        return self.relu(h)


class TorchClassifier(nn.Module):
    """A fully connected layer with a bias and an optional ReLU."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        relu: bool,
        side: int,
        std: float | None,
        *,
        rng: np.random.RandomState,
    ) -> None:
        super().__init__()
        inputs = in_features * side**2
        self.fc: Any = nn.utils.skip_init(nn.Linear, inputs, out_features)
        shape = out_features, inputs
        weight = he_normal(shape, inputs, rng) if std is None else normal(shape, std, rng)
        self.fc.weight = nn.Parameter(torch.from_numpy(weight))
        nn.init.zeros_(self.fc.bias)
        self.relu = nn.ReLU(inplace=True) if relu else nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.relu(self.fc(torch.flatten(x, 1)))


class Tiles(nn.Module):
    """Average pooling to `out` x `out` pixels, with the windows of `tcbench.engine.work.TiledAverageForward`."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.out = out

    def forward(self, x: Any) -> Any:
        """Return the means over the windows of square maps x (N, C, H, H), as (N, C, out, out)."""
        stride = x.shape[2] // self.out
        if stride == 0:  # fewer pixels than outputs: each is the mean of all
            return F.adaptive_avg_pool2d(x, 1).expand(-1, -1, self.out, self.out)
        return F.avg_pool2d(x, x.shape[2] - (self.out - 1) * stride, stride)


class TorchContainer(nn.Module):
    """A module that holds others by name. `flow` is its forward function (see `tree.Flow`)."""

    def __init__(self, flow: tree.Flow) -> None:
        super().__init__()
        self.flow = flow

    def add(self, name: str, module: nn.Module) -> None:
        self.add_module(name, module)

    def __getitem__(self, name: str) -> nn.Module:
        return self.get_submodule(name)

    def forward(self, x: Any) -> Any:
        return self.flow(self, x)


def _dropout(ratio: float, rng: np.random.RandomState) -> nn.Module:
    """Return a dropout module and seed PyTorch's generator from `rng`."""
    torch.manual_seed(rng.randint(2**31))
    return nn.Dropout(ratio)


def _builder(rng: np.random.RandomState) -> tree.NetworkBuilder:
    """Return the builder of PyTorch networks whose weights are drawn from `rng`."""
    makers: dict[type[geometry.Stage], Callable[..., nn.Module]] = {
        geometry.Conv: functools.partial(TorchUnit, rng=rng),
        geometry.Linear: functools.partial(TorchClassifier, rng=rng),
        geometry.Dropout: functools.partial(_dropout, rng=rng),
        geometry.MaxPool: lambda ksize, stride, pad, ceil: nn.MaxPool2d(ksize, stride, pad, ceil_mode=ceil),
        geometry.GlobalAverage: lambda: nn.AdaptiveAvgPool2d(1),
        geometry.TiledAverage: lambda out: Tiles(out),
        # PyTorch divides alpha by the size.
        geometry.Lrn: lambda size, alpha, beta, k: nn.LocalResponseNorm(size, alpha * size, beta, k),
    }
    return tree.NetworkBuilder("torch", TorchContainer, lambda maps: torch.cat(maps, 1), makers)


class TorchNetwork(TorchContainer):
    """A network from images (N, 3, S, S) to a tuple of logits (N, n_classes).

    In training the logits of auxiliary classifiers follow; `auxiliary` holds the weights of their losses by name."""

    def __init__(self, stages: Iterable[geometry.Named], rng: np.random.RandomState) -> None:
        stages = tuple(stages)
        names = [name for name, _ in stages]
        super().__init__(lambda _, x: tree.all_logits(self, names, self.auxiliary, x, self.training))
        self.auxiliary = tree.auxiliary_weights(stages)
        _builder(rng).fill(self, stages)
