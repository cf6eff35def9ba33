"""The parts of a config's model, optimizer and step before they are made: the frozen values that rungs change.

Owns the parts and what they are when no rung changes them: what a PyTorch user gets who sets nothing. Knows no rung."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tcbench.core.errors import TrainingError
from tcbench.engine.feeds.spec import TensorSpec

Forward = Callable[[Any], Any]
"""Images (N, 3, S, S) -> logits (N, n_classes); a module, or what was made of one."""


@dataclass(frozen=True)
class Parts:
    """The parts that the model is built from. `pixels`: how the feed stores a batch. `memory_format`: how the model
    keeps filters and activations. `autocast`: the dtype that operations are cast to in the forward pass where PyTorch
    deems it safe; None: no casting. `body` makes of the model what a step calls."""

    pixels: TensorSpec = field(default_factory=TensorSpec)
    memory_format: Any = torch.contiguous_format
    autocast: Any = None
    body: Callable[[Forward], Forward] = lambda model: model


@dataclass(frozen=True)
class OptimizerSpec:
    """torch.optim.SGD: v = momentum v + g + weight_decay w; w = w - learning_rate v. While the learning rate stays,
    that is our v = momentum v - learning_rate (g + weight_decay w); w = w + v. `how`: its arguments `foreach` and
    `fused`; empty for PyTorch's own choice. `loss_scale`: the GradScaler's, which stays what it is; None: no
    GradScaler."""

    learning_rate: float
    momentum: float
    weight_decay: float
    how: tuple[tuple[str, bool], ...] = ()
    loss_scale: float | None = None


class Optimizer:
    """SGD with PyTorch's GradScaler around it; without a loss scale the scaler hands everything on."""

    def __init__(self, spec: OptimizerSpec, model: torch.nn.Module, device: torch.device) -> None:
        self._sgd = torch.optim.SGD(
            model.parameters(),
            lr=spec.learning_rate,
            momentum=spec.momentum,
            weight_decay=spec.weight_decay,
            **dict(spec.how),
        )
        self._loss_scale = spec.loss_scale
        self._scaler = torch.amp.GradScaler(
            device.type,
            init_scale=spec.loss_scale or 1.0,
            growth_interval=2**31 - 1,  # a static scale: it never grows, and where it shrinks, `check` complains
            enabled=spec.loss_scale is not None,
        )

    def backward(self, loss: Any) -> None:
        """Gradients of all parameters, of the loss times the scale."""
        self._sgd.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()

    def update(self) -> None:
        """One update of every parameter from its gradient."""
        self._scaler.step(self._sgd)
        self._scaler.update()

    def check(self) -> None:
        """Raises TrainingError when gradients have overflowed under the static scale. May wait for the device."""
        if self._loss_scale is not None and self._scaler.get_scale() < self._loss_scale:
            raise TrainingError(
                f"gradients overflowed float16 with loss_scale {self._loss_scale:g}: "
                "expected a smaller train.loss_scale in the scenario"
            )
