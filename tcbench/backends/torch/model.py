"""Residual networks for PyTorch, in its own modules: nn.Conv2d, nn.BatchNorm2d, in-place ReLU, as its users write it.

Variant, initial weights, epsilon and running momentum are those of our other backends: weights are drawn from the same
generator in the same order, and so are the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tcbench.backends.initial import he_normal
from tcbench.models.residual import Block, Conv, ResidualNetwork

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


class ResNet(nn.Module):
    """Images (N, 3, S, S) -> logits (N, n_classes)."""

    def __init__(self, variant: str, n_classes: int, rng: np.random.RandomState, geometry: ResidualNetwork) -> None:
        super().__init__()
        self.stem = Unit(geometry.stem, rng)
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(ResidualBlock(block, rng) for block in geometry.blocks(variant)))
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.head: Any = nn.utils.skip_init(nn.Linear, geometry.features, n_classes)
        weight = he_normal((n_classes, geometry.features), geometry.features, rng)
        self.head.weight = nn.Parameter(torch.from_numpy(weight))
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Any) -> Any:
        h = self.blocks(self.pool(self.stem(x)))
        return self.head(torch.flatten(self.mean(h), 1))
