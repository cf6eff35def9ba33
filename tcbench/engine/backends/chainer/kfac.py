"""K-FAC: gradients of convolutions and classifiers, divided by the curvature of the loss in their layer.

A layer's Fisher information is approximated by a Kronecker product of two matrices (`tcbench.engine.work.kfac`): the
second moments A of its inputs and G of its output gradients over the training batch (the empirical Fisher information).
SGD with momentum then applies G^-1 gw A^-1 instead of gw. Parameters of batch normalisation are left to plain SGD: they
are 0.2% of ResNet-50's, and their curvature would need the gradient of each image, which no pass computes.

On many ranks (K. Osawa et al., 2019, section 4) every rank computes the factors of its own batch, and these are
averaged. Each layer belongs to one rank, which inverts its factors and divides its gradient. Then all ranks get the
results."""

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
    """A convolution or a classifier that K-FAC handles. The gradient of its filter is a matrix (k, d), whose last
    column is the gradient of the bias if there is one. `weight` and `bias` are indices into the model's parameters."""

    name: str
    weight: int
    bias: int | None
    k: int
    d: int

    @property
    def cost(self) -> int:
        """The relative cost of inverting its factors."""
        return self.k**3 + self.d**3


class KfacPreconditioner:
    """A preconditioner that divides the averaged gradients by the curvature, between backward and update."""

    def __init__(self, settings: KfacSettings, replica: Replica) -> None:
        """Allocate the factors and listen for filter gradients. Raises ValueError for a 16-bit model."""
        self._accelerator = accelerator = current()
        self._settings, self._world, self._optimizer = settings, replica.world, replica.optimizer
        parameters = tuple(replica.model.params())
        self.layers = _layers(replica.model, parameters)
        self._dtype = dtype = dtype_of(parameters[self.layers[0].weight].array)
        if dtype in work.HALVES:
            raise ValueError(f"K-FAC: expected float32 or float64, got {dtype}")
        self._by_node = {id(parameters[layer.weight].node): layer for layer in self.layers}
        self._used: defaultdict[KfacLayer, list[tuple[ForwardNode, Array]]] = defaultdict(list)
        owners = assign_ranks(self.layers, replica.world.size)
        self._owned = tuple(layer for layer in self.layers if owners[layer] == replica.world.rank)

        self._moments, self._factors = _zero_matrix_pairs(self.layers, dtype)
        _, self._inverses = _zero_matrix_pairs(self._owned, dtype)
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
        """The phases that K-FAC adds to a step, in order."""
        return self.factors, self.inverse, self.precondition

    @property
    def period(self) -> int:
        """The number of steps after which the work repeats."""
        return self._settings.interval

    @property
    def _is_due(self) -> bool:
        """Whether this step computes new factors and inverses."""
        return self._step % self._settings.interval == 0

    def _keep(self, node: ForwardNode, gy: Array) -> None:
        """Keep a layer's node and the gradient `gy` of its output for `factors`, if this step computes new factors."""
        layer = self._by_node.get(id(node.inputs[1])) if self._is_due else None
        if layer is not None:
            self._used[layer].append((node, gy))

    def factors(self) -> None:
        """Add the second moments of this batch to the moving averages, on every `interval`-th step."""
        momentum = 0.0 if self._step == 0 else self._settings.decay
        for layer, uses in self._used.items():
            share = 1 / (len(uses) * self._world.size)
            for number, (node, gy) in enumerate(uses):
                # The first use scales this rank's copy by momentum / ranks, so the ranks' sum is scaled by momentum.
                decay = 1.0 if number else momentum / self._world.size
                self._update_factors(layer, node, gy, (1 - momentum) * share, decay)
        if self._used and self._reducer is not None:
            self._reducer.reduce(self._moments)
        self._used.clear()

    def _update_factors(self, layer: KfacLayer, node: Any, gy: Array, weight: float, decay: float) -> None:
        """Update a layer's two factors for one use of the layer in this step.

        factor = decay * factor + weight * mean second moments. `node` has the inputs of this use, and `gy` is the
        gradient of its output."""
        conv = node.works.fprop.conv
        a, g = self._factors[layer]
        # Converts the gradient of the scaled mean loss into that of an image's own loss, which the Fisher matrix needs.
        image_scale = conv.n / self._optimizer.spec.loss_scale
        a_scale = weight / conv.n
        g_scale = weight * image_scale**2 / (conv.n * conv.p * conv.q)
        for x, size, factor, scale in ((self._inputs(layer, node), layer.d, a, a_scale), (gy, layer.k, g, g_scale)):
            # In NCHW the gradient still has to become a matrix with a row for each channel.
            samples = self._im2col(work.channel_transpose(conv), x) if x is gy and conv.layout == "NCHW" else x
            moment = work.KroneckerFactor.interned(
                size, samples.size // size, conv.layout, dtype_of(samples), scale, decay
            )
            self._accelerator.launch(moment, samples, factor)

    def _inputs(self, layer: KfacLayer, node: Any) -> Array:
        """Return the matrix of inputs that the filter is applied to at each output pixel. If the layer has a bias, a
        column of ones is appended."""
        conv, x = node.works.fprop.conv, node.x
        if layer.bias is not None:
            if conv.n not in self._ones:
                self._ones[conv.n] = self._accelerator.upload(np.ones(conv.n, x.dtype))
            return self._append_column(x, self._ones[conv.n])
        if conv.layout == "NHWC" and (conv.r, conv.s, conv.stride, conv.pad) == (1, 1, 1, 0):
            return x
        return self._im2col(conv, x)

    def _im2col(self, conv: work.Conv2d, x: Array) -> Array:
        """Return the im2col matrix of x for a convolution."""
        columns = self._accelerator.empty(work.product(conv).x_shape, x.dtype)
        self._accelerator.launch(work.Im2col.interned(conv), x, columns)
        return columns

    def _append_column(self, x: Array, column: Array) -> Array:
        """Return the matrix x (n, c) with `column` (n,) appended."""
        accelerator, dtype, (n, c) = self._accelerator, dtype_of(x), x.shape
        joined = accelerator.empty((n, c + 1), x.dtype)
        accelerator.launch(work.PutColumns.interned(n, c, c + 1, 0, dtype), x, joined)
        accelerator.launch(work.PutColumns.interned(n, 1, c + 1, c, dtype), column, joined)
        return joined

    def inverse(self) -> None:
        """Invert the damped factors of this rank's layers, on every `interval`-th step."""
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
        """Divide the gradients of this rank's layers by their curvature in place, then send them to all ranks."""
        gradients = self._optimizer.gradients()
        for layer in self._owned:
            self._precondition_layer(layer, gradients)
        if self._reducer is not None:
            self._send_to_all_ranks(gradients)
        self._step += 1

    def _precondition_layer(self, layer: KfacLayer, gradients: tuple[Array, ...]) -> None:
        """Replace a layer's gradient gw (k, d) by G^-1 gw A^-1. `gradients` are those of all parameters."""
        accelerator, dtype, (k, d) = self._accelerator, self._dtype, (layer.k, layer.d)
        gradient = gradients[layer.weight]
        gw, result, empty = gradient, gradient, accelerator.empty
        if layer.bias is not None:
            gw, result = self._append_column(gradient, gradients[layer.bias]), empty((k, d), gradient.dtype)
        inverse_a, inverse_g = self._inverses[layer]
        half_way = empty((k, d), gradient.dtype)  # gw A^-1
        accelerator.launch(_product((k, 1, 1, d), (d, 1, 1, d), dtype).fprop, gw, inverse_a, half_way)
        accelerator.launch(_product((k, 1, 1, d), (k, 1, 1, d), dtype).dgrad, inverse_g, half_way, result)
        if layer.bias is not None:
            accelerator.launch(work.TakeColumns.interned(k, d - 1, d, 0, dtype), result, gradient)
            accelerator.launch(work.TakeColumns.interned(k, 1, d, d - 1, dtype), result, gradients[layer.bias])

    def _send_to_all_ranks(self, gradients: tuple[Array, ...]) -> None:
        """Send every layer's gradient from its owner to all ranks, as a sum to which the other ranks add 0."""
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
        """Raise TrainingError if a factor could not be inverted. Waits for the device."""
        info = self._accelerator.download(self._info)
        if info.any():
            layer = self._owned[int(np.flatnonzero(info)[0]) // 2]
            raise TrainingError(
                f"K-FAC: a factor of {layer.name} is not positive definite with a damping of "
                f"{self._settings.damping:g}: raise train.kfac.damping, or lower the learning rate"
            )

    def close(self) -> None:
        self._exit.close()


def assign_ranks(layers: tuple[KfacLayer, ...], ranks: int) -> dict[KfacLayer, int]:
    """Return the rank that inverts each layer's factors: the costliest layer first, each to the least loaded rank."""
    costs, owners = [0] * ranks, {}
    for layer in sorted(layers, key=lambda layer: -layer.cost):
        owners[layer] = rank = costs.index(min(costs))
        costs[rank] += layer.cost
    return owners


def _layers(model: Any, parameters: tuple[Any, ...]) -> tuple[KfacLayer, ...]:
    """Return the layers that have a filter `w`; those whose filter is a matrix also have a bias `b`. `parameters` are
    the model's, in the order in which indices are counted."""
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
    """Return the operations of a matrix product as a 1x1 convolution. They are computed in strict float32, because
    inverses need precision."""
    return works_of(x_shape, w_shape, 1, 0, "NHWC", dtype, "strict")


def _zero_matrix_pairs(
    layers: tuple[KfacLayer, ...], dtype: work.DType
) -> tuple[Array, dict[KfacLayer, tuple[Array, Array]]]:
    """Return a flat array of zeros, and for each layer two views of it: matrices of shape (d, d) and (k, k)."""
    flat = current().zeros((sum(work.aligned(size**2) for layer in layers for size in (layer.d, layer.k)),), dtype)
    views = _views(flat, [(size, size) for layer in layers for size in (layer.d, layer.k)])
    return flat, {layer: (next(views), next(views)) for layer in layers}


def _views(flat: Array, shapes: Sequence[tuple[int, ...]]) -> Iterator[Array]:
    """Yield views of these shapes into a flat array, each at an aligned offset."""
    begin = 0
    for shape in shapes:
        size = math.prod(shape)
        yield flat[begin : begin + size].reshape(shape)
        begin += work.aligned(size)
