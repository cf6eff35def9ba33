"""Networks for PyTorch, in its own modules: nn.Conv2d, nn.BatchNorm2d, in-place ReLU, as its users write it.

Variant, initial weights, epsilon and running momentum are those of our other backends: weights are drawn from the same
generator in the same order, and so are the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tcbench.engine.backends.initial import he_normal, normal
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

EPS = 2e-5
"""Chainer's batch-normalisation epsilon; PyTorch's own default is 1e-5."""


class Unit(nn.Module):
    """conv -> batch norm -> [add] -> [ReLU]; or conv with a bias -> [ReLU]."""

    def __init__(self, conv: Conv, rng: np.random.RandomState) -> None:
        super().__init__()
        self.conv: Any = nn.utils.skip_init(
            nn.Conv2d, conv.in_channels, conv.out_channels, conv.ksize, conv.stride, conv.pad, bias=conv.bias
        )
        shape = (conv.out_channels, conv.in_channels, conv.ksize, conv.ksize)
        self.conv.weight = nn.Parameter(torch.from_numpy(he_normal(shape, conv.in_channels * conv.ksize**2, rng)))
        if conv.bias:
            nn.init.zeros_(self.conv.bias)
        self.bn = nn.Identity() if conv.bias else nn.BatchNorm2d(conv.out_channels, eps=EPS)
        self.relu = nn.ReLU(inplace=True) if conv.relu else nn.Identity()

    def forward(self, x: Any, shortcut: Any = None) -> Any:
        h = self.bn(self.conv(x))
        if shortcut is not None:
            h += shortcut
        return self.relu(h)


class ResidualBlock(nn.Module):
    """Units a, b and so on, around a shortcut."""

    def __init__(self, block: Block, rng: np.random.RandomState) -> None:
        super().__init__()
        self.names = "abc"[: len(block.convs)]
        for name, conv in zip(self.names, block.convs, strict=True):
            setattr(self, name, Unit(conv, rng))
        self.shortcut = Unit(block.shortcut, rng) if block.shortcut else nn.Identity()

    def forward(self, x: Any) -> Any:
        shortcut = self.shortcut(x)
        *units, last = (getattr(self, name) for name in self.names)
        for unit in units:
            x = unit(x)
        return last(x, shortcut)


class Classifier(nn.Module):
    """A matrix product and a bias, with ReLU or without."""

    def __init__(self, linear: Linear, rng: np.random.RandomState) -> None:
        super().__init__()
        inputs = linear.in_features * linear.side**2
        self.fc: Any = nn.utils.skip_init(nn.Linear, inputs, linear.out_features)
        shape = linear.out_features, inputs
        weight = he_normal(shape, inputs, rng) if linear.std is None else normal(shape, linear.std, rng)
        self.fc.weight = nn.Parameter(torch.from_numpy(weight))
        nn.init.zeros_(self.fc.bias)
        self.relu = nn.ReLU(inplace=True) if linear.relu else nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.relu(self.fc(torch.flatten(x, 1)))


class Tiles(nn.Module):
    """Means over windows, as `tcbench.engine.work.TiledAverageForward` has them."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.out = out

    def forward(self, x: Any) -> Any:
        stride = x.shape[2] // self.out
        if stride == 0:  # fewer pixels than outputs: each is the mean of all
            return F.adaptive_avg_pool2d(x, 1).expand(-1, -1, self.out, self.out)
        return F.avg_pool2d(x, x.shape[2] - (self.out - 1) * stride, stride)


class BesideEachOther(nn.Module):
    """Sequences on one input, concatenated. Their stages are modules of this one."""

    def __init__(self, stage: Branches, rng: np.random.RandomState) -> None:
        super().__init__()
        self.branches = [[name for name, _ in branch] for branch in stage.branches]
        for name, inner in (named for branch in stage.branches for named in branch):
            self.add_module(name, _module(inner, rng))

    def forward(self, x: Any) -> Any:
        outputs = []
        for branch in self.branches:
            h = x
            for name in branch:
                h = self.get_submodule(name)(h)
            outputs.append(h)
        return torch.cat(outputs, 1)


class AuxiliaryClassifier(nn.Sequential):
    """Logits for a loss of their own, which counts `weight`."""

    def __init__(self, stage: Auxiliary, rng: np.random.RandomState) -> None:
        super().__init__()
        self.weight = stage.weight
        for name, inner in stage.stages:
            self.add_module(name, _module(inner, rng))


def _module(stage: Stage, rng: np.random.RandomState) -> nn.Module:
    if isinstance(stage, Conv):
        return Unit(stage, rng)
    if isinstance(stage, Block):
        return ResidualBlock(stage, rng)
    if isinstance(stage, MaxPool):
        return nn.MaxPool2d(stage.ksize, stage.stride, stage.pad, ceil_mode=stage.ceil)
    if isinstance(stage, GlobalAverage):
        return nn.AdaptiveAvgPool2d(1)
    if isinstance(stage, TiledAverage):
        return Tiles(stage.out)
    if isinstance(stage, Lrn):
        return nn.LocalResponseNorm(stage.size, stage.alpha * stage.size, stage.beta, stage.k)  # it divides by the size
    if isinstance(stage, Dropout):
        torch.manual_seed(rng.randint(2**31))
        return nn.Dropout(stage.ratio)
    if isinstance(stage, Branches):
        return BesideEachOther(stage, rng)
    if isinstance(stage, Auxiliary):
        return AuxiliaryClassifier(stage, rng)
    return Classifier(stage, rng)


class Network(nn.Sequential):
    """Images (N, 3, S, S) -> logits (N, n_classes), and in training those of auxiliary classifiers. Stages are modules
    by their names."""

    def __init__(self, stages: Iterable[Named], rng: np.random.RandomState) -> None:
        super().__init__()
        for name, stage in stages:
            self.add_module(name, _module(stage, rng))

    def forward(self, x: Any) -> tuple[Any, ...]:
        others = []
        for module in self:
            if not isinstance(module, AuxiliaryClassifier):
                x = module(x)
            elif self.training:
                others.append(module(x))
        return (x, *others)

    @property
    def auxiliary_weights(self) -> list[float]:
        """Of the losses of auxiliary classifiers, in the order of `forward`."""
        return [module.weight for module in self if isinstance(module, AuxiliaryClassifier)]
