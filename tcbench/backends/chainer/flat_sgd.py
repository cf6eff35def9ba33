"""SGD with momentum over one flat array of all parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tcbench.accelerators.numpy import parallel
from tcbench.accelerators.numpy.half import is_widened
from tcbench.backends.chainer.parts import OptimizerSpec

_BLOCK = 1 << 16
"""Values per block: gradient, weight and velocity of a block (768 KiB in float32) stay in the second-level cache."""

MAX_SCALE = 2.0**24
"""Where a dynamic loss scale stops growing."""


class FlatSGD:
    """v = momentum v - learning_rate (g / loss_scale + weight_decay w); w = w + v, for all parameters at once.

    Takes over the model's parameters: each becomes a view into one flat array per dtype. Where a dtype is float16 and
    the spec asks for master weights, the update works on a float32 copy and rounds it once into the parameters.
    """

    def __init__(self, spec: OptimizerSpec, model: Any) -> None:
        self.spec = spec
        self.loss_scale = spec.loss_scale
        self.updates = 0
        self.skipped = 0
        self._good_steps = 0
        self._parameters = list(model.params())
        by_dtype: dict[np.dtype[Any], list[Any]] = {}
        for parameter in model.params():
            by_dtype.setdefault(parameter.array.dtype, []).append(parameter)
        self._groups = [_Group(spec, parameters) for parameters in by_dtype.values()]

    def backward(self, loss: Any) -> None:
        """Gradients of `loss` times the scale; `update` divides it out."""
        loss.backward(loss_scale=self.loss_scale)

    def update(self) -> None:
        """One update of every parameter from its `grad`."""
        self.updates += 1
        if self.spec.dynamic_scale and not all(np.isfinite(p.grad).all() for p in self._parameters):
            self.skipped += 1
            self._good_steps, self.loss_scale = 0, max(1.0, self.loss_scale / 2)
            return
        for group in self._groups:
            group.update(self.loss_scale)
        self._good_steps += 1
        if self.spec.dynamic_scale and self._good_steps >= self.spec.growth_interval:
            self._good_steps, self.loss_scale = 0, min(MAX_SCALE, self.loss_scale * 2)

    def check(self) -> None:
        """On the host a gradient that is not finite shows in the loss of the next step."""

    def masters(self) -> dict[int, np.ndarray]:
        """The array that each parameter trains in, by the parameter's id: its master copy, or the parameter's own
        array."""
        return {identity: array for group in self._groups for identity, array in group.masters()}


class _Group:
    """All parameters of one dtype, side by side."""

    def __init__(self, spec: OptimizerSpec, parameters: list[Any]) -> None:
        self._spec = spec
        self._parameters = parameters
        self._flat = np.concatenate([p.array.ravel() for p in parameters])
        start = 0
        for parameter in parameters:
            view = self._flat[start : start + parameter.size]
            parameter.array = view.reshape(parameter.shape)
            start += parameter.size
        self._half = is_widened(self._flat.dtype)
        self._weights = self._flat.astype(np.float32) if self._half and spec.master_weights else self._flat
        self._velocity = np.zeros(self._flat.shape, np.float32 if self._half else self._flat.dtype)
        self._blocks = self._split()

    def masters(self) -> Iterator[tuple[int, np.ndarray]]:
        """Parameter ids and the weights the update works on, in the parameter's shape."""
        place = 0
        for parameter in self._parameters:
            yield id(parameter), self._weights[place : place + parameter.size].reshape(parameter.shape)
            place += parameter.size

    def _split(self) -> list[tuple[int, int, int, int]]:
        """(parameter, begin, end, place in the flat array) of blocks that together cover every parameter."""
        blocks, place = [], 0
        for index, parameter in enumerate(self._parameters):
            for begin in range(0, parameter.size, _BLOCK):
                end = min(begin + _BLOCK, parameter.size)
                blocks.append((index, begin, end, place + begin))
            place += parameter.size
        return blocks

    def update(self, loss_scale: float) -> None:
        gradients = [p.grad.reshape(-1) for p in self._parameters]
        parallel.run(lambda block: self._update_block(loss_scale, gradients, *block), self._blocks)

    def _update_block(
        self, loss_scale: float, gradients: list[np.ndarray], index: int, begin: int, end: int, place: int
    ) -> None:
        spec = self._spec
        here = slice(place, place + end - begin)
        gradient = gradients[index][begin:end].astype(self._velocity.dtype)
        velocity = self._velocity[here]
        weights = self._weights[here]
        if weights.dtype != velocity.dtype:  # float16 without a master copy
            weights = weights.astype(velocity.dtype)
        gradient *= -spec.learning_rate / loss_scale
        velocity *= spec.momentum
        velocity += gradient
        np.multiply(weights, -spec.learning_rate * spec.weight_decay, out=gradient)
        velocity += gradient
        weights += velocity
        if self._half:
            self._flat[here] = weights
