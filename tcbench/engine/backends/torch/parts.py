"""Frozen descriptions of a config's model and optimizer, which rungs change before they are built. The defaults are
those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tcbench.core.errors import TrainingError
from tcbench.engine.feeds.spec import TensorSpec

Forward = Callable[[Any], Any]
"""A function from images (N, 3, S, S) to logits (N, n_classes): a module, or a compiled one."""


@dataclass(frozen=True)
class TorchParts:
    """A description of the model.

    - `pixels`: how the feed stores a batch.
    - `memory_format`: how the model stores filters and activations.
    - `autocast`: the dtype for PyTorch's autocast in the forward pass, or None for no casting.
    - `body`: a function that wraps the model, such as torch.compile."""

    pixels: TensorSpec = field(default_factory=TensorSpec)
    memory_format: Any = torch.contiguous_format
    autocast: Any = None
    body: Callable[[Forward], Forward] = lambda model: model


@dataclass(frozen=True)
class TorchOptimizerSpec:
    """A description of torch.optim.SGD: v = momentum v + g + weight_decay w; w = w - learning_rate v.

    At a constant learning rate this equals v = momentum v - learning_rate (g + weight_decay w); w = w + v, the form of
    the Chainer backend. `sgd_options` are further arguments, `foreach` or `fused`; empty for PyTorch's choice.
    `loss_scale` is a constant scale for the GradScaler, or None for none."""

    learning_rate: float
    momentum: float
    weight_decay: float
    sgd_options: tuple[tuple[str, bool], ...] = ()
    loss_scale: float | None = None


class TorchOptimizer:
    """PyTorch's SGD behind a GradScaler, which is disabled if there is no loss scale."""

    def __init__(self, spec: TorchOptimizerSpec, model: torch.nn.Module, device: torch.device) -> None:
        self._sgd = torch.optim.SGD(
            model.parameters(),
            lr=spec.learning_rate,
            momentum=spec.momentum,
            weight_decay=spec.weight_decay,
            **dict(spec.sgd_options),
        )
        self._loss_scale = spec.loss_scale
        self._scaler = torch.amp.GradScaler(
            device.type,
            init_scale=spec.loss_scale or 1.0,
            growth_interval=2**31 - 1,  # a static scale: it never grows, and `check` fails if it shrinks
            enabled=spec.loss_scale is not None,
        )

    def backward(self, loss: Any) -> None:
        """Compute the gradients of all parameters from the loss times the scale."""
        self._sgd.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()

    def update(self) -> None:
        """Update every parameter from its gradient."""
        self._scaler.step(self._sgd)
        self._scaler.update()

    def check(self) -> None:
        """Raise TrainingError if gradients have overflowed with the static scale. May wait for the device."""
        if self._loss_scale is not None and self._scaler.get_scale() < self._loss_scale:
            raise TrainingError(
                f"gradients overflowed float16 with loss_scale {self._loss_scale:g}: "
                "lower train.loss_scale in the scenario"
            )
