"""Dropout."""

from typing import Any

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Array
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.ops.node import OneToOne, Variable, dtype_of
from tcbench.engine.work import Layout


class Dropout(OneToOne):
    """Keeps which values it kept. `counter`: seed and count on the device; the gradient counts on."""

    forward_work = work.shared(work.DropoutForward)
    backward_work = work.shared(work.DropoutBackward)
    like_x = True

    def __init__(self, ratio: float, counter: Array, layout: Layout) -> None:
        super().__init__(counter=counter)
        self.ratio = ratio
        self.layout = layout

    def describe(self, x: Array) -> tuple[Any, ...]:
        last = self.layout == "NHWC" and x.ndim == 4
        n, c = x.shape[0], x.shape[-1 if last else 1]
        return n, c, x.size // (n * c), "NHWC" if last else "NCHW", dtype_of(x), self.ratio


def dropout(x: Variable, ratio: float, counter: Array, *, layout: Layout) -> Variable:
    """While chainer.config.train is set: zero with probability `ratio`, else x / (1 - ratio). `counter`, int64 (2,): a
    seed, and a count that rises with each gradient, so that the next step drops others. x: maps in the layout, or (N,
    C)."""
    return Dropout(ratio, counter, layout).apply((x,))[0] if chainer.config.train else x
