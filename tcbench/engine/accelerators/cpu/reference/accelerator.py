"""The processor as an accelerator: NumPy, on a few threads.

Every dtype that work has is computed here, float64 too: it is the reference that numerics holds others against, and the
accelerator of any machine. Work is done when `launch` returns."""

import functools
from collections.abc import Callable

from tcbench.core.record import PlanChoice
from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.arrays import HostArrays
from tcbench.engine.accelerators.cpu.reference import (
    batch_norm,
    bias,
    classifier,
    columns,
    convolution,
    dropout,
    elementwise,
    half,
    im2col,
    kfac,
    lrn,
    pooling,
    update,
)
from tcbench.engine.accelerators.protocol import Array, BatchNormRoute


class NumpyAccelerator(HostArrays):
    """See `tcbench.engine.accelerators.protocol.Accelerator`."""

    adds_to_dgrad = True

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        # Keyed by id(), since the same shapes give the same work; holding the work keeps its id from being reused.
        self._prepared: dict[int, tuple[Callable[..., None], tuple[tuple[int, ...], ...], w.Work]] = {}

    def batch_norm(self, norm: w.Norm, eps: float, momentum: float) -> BatchNormRoute:
        return _batch_norm(norm, eps, momentum)

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

    def plans(self) -> tuple[PlanChoice, ...]:
        """None: there is one way to do a piece of work here."""
        return ()


@functools.cache
def _batch_norm(norm: w.Norm, eps: float, momentum: float) -> BatchNormRoute:
    return BatchNormRoute(norm, w.BatchNormForward(norm, eps, momentum), w.BatchNormBackward(norm), "none")


def _fprop_stats(work: w.ConvFpropStats, x: Array, weights: Array, y: Array, total: Array, squares: Array) -> None:
    """The sums are those of y as it is stored: it is rounded block by block."""
    convolution.fprop(work, x, weights, y)
    total[...], squares[...] = batch_norm.sums(y, batch_norm.view_of(y.shape, work.conv.layout))


_KERNELS: dict[type[w.Work], Callable[..., None]] = {
    w.ConvFprop: convolution.fprop,
    w.ConvFpropStats: _fprop_stats,
    **dict.fromkeys((w.ConvDgrad, w.ConvDgradAdd), convolution.dgrad),
    w.ConvWgrad: convolution.wgrad,
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
    **dict.fromkeys((w.ToSingle, w.ToHalf), lambda _, x, y: half.cast_into(x, y)),
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
