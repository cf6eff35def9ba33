"""The softmax cross entropy: small next to everything else, on one thread."""

import numpy as np

from tcbench.engine.accelerators.cpu.reference.half import cast, cast_into
from tcbench.engine.accelerators.cpu.threads import Array
from tcbench.engine.work import MeanLoss, SoftmaxCrossEntropyBackward, SoftmaxCrossEntropyForward


def loss(work: SoftmaxCrossEntropyForward, x: Array, t: Array, log_p: Array, losses: Array) -> None:
    """See SoftmaxCrossEntropyForward."""
    logits = cast(x, log_p.dtype)
    np.subtract(logits, logits.max(axis=1, keepdims=True), out=log_p)
    log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
    in_range = (t >= 0) & (t < work.k)
    np.negative(log_p[np.arange(work.n), np.where(in_range, t, 0)], out=losses)
    losses[~in_range] = np.nan


def mean_loss(work: MeanLoss, losses: Array, mean: Array) -> None:
    """See MeanLoss."""
    mean[...] = losses.mean() * losses.dtype.type(work.weight)


def loss_backward(work: SoftmaxCrossEntropyBackward, log_p: Array, t: Array, gloss: Array, gx: Array) -> None:
    """See SoftmaxCrossEntropyBackward."""
    gradient = np.exp(log_p)
    (rows,) = np.nonzero((t >= 0) & (t < work.k))
    gradient[rows, t[rows]] -= 1
    gradient *= gloss * gloss.dtype.type(work.weight) / gloss.dtype.type(work.n)
    cast_into(gradient, gx)
