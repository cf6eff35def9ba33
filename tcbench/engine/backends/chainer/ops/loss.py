"""Softmax cross entropy, in float32 (float64 for float64)."""

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.ops.node import ForwardNode, Gradient, Variable, Variables, dtype_of


class SoftmaxCrossEntropy(ForwardNode):
    """The node of the weighted mean loss of logits and labels."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        """Launch the losses of the samples, then their mean."""
        x, self.t = inputs
        if x.ndim != 2 or self.t.shape != x.shape[:1] or self.t.dtype.kind not in "iu":
            raise ValueError(
                f"softmax_cross_entropy: x {x.shape}, t {self.t.shape} {self.t.dtype}: "
                "expected (N, K) and integer labels (N,)"
            )
        self.dtype = x.dtype
        wide = work.wide(dtype_of(x))
        losses, loss = accelerator.empty(self.t.shape, wide), accelerator.empty((), wide)
        self.log_p = accelerator.empty(x.shape, wide)
        # Labels are not checked, because reading them would wait for the device. An invalid one makes the loss NaN.
        accelerator.launch(
            work.SoftmaxCrossEntropyForward.interned(*x.shape, dtype_of(x)), x, self.t, self.log_p, losses
        )
        accelerator.launch(work.MeanLoss.interned(x.shape[0], wide, self.weight), losses, loss)
        return (loss,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        gx = Gradient(self.gradient).apply(gys)[0]
        return tuple(None if i else gx for i in indexes)

    def gradient(self, accelerator: Accelerator, gloss: Array) -> tuple[Array]:
        """Return the gradient of the logits from that of the loss, which is usually the loss scale."""
        gx = accelerator.empty(self.log_p.shape, self.dtype)
        backward = work.SoftmaxCrossEntropyBackward.interned(*gx.shape, dtype_of(gx), self.weight)
        accelerator.launch(backward, self.log_p, self.t, gloss, gx)
        return (gx,)


def softmax_cross_entropy(x: Variable, t: Variable, weight: float = 1.0) -> Variable:
    """Return the mean loss of logits x (N, K) and labels t (N,), times the weight, as a float32 scalar.

    The gradient has x's dtype. A label outside [0, K) makes the loss NaN."""
    return SoftmaxCrossEntropy(weight).apply((x, t))[0]
