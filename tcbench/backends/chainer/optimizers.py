"""The optimizers by how they update: parameter by parameter, or all at once; each on the host or on an accelerator."""

from __future__ import annotations

from typing import Any

from tcbench.accelerators.protocol import current
from tcbench.backends.chainer.compat import chainer
from tcbench.backends.chainer.device_sgd import BatchedSGD, PerParameterSGD
from tcbench.backends.chainer.flat_sgd import FlatSGD
from tcbench.backends.chainer.parts import Optimizer, OptimizerSpec


def per_parameter_sgd(spec: OptimizerSpec, model: Any) -> Optimizer:
    """As Chainer has it: one update rule per parameter, weight decay as a hook."""
    accelerator = current()
    return ChainerSGD(spec, model) if accelerator is None else PerParameterSGD(spec, model, accelerator)


def batched_sgd(spec: OptimizerSpec, model: Any) -> Optimizer:
    """All parameters at once."""
    accelerator = current()
    return FlatSGD(spec, model) if accelerator is None else BatchedSGD(spec, model, accelerator)


class ChainerSGD:
    """Chainer's own MomentumSGD on the host."""

    def __init__(self, spec: OptimizerSpec, model: Any) -> None:
        self._loss_scale = spec.loss_scale
        self._optimizer = chainer.optimizers.MomentumSGD(lr=spec.learning_rate, momentum=spec.momentum)
        if spec.master_weights:
            self._optimizer.use_fp32_update()
        self._optimizer.setup(model)
        self._optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(spec.weight_decay))

    def backward(self, loss: Any) -> None:
        """Gradients of `loss` times the scale; Chainer divides it out when it updates."""
        loss.backward(loss_scale=self._loss_scale)

    def update(self) -> None:
        """One update of every parameter from its `grad`."""
        self._optimizer.update()

    def check(self) -> None:
        """On the host a gradient that is not finite shows in the loss of the next step."""
