"""ReLU, addition, biases, concatenation, local response normalisation, dropout and the loss."""

import numpy as np

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.reference.operands import Operands, computes, where_set
from tcbench.engine.accelerators.cpu.threads import Array
from tcbench.engine.work.dropout import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL

# -- elementwise operations --------------------------------------------------------------------------------------------


@computes(w.Relu, cut="x y")
def relu(_: w.Relu, a: Operands) -> None:
    """Compute y = max(x, 0)."""
    a.write(y=np.maximum(a.x, 0, out=a.result("y")))


@computes(w.ReluBackward, cut="gy y gx")
def relu_backward(_: w.ReluBackward, a: Operands) -> None:
    """Compute gx = gy where y > 0, else 0."""
    a.write(gx=where_set(a.y > 0, a.gy))


@computes(w.Add, cut="a b c")
def add(_: w.Add, a: Operands) -> None:
    """Compute c = a + b."""
    a.write(c=np.add(a.a, a.b, out=a.result("c")))


@computes(w.AddRelu, cut="a b y")
def add_relu(_: w.AddRelu, a: Operands) -> None:
    """Compute y = max(a + b, 0)."""
    y = np.add(a.a, a.b, out=a.result("y"))
    a.write(y=np.maximum(y, 0, out=y))


@computes(w.ToSingle, w.ToHalf, cut="x y")
def convert(_: w.ToSingle | w.ToHalf, a: Operands) -> None:
    """Compute y = x in another dtype."""
    a.write(y=a.x)


# -- biases and columns ------------------------------------------------------------------------------------------------


@computes(w.AddBias, w.AddBiasRelu, cut="y")
def add_bias(work: w.AddBias | w.AddBiasRelu, a: Operands) -> None:
    """Compute y += b, with or without ReLU."""
    y = a.y
    y += a.b if work.pixels == 1 else a.b[:, None]
    a.write(y=np.maximum(y, 0, out=y) if isinstance(work, w.AddBiasRelu) else y)


@computes(w.BiasGradient)
def bias_gradient(work: w.BiasGradient, a: Operands) -> None:
    """Compute gb = gy summed over the rows of each slice and over pixels."""
    a.write(gb=a.gy.reshape(work.slices, -1, work.k, work.pixels).sum((1, 3), np.float64))


@computes(w.PutColumns, cut="x y")
def put_columns(work: w.PutColumns, a: Operands) -> None:
    """Copy x to columns of y."""
    a.raw("y")[:, work.first : work.first + work.width] = a.raw("x")


@computes(w.TakeColumns, cut="gy gx")
def take_columns(work: w.TakeColumns, a: Operands) -> None:
    """Copy columns of gy to gx."""
    a.raw("gx")[...] = a.raw("gy")[:, work.first : work.first + work.width]


# -- local response normalisation --------------------------------------------------------------------------------------


@computes(w.LrnForward, cut="x y sums")
def lrn(work: w.LrnForward, a: Operands) -> None:
    """Compute y = x * sums ** -beta and the sums, which backward reads."""
    sums = work.k + work.alpha * _neighbours(work, a.x * a.x)
    a.write(y=a.x * _power(sums, work.beta), sums=sums)


@computes(w.LrnBackward, cut="gy x sums gx")
def lrn_backward(work: w.LrnBackward, a: Operands) -> None:
    """Compute gx = gy * sums ** -beta, minus the gradient through the sums."""
    scaled = a.gy * _power(a.sums, work.beta)
    a.write(gx=scaled - 2 * work.alpha * work.beta * a.x * _neighbours(work, scaled * a.x / a.sums))


def _neighbours(work: w.LrnForward | w.LrnBackward, values: Array) -> Array:
    """Return for each channel the sum over the `size` channels around it."""
    sums = values.copy()
    # Views with channels first.
    target, source = (np.moveaxis(array, 1 if work.layout == "NCHW" else 2, 0) for array in (sums, values))
    for distance in range(1, min(work.size // 2, work.c - 1) + 1):
        target[distance:] += source[:-distance]
        target[:-distance] += source[distance:]
    return sums


def _power(sums: Array, beta: float) -> Array:
    """Return sums ** -beta. For the usual beta of 0.75 it uses square roots, which are much faster."""
    return 1 / (np.sqrt(sums) * np.sqrt(np.sqrt(sums))) if beta == 0.75 else sums**-beta


# -- dropout -----------------------------------------------------------------------------------------------------------


@computes(w.DropoutForward)
def dropout(work: w.DropoutForward, a: Operands) -> None:
    """Compute y = x * scale where a random number is at least the threshold, else 0, and the mask `kept`."""
    mask = (philox(work.size, *a.raw("counter").tolist()) >= work.threshold).reshape(work.n, work.c, -1)
    stored = mask if work.layout == "NCHW" else mask.transpose(0, 2, 1)
    a.write(kept=stored.reshape(-1), y=where_set(stored.reshape(-1), a.x * work.scale))


@computes(w.DropoutBackward)
def dropout_backward(work: w.DropoutBackward, a: Operands) -> None:
    """Compute gx = gy * scale where x was kept, else 0, and increment the step count."""
    a.raw("counter")[1] += 1
    a.write(gx=where_set(a.raw("kept") != 0, a.gy * work.scale))


def philox(size: int, seed: int, count: int) -> Array:
    """Return `size` random numbers of Philox4x32-10, uint64 below 2**32 (see `tcbench.engine.work.dropout`)."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0 = np.arange(-(-size // 4), dtype=np.uint64)
    c1, c2, c3 = np.zeros_like(c0), np.full_like(c0, count & 0xFFFFFFFF), np.zeros_like(c0)
    keys = [seed & 0xFFFFFFFF, 0]
    for _ in range(PHILOX_ROUNDS):
        first, second = c0 * np.uint64(PHILOX_MULTIPLIERS[0]), c2 * np.uint64(PHILOX_MULTIPLIERS[1])
        c0, c1 = (second >> shift) ^ c1 ^ np.uint64(keys[0]), second & low
        c2, c3 = (first >> shift) ^ c3 ^ np.uint64(keys[1]), first & low
        keys = [(key + weyl) & 0xFFFFFFFF for key, weyl in zip(keys, PHILOX_WEYL, strict=True)]
    return np.stack([c0, c1, c2, c3], axis=1).reshape(-1)[:size]


# -- the loss ----------------------------------------------------------------------------------------------------------


@computes(w.SoftmaxCrossEntropyForward)
def loss(work: w.SoftmaxCrossEntropyForward, a: Operands) -> None:
    """Compute log_p = log softmax, and losses = -log_p at the label, or NaN for labels out of range."""
    logits, labels = a.x, a.raw("t")
    log_p = logits - logits.max(axis=1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
    in_range = (labels >= 0) & (labels < work.k)
    at_label = log_p[np.arange(work.n), np.where(in_range, labels, 0)]
    a.write(log_p=log_p, losses=np.where(in_range, -at_label, np.nan))


@computes(w.MeanLoss)
def mean_loss(work: w.MeanLoss, a: Operands) -> None:
    """Compute loss = mean of losses * weight."""
    a.write(loss=a.losses.mean() * work.weight)


@computes(w.SoftmaxCrossEntropyBackward)
def loss_backward(work: w.SoftmaxCrossEntropyBackward, a: Operands) -> None:
    """Compute gx = (exp(log_p) - one_hot(t)) * gloss * weight / N."""
    gx, labels = np.exp(a.log_p), a.raw("t")
    (rows,) = np.nonzero((labels >= 0) & (labels < work.k))
    gx[rows, labels[rows]] -= 1
    a.write(gx=gx * (a.gloss * work.weight / work.n))
