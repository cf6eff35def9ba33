"""K-FAC: gradients of convolutions and of the classifier, divided by the curvature of the loss in their layer.

A layer's Fisher information is taken for a Kronecker product of two matrices (`tcbench.engine.work.kfac`), the second
moments of its inputs and of its output's gradients over the batch that trains (the empirical Fisher information). SGD
with momentum then applies G^-1 gw A^-1 as it would apply gw. What batch normalisation learns stays SGD's: it is 0.2% of
ResNet-50's parameters, and its curvature asks for each image's own gradient of it, which no pass makes.

Over ranks, as in K. Osawa et al., 2019, section 4: every rank has the factors of its own batch, which are averaged;
each layer has one rank that inverts its factors and divides its gradient; then all get the results."""

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcbench.core.errors import TrainingError
from tcbench.core.record import KfacSettings
from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Array, current
from tcbench.engine.backends.chainer.exchange import Replica
from tcbench.engine.backends.chainer.layers import link_name
from tcbench.engine.backends.chainer.ops.convolution import ConvWorks, works_of
from tcbench.engine.backends.chainer.ops.node import ForwardNode, dtype_of, on_filter_gradient


@dataclass(frozen=True)
class KfacLayer:
    """A convolution or a classifier: its filter's gradient is a matrix (k, d), with that of its bias as last column if
    it has one. `weight` and `bias` are their places among the model's parameters."""

    name: str
    weight: int
    bias: int | None
    k: int
    d: int

    @property
    def cost(self) -> int:
        """Arithmetic of its inverses, relative."""
        return self.k**3 + self.d**3


class Kfac:
    """Divides gradients, once they are those of all ranks, by the curvature. `phases`: its part of a step, in order,
    between the gradients and the update. `period`: the steps after which that repeats."""

    def __init__(self, settings: KfacSettings, replica: Replica) -> None:
        """Raises ValueError for a model of 16 bits."""
        self._accelerator = accelerator = current()
        self._settings, self._world, self._optimizer = settings, replica.world, replica.optimizer
        parameters = tuple(replica.model.params())
        self.layers = _layers(replica.model, parameters)
        self._dtype = dtype = dtype_of(parameters[self.layers[0].weight].array)
        if dtype in work.HALVES:
            raise ValueError(f"K-FAC: expected float32 or float64, got {dtype}")
        self._by_node = {id(parameters[layer.weight].node): layer for layer in self.layers}
        self._used: defaultdict[KfacLayer, list[tuple[ForwardNode, Array]]] = defaultdict(list)
        owners = share(self.layers, replica.world.size)
        self._owned = tuple(layer for layer in self.layers if owners[layer] == replica.world.rank)

        self._moments, self._factors = _side_by_side(self.layers, dtype)
        _, self._inverses = _side_by_side(self._owned, dtype)
        self._info = accelerator.zeros((2 * len(self._owned),), np.int32)
        self._ones: dict[int, Array] = {}
        self._step = 0
        self._reducer = replica.reducer(replica.world) if replica.world.size > 1 else None
        self._exit = contextlib.ExitStack()
        if self._reducer is not None:
            self._exit.callback(self._reducer.close)
        self._exit.enter_context(on_filter_gradient(self._keep))

    @property
    def phases(self) -> tuple[Callable[[], None], ...]:
        return self.factors, self.inverse, self.precondition

    @property
    def period(self) -> int:
        return self._settings.interval

    @property
    def _is_due(self) -> bool:
        return self._step % self._settings.interval == 0

    def _keep(self, node: ForwardNode, gy: Array) -> None:
        """A layer's input and the gradient of its output, until `factors`."""
        layer = self._by_node.get(id(node.inputs[1])) if self._is_due else None
        if layer is not None:
            self._used[layer].append((node, gy))

    def factors(self) -> None:
        """Average the second moments of this batch into the factors, on a step that is due."""
        for layer, uses in self._used.items():
            share_of = 1 / (len(uses) * self._world.size)
            for number, (node, gy) in enumerate(uses):
                kept = 0.0 if self._step == 0 else self._settings.decay
                # A sum over ranks of what each kept makes one whole again.
                decay = 1.0 if number else kept / self._world.size
                self._add(layer, node, gy, (1 - kept) * share_of, decay)
        if self._used and self._reducer is not None:
            self._reducer.reduce(self._moments)
        self._used.clear()

    def _add(self, layer: KfacLayer, node: Any, gy: Array, share_of: float, decay: float) -> None:
        conv = node.works.fprop.conv
        a, g = self._factors[layer]
        # The loss is a mean over the batch, times the loss scale; the Fisher information is of an image's own gradient.
        of_image = conv.n / self._optimizer.spec.loss_scale
        of_a = share_of / conv.n
        of_g = share_of * of_image**2 / (conv.n * conv.p * conv.q)
        for x, size, factor, scale in ((self._inputs(layer, node), layer.d, a, of_a), (gy, layer.k, g, of_g)):
            # The gradient of maps in NCHW has yet to become a matrix, a row for each channel.
            samples = self._lowered(work.channel_transpose(conv), x) if x is gy and conv.layout == "NCHW" else x
            moment = work.KroneckerFactor.interned(
                size, samples.size // size, conv.layout, dtype_of(samples), scale, decay
            )
            self._accelerator.launch(moment, samples, factor)

    def _inputs(self, layer: KfacLayer, node: Any) -> Array:
        """The values that the filter meets at each pixel of the output, and a 1 for the bias."""
        conv, x = node.works.fprop.conv, node.x
        if layer.bias is not None:
            if conv.n not in self._ones:
                self._ones[conv.n] = self._accelerator.upload(np.ones(conv.n, x.dtype))
            return self._joined(x, self._ones[conv.n])
        if conv.layout == "NHWC" and (conv.r, conv.s, conv.stride, conv.pad) == (1, 1, 1, 0):
            return x
        return self._lowered(conv, x)

    def _lowered(self, conv: work.Conv2d, x: Array) -> Array:
        """A convolution's columns of x."""
        columns = self._accelerator.empty(work.product(conv).x_shape, x.dtype)
        self._accelerator.launch(work.Im2col.interned(conv), x, columns)
        return columns

    def _joined(self, x: Array, column: Array) -> Array:
        """A matrix (n, c) with one more column."""
        accelerator, dtype, (n, c) = self._accelerator, dtype_of(x), x.shape
        joined = accelerator.empty((n, c + 1), x.dtype)
        accelerator.launch(work.PutColumns.interned(n, c, c + 1, 0, dtype), x, joined)
        accelerator.launch(work.PutColumns.interned(n, 1, c + 1, c, dtype), column, joined)
        return joined

    def inverse(self) -> None:
        """Invert the damped factors of this rank's layers, on a step that is due."""
        if not self._is_due:
            return
        launch, dtype = self._accelerator.launch, self._dtype
        for number, layer in enumerate(self._owned):
            inverses = self._inverses[layer]
            damp = work.DampFactors.interned(layer.d, layer.k, self._settings.damping, dtype)
            launch(damp, *self._factors[layer], *inverses)
            for place, (inverse, size) in enumerate(zip(inverses, (layer.d, layer.k), strict=True), 2 * number):
                launch(work.CholeskyInverse.interned(size, dtype), inverse, self._info[place : place + 1])

    def precondition(self) -> None:
        """Divide the gradients of all layers by their curvature, in place: this rank its own, then all by all."""
        gradients = self._optimizer.gradients()
        for layer in self._owned:
            self._divide(layer, gradients)
        if self._reducer is not None:
            self._gather(gradients)
        self._step += 1

    def _divide(self, layer: KfacLayer, gradients: tuple[Array, ...]) -> None:
        accelerator, dtype, (k, d) = self._accelerator, self._dtype, (layer.k, layer.d)
        gradient = gradients[layer.weight]
        gw, result, empty = gradient, gradient, accelerator.empty
        if layer.bias is not None:
            gw, result = self._joined(gradient, gradients[layer.bias]), empty((k, d), gradient.dtype)
        inverse_a, inverse_g = self._inverses[layer]
        half_way = empty((k, d), gradient.dtype)
        accelerator.launch(_product((k, 1, 1, d), (d, 1, 1, d), dtype).fprop, gw, inverse_a, half_way)
        accelerator.launch(_product((k, 1, 1, d), (k, 1, 1, d), dtype).dgrad, inverse_g, half_way, result)
        if layer.bias is not None:
            accelerator.launch(work.TakeColumns.interned(k, d - 1, d, 0, dtype), result, gradient)
            accelerator.launch(work.TakeColumns.interned(k, 1, d, d - 1, dtype), result, gradients[layer.bias])

    def _gather(self, gradients: tuple[Array, ...]) -> None:
        """Every layer's gradient from the rank that has it: a sum to which the others add 0."""
        assert self._reducer is not None
        accelerator = self._accelerator
        parts = [
            (place, layer in self._owned)
            for layer in self.layers
            for place in (layer.weight, layer.bias)
            if place is not None
        ]
        flat = accelerator.zeros((sum(work.aligned(gradients[place].size) for place, _ in parts),), gradients[0].dtype)
        views = list(_views(flat, [gradients[place].shape for place, _ in parts]))
        for (place, owned), view in zip(parts, views, strict=True):
            if owned:
                accelerator.copy(gradients[place], view)
        self._reducer.reduce(flat)
        for (place, _), view in zip(parts, views, strict=True):
            accelerator.copy(view, gradients[place])

    def check(self) -> None:
        """Raises TrainingError where a factor could not be inverted. Waits for the device."""
        info = self._accelerator.download(self._info)
        if info.any():
            layer = self._owned[int(np.flatnonzero(info)[0]) // 2]
            raise TrainingError(
                f"K-FAC: a factor of {layer.name} is not positive definite with a damping of "
                f"{self._settings.damping:g}: raise train.kfac.damping, or lower the learning rate"
            )

    def close(self) -> None:
        self._exit.close()


def share(layers: tuple[KfacLayer, ...], ranks: int) -> dict[KfacLayer, int]:
    """The rank that inverts each layer's factors: the costliest first, each to the rank that has least."""
    costs, owners = [0] * ranks, {}
    for layer in sorted(layers, key=lambda one: -one.cost):
        owners[layer] = rank = costs.index(min(costs))
        costs[rank] += layer.cost
    return owners


def _layers(model: Any, parameters: tuple[Any, ...]) -> tuple[KfacLayer, ...]:
    """The links that have a filter `w`; of a matrix, the bias `b` belongs to it."""
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    layers = []
    for path, link in model.namedlinks():
        w = getattr(link, "w", None)
        if w is None:
            continue
        bias = places[id(link.b)] if w.ndim == 2 else None
        k, d = w.shape[0], w.size // w.shape[0] + (bias is not None)
        layers.append(KfacLayer(link_name(path), places[id(w)], bias, k, d))
    return tuple(layers)


def _product(x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: work.DType) -> ConvWorks:
    """Matrix products as convolutions of 1x1, in strict float32: an inverse is no better than its digits."""
    return works_of(x_shape, w_shape, 1, 0, "NHWC", dtype, "strict")


def _side_by_side(
    layers: tuple[KfacLayer, ...], dtype: work.DType
) -> tuple[Array, dict[KfacLayer, tuple[Array, Array]]]:
    """One array, zero, and in it two matrices of each layer: (d, d) and (k, k)."""
    flat = current().zeros((sum(work.aligned(size**2) for layer in layers for size in (layer.d, layer.k)),), dtype)
    views = _views(flat, [(size, size) for layer in layers for size in (layer.d, layer.k)])
    return flat, {layer: (next(views), next(views)) for layer in layers}


def _views(flat: Array, shapes: Sequence[tuple[int, ...]]) -> Iterator[Array]:
    """Arrays of these shapes within one, each at an aligned place."""
    begin = 0
    for shape in shapes:
        size = math.prod(shape)
        yield flat[begin : begin + size].reshape(shape)
        begin += work.aligned(size)
