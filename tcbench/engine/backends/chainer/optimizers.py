"""SGD with momentum, for each parameter separately as in Chainer, or for all in one launch.

The loss scale and the count of overflows are on the device (`state`, see work.STATE_SIZE), so the host never waits for
them. Backward starts from the scale in that array, and the update divides by the same number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tcbench.core.errors import TrainingError
from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Array, current
from tcbench.engine.backends.chainer.exchange import Replica
from tcbench.engine.backends.chainer.kfac import KfacPreconditioner
from tcbench.engine.backends.chainer.ops.node import dtype_of, half_of


@dataclass(frozen=True)
class OptimizerSpec:
    """A description of SGD: v = momentum v - learning_rate (g / loss_scale + weight_decay w); w = w + v.

    - `build`: makes the optimizer for a model.
    - `master_weights`: whether a float32 copy of each 16-bit parameter is kept and updated.
    - `dynamic_scale`: whether the loss scale adapts, starting from `loss_scale`. A step whose gradients are not all
      finite is skipped and halves the scale; `growth_interval` good steps in a row double it (P. Micikevicius et al.,
      "Mixed Precision Training", 2018, section 3.2).
    - `precondition`: makes a preconditioner of the gradients, or None."""

    learning_rate: float
    momentum: float
    weight_decay: float
    build: Callable[[OptimizerSpec, Any], Optimizer]
    loss_scale: float = 1.0
    master_weights: bool = False
    dynamic_scale: bool = False
    growth_interval: int = 2000
    precondition: Callable[[Replica], KfacPreconditioner] | None = None


class Optimizer:
    """The base class of optimizers. `state` is the state of the loss scale on the device (see `work.STATE_SIZE`)."""

    def __init__(self, spec: OptimizerSpec, model: Any) -> None:
        self.spec = spec
        self._parameters = list(model.params())
        self.accelerator = accelerator = current()
        self.state = accelerator.upload(np.array([spec.loss_scale, 0, 0, 0], np.float32))
        self._seed = self.state[work.SCALE : work.SCALE + 1].reshape(())

    def backward(self, loss: Any) -> None:
        """Compute the gradients of `loss` times the loss scale."""
        seed = self._seed
        if seed.dtype != loss.dtype:  # float64, on the CPU
            seed = seed.astype(loss.dtype)
        loss.grad = seed
        loss.backward()

    def check(self) -> None:
        """Raise TrainingError if gradients overflowed with a constant loss scale. Waits for the device."""
        state = self.accelerator.download(self.state)
        if not self.spec.dynamic_scale and state[work.OVERFLOWS] > 0:
            scale = self.spec.loss_scale
            cure = "lower train.loss_scale or add the rung 'dynamic_scale'" if scale != 1 else "lower the learning rate"
            raise TrainingError(f"gradients overflowed at a loss scale of {scale:g}: {cure}")

    def set_learning_rate(self, learning_rate: float) -> None:
        """Change the learning rate from the next update on.

        Velocities contain the old rate as a factor, and are rescaled (P. Goyal et al., "Accurate, Large Minibatch SGD",
        2017, section 3: momentum correction)."""
        if learning_rate == self.spec.learning_rate:
            return
        factor = np.float32(learning_rate / self.spec.learning_rate)
        self.spec = replace(self.spec, learning_rate=learning_rate)
        self._set_rate(factor)

    def _set_rate(self, factor: Any) -> None:
        """Apply the learning rate in `spec`, and multiply velocities by `factor`."""
        raise NotImplementedError

    def gradients(self) -> tuple[Array, ...]:
        """Return the gradients that the next update reads, in the order of the model's parameters."""
        return tuple(parameter.grad for parameter in self._parameters)

    def update(self) -> None:
        """Update every parameter from its gradient."""
        raise NotImplementedError

    def masters(self) -> dict[int, Array]:
        """Return the array that is updated for each parameter (its float32 copy if there is one), by parameter id."""
        raise NotImplementedError


class PerParameterSGD(Optimizer):
    """An optimizer with as many launches per parameter as Chainer's MomentumSGD with the WeightDecay hook.

    Float32 takes two launches, for decay and momentum; 16 bits also take unscaling and casts in both directions.
    Without master weights every update starts from the stored 16-bit weights, so that rounding errors accumulate."""

    def __init__(self, spec: OptimizerSpec, model: Any) -> None:
        super().__init__(spec, model)
        accelerator = self.accelerator
        self._velocities = [accelerator.zeros(p.shape, work.wide(dtype_of(p.array))) for p in self._parameters]
        self._weights = [
            accelerator.take(accelerator.download(p.array).astype("f4")) if half_of(p.array) else p.array
            for p in self._parameters
        ]

    def update(self) -> None:
        for parameter, velocity, weights in zip(self._parameters, self._velocities, self._weights, strict=True):
            self._update(parameter, velocity, weights)

    def _update(self, parameter: Any, velocity: Array, weights: Array) -> None:
        """Update one parameter. Temporary arrays are freed on return, before the next parameter's are allocated."""
        spec, launch, empty = self.spec, self.accelerator.launch, self.accelerator.empty
        gradient, size, half = parameter.grad, parameter.size, half_of(parameter.array)
        if half and not spec.master_weights:
            launch(work.ToSingle.interned(size, half), parameter.array, weights)
        if self.spec.loss_scale != 1:
            unscaled = empty(gradient.shape, gradient.dtype)
            launch(work.Unscale.interned(size, dtype_of(gradient)), gradient, unscaled, self.state)
            gradient = unscaled
        if half:
            single = empty(gradient.shape, np.float32)
            launch(work.ToSingle.interned(size, half), gradient, single)
            gradient = single
        dtype = dtype_of(weights)
        launch(work.WeightDecay.interned(size, spec.weight_decay, dtype), gradient, weights)
        launch(
            work.MomentumUpdate.interned(size, spec.learning_rate, spec.momentum, dtype), gradient, velocity, weights
        )
        if half:
            launch(work.ToHalf.interned(size, half), weights, parameter.array)

    def _set_rate(self, factor: Any) -> None:
        for velocity in self._velocities:
            velocity *= factor

    def masters(self) -> dict[int, Array]:
        masters = self._weights if self.spec.master_weights else [p.array for p in self._parameters]
        return {id(p): weights for p, weights in zip(self._parameters, masters, strict=True)}


class BatchedSGD(Optimizer):
    """An optimizer that updates all parameters in one launch through a table of addresses.

    A dynamic loss scale takes two more launches. Float32 parameters become views into the flat master weights, and
    16-bit ones views into another flat array. Gradients stay where backward (or an exchange, see `use_gradients`) wrote
    them. Their addresses are sent at every update, because CuPy's memory pool returns other addresses at every step. A
    captured graph contains that copy, with the addresses at the time of the capture."""

    def __init__(self, spec: OptimizerSpec, model: Any) -> None:
        """Move the parameters into flat arrays. Raises ValueError for float64, because master weights are float32."""
        super().__init__(spec, model)
        accelerator = self.accelerator
        arrays = [p.array for p in self._parameters]
        if any(dtype_of(array) == "float64" for array in arrays):
            raise ValueError("a batched update: expected float32 or 16 bits, got float64")
        halves = [half_of(array) for array in arrays]
        described = work.Parameters(
            tuple(array.size for array in arrays),
            tuple(half is not None for half in halves),
            next(filter(None, halves), "float16"),
        )
        self._describe(described)
        self._gradients: tuple[Array, ...] | None = None
        self._adjust = work.AdjustScale(spec.growth_interval)

        master, narrow = np.zeros(described.total, np.float32), np.zeros(described.total_half, described.half)
        places = zip(arrays, described.places, described.half_places, strict=True) if accelerator.computes else ()
        for on_device, place, half_place in places:
            array = accelerator.download(on_device).reshape(-1)
            master[place : place + array.size] = array
            if half_of(array):
                narrow[half_place : half_place + array.size] = array
        self._master, self._half = accelerator.take(master), accelerator.take(narrow)
        self._velocity = accelerator.zeros((described.total,), np.float32)
        self._chunks = accelerator.upload(np.array(list(described.chunks()), np.int64).reshape(-1, 4))
        self._rows = np.zeros((len(arrays), 2), np.int64)
        self._table = accelerator.upload(self._rows)
        for row, parameter, half_place, place in zip(
            self._rows, self._parameters, described.half_places, described.places, strict=True
        ):
            size, shape = parameter.size, parameter.shape
            if half_of(parameter.array):
                view = self._half[half_place : half_place + size]
                row[1] = accelerator.address(view)
            else:
                view = self._master[place : place + size]
            parameter.array = view.reshape(shape)

    def _describe(self, described: work.Parameters) -> None:
        """Create the operations that check and update these parameters."""
        spec = self.spec
        self._described = described
        self._work = work.BatchedUpdate(
            described, spec.learning_rate, spec.momentum, spec.weight_decay, spec.dynamic_scale
        )
        self._check = work.CheckFinite(described)

    def use_gradients(self, gradients: tuple[Array, ...]) -> None:
        """Use these arrays as gradients in all further updates, instead of the parameters' attribute `grad`. They are
        in the order of the parameters and all have the same dtype."""
        dtype = dtype_of(gradients[0])
        if dtype != self._described.gradients:
            self._describe(replace(self._described, gradients=dtype))
        self._gradients = gradients

    def gradients(self) -> tuple[Array, ...]:
        return self._gradients or super().gradients()

    def update(self) -> None:
        """Send the addresses of the gradients, and launch the update; with a dynamic scale, check and adjust it."""
        launch = self.accelerator.launch
        address = self.accelerator.address
        self._rows[:, 0] = [address(gradient) for gradient in self.gradients()]
        self.accelerator.copy(self._rows, self._table)
        tables = (self._table, self._chunks)
        if self.spec.dynamic_scale:
            launch(self._check, *tables, self.state)
        launch(self._work, *tables, self._master, self._velocity, self.state)
        if self.spec.dynamic_scale:
            launch(self._adjust, self.state)

    def _set_rate(self, factor: Any) -> None:
        self._work = replace(self._work, learning_rate=self.spec.learning_rate)
        self._velocity *= factor

    def masters(self) -> dict[int, Array]:
        """Return each parameter's view into the flat master weights, by parameter id."""
        return {
            id(p): self._master[place : place + p.size].reshape(p.shape)
            for p, place in zip(self._parameters, self._described.places, strict=True)
        }
