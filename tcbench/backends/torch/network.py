"""Networks for PyTorch, in its own modules: nn.Conv2d, nn.BatchNorm2d, in-place ReLU, as its users write it.

Variant, initial weights, epsilon and running momentum are those of our other backends: weights are drawn from the same
generator in the same order, and so are the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from tcbench.backends.initial import he_normal
from tcbench.models.geometry import Block, Conv, GlobalAverage, Linear, MaxPool, Named, Stage

EPS = 2e-5
"""Chainer's batch-normalisation epsilon; PyTorch's own default is 1e-5."""


class Unit(nn.Module):
    """conv -> batch norm -> [add] -> [ReLU]."""

    def __init__(self, conv: Conv, rng: np.random.RandomState) -> None:
        super().__init__()
        self.conv: Any = nn.utils.skip_init(
            nn.Conv2d, conv.in_channels, conv.out_channels, conv.ksize, conv.stride, conv.pad, bias=False
        )
        shape = (conv.out_channels, conv.in_channels, conv.ksize, conv.ksize)
        self.conv.weight = nn.Parameter(torch.from_numpy(he_normal(shape, conv.in_channels * conv.ksize**2, rng)))
        self.bn = nn.BatchNorm2d(conv.out_channels, eps=EPS)
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
        shape = linear.out_features, linear.in_features
        self.fc: Any = nn.utils.skip_init(nn.Linear, linear.in_features, linear.out_features)
        self.fc.weight = nn.Parameter(torch.from_numpy(he_normal(shape, linear.in_features, rng)))
        nn.init.zeros_(self.fc.bias)
        self.relu = nn.ReLU(inplace=True) if linear.relu else nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.relu(self.fc(torch.flatten(x, 1)))


def _module(stage: Stage, rng: np.random.RandomState) -> nn.Module:
    if isinstance(stage, Conv):
        return Unit(stage, rng)
    if isinstance(stage, Block):
        return ResidualBlock(stage, rng)
    if isinstance(stage, MaxPool):
        return nn.MaxPool2d(stage.ksize, stage.stride, stage.pad)
    if isinstance(stage, GlobalAverage):
        return nn.AdaptiveAvgPool2d(1)
    return Classifier(stage, rng)


class Network(nn.Sequential):
    """Images (N, 3, S, S) -> logits (N, n_classes). Stages are modules by their names."""

    def __init__(self, stages: Iterable[Named], rng: np.random.RandomState) -> None:
        super().__init__()
        for name, stage in stages:
            self.add_module(name, _module(stage, rng))
