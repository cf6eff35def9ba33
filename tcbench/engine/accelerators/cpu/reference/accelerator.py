"""The processor as an accelerator: NumPy, on a few threads.

Every dtype that work has is computed here, float64 too: it is the reference that numerics holds others against, and the
accelerator of any machine. Work is done when `launch` returns.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.core.record import PlanChoice
from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu import threads as cpu_threads
from tcbench.engine.accelerators.cpu.mpi import MpiReducer
from tcbench.engine.accelerators.cpu.reference import (
    batch_norm,
    bias,
    classifier,
    columns,
    convolution,
    dropout,
    elementwise,
    im2col,
    kfac,
    lrn,
    pooling,
    update,
)
from tcbench.engine.accelerators.protocol import Array, BatchNormRoute, Reducer
from tcbench.engine.world import World


class NumpyAccelerator:
    """See `tcbench.engine.accelerators.protocol.Accelerator`."""

    shares_host_memory = True
    adds_to_dgrad = True

    def __init__(self, threads: int) -> None:
        self._threads = threads
        # By identity, which is what the same shapes give again; the work is held so that its identity stays its own.
        self._prepared: dict[int, tuple[Callable[..., None], tuple[tuple[int, ...], ...], w.Work]] = {}

    def enter(self) -> contextlib.AbstractContextManager[None]:
        """Held while work is launched: the number of threads, which is the process's."""
        return cpu_threads.use(self._threads)

    def batch_norm(self, norm: w.Norm, eps: float, momentum: float) -> BatchNormRoute:
        return _batch_norm(norm, eps, momentum)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.zeros(shape, dtype)

    def upload(self, host: Any) -> Array:
        return np.array(host, order="C")

    def copy(self, source: Array, target: Array) -> None:
        np.copyto(target, source)

    def download(self, array: Array) -> Any:
        return np.array(array)

    def address(self, array: Array) -> int:
        return int(array.ctypes.data)

    def launch(self, work: w.Work, *arrays: Array) -> None:
        self.prepare(work, *arrays)()

    def prepare(self, work: w.Work, *arrays: Array) -> Callable[[], None]:
        prepared = self._prepared.get(id(work))
        if prepared is None:
            shapes = tuple(operand.shape for operand in work.operands)
            prepared = self._prepared[id(work)] = (_KERNELS[type(work)], shapes, work)
        kernel, shapes, _ = prepared
        shaped = [
            array if array.shape == shape else array.reshape(shape) for shape, array in zip(shapes, arrays, strict=True)
        ]
        return functools.partial(kernel, work, *shaped)

    def reducer(self, world: World) -> Reducer:
        return MpiReducer(world, lambda a, b: self.launch(_add(a.size, a.dtype.name), a, b, b))

    def plans(self) -> tuple[PlanChoice, ...]:
        """None: there is one way to do a piece of work here."""
        return ()

    def graph_memory(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def graph_bytes(self) -> int:
        return 0

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        raise NotImplementedError("a processor captures no graphs: the rung cuda_graph needs a GPU")


_add = w.shared(w.Add)


@functools.cache
def _batch_norm(norm: w.Norm, eps: float, momentum: float) -> BatchNormRoute:
    return BatchNormRoute(norm, w.BatchNormForward(norm, eps, momentum), w.BatchNormBackward(norm), "none")


def _fprop(work: w.ConvFprop, x: Array, weights: Array, y: Array) -> None:
    convolution.fprop(work.conv, x, weights, y)


def _fprop_stats(work: w.ConvFpropStats, x: Array, weights: Array, y: Array, total: Array, squares: Array) -> None:
    """The sums are those of y as it is stored: it is rounded block by block."""
    convolution.fprop(work.conv, x, weights, y)
    total[...], squares[...] = batch_norm.sums(y, batch_norm.view_of(y.shape, work.conv.layout))


def _dgrad(work: w.ConvDgrad, gy: Array, weights: Array, gx: Array) -> None:
    convolution.dgrad(work.conv, gy, weights, gx)


def _dgrad_add(work: w.ConvDgradAdd, gy: Array, weights: Array, other: Array, gx: Array) -> None:
    convolution.dgrad(work.conv, gy, weights, gx, other)


def _wgrad(work: w.ConvWgrad, x: Array, gy: Array, gw: Array) -> None:
    convolution.wgrad(work.conv, x, gy, gw)


_KERNELS: dict[type[w.Work], Callable[..., None]] = {
    w.ConvFprop: _fprop,
    w.ConvFpropStats: _fprop_stats,
    w.ConvDgrad: _dgrad,
    w.ConvDgradAdd: _dgrad_add,
    w.ConvWgrad: _wgrad,
    w.Im2col: im2col.im2col,
    w.Col2im: im2col.col2im,
    w.BatchNormForward: batch_norm.forward,
    w.BatchNormBackward: batch_norm.backward,
    w.BatchNormFinalize: batch_norm.finalize,
    w.BatchNormApply: batch_norm.apply,
    w.Relu: elementwise.relu,
    w.ReluBackward: elementwise.relu_backward,
    w.Add: elementwise.add,
    w.AddRelu: elementwise.add_relu,
    w.MaxPoolForward: pooling.max_pool,
    w.MaxPoolBackward: pooling.max_pool_backward,
    w.GlobalAverageForward: pooling.global_average,
    w.GlobalAverageBackward: pooling.global_average_backward,
    w.TiledAverageForward: pooling.tiled_average,
    w.TiledAverageBackward: pooling.tiled_average_backward,
    w.PutColumns: columns.put,
    w.TakeColumns: columns.take,
    w.LrnForward: lrn.forward,
    w.LrnBackward: lrn.backward,
    w.DropoutForward: dropout.forward,
    w.DropoutBackward: dropout.backward,
    w.AddBias: bias.add,
    w.AddBiasRelu: bias.add_relu,
    w.BiasGradient: bias.gradient,
    w.SoftmaxCrossEntropyForward: classifier.loss,
    w.MeanLoss: classifier.mean_loss,
    w.SoftmaxCrossEntropyBackward: classifier.loss_backward,
    w.Unscale: update.unscale,
    w.ToSingle: update.convert_weights,
    w.ToHalf: update.convert_weights,
    w.WeightDecay: update.weight_decay,
    w.MomentumUpdate: update.momentum_update,
    w.BatchedUpdate: update.batched_update,
    w.CheckFinite: update.check_finite,
    w.PackGradients: update.pack_gradients,
    w.AdjustScale: update.adjust_scale,
    w.KroneckerFactor: kfac.factor,
    w.DampFactors: kfac.damp,
    w.CholeskyInverse: kfac.cholesky_inverse,
}
