"""Local response normalisation across channels."""

from typing import Any

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Array
from tcbench.engine.backends.chainer.ops.node import OneToOne, Variable, dtype_of, logical
from tcbench.engine.work import Layout


class LocalResponseNormalization(OneToOne):
    """Keeps its input, and the sums of squares."""

    forward_work = work.shared(work.LrnForward)
    backward_work = work.shared(work.LrnBackward)
    like_x = True

    def __init__(self, layout: Layout, size: int, alpha: float, beta: float, k: float) -> None:
        super().__init__()
        self.layout = layout
        self.settings = size, alpha, beta, k

    def describe(self, x: Array) -> tuple[Any, ...]:
        n, c, h, w = logical(x.shape, self.layout)
        return n, c, h * w, self.layout, dtype_of(x), *self.settings


def local_response_normalization(
    x: Variable, *, size: int, alpha: float, beta: float, k: float, layout: Layout
) -> Variable:
    """x / (k + alpha * the sum of squares over `size` neighbouring channels) ** beta."""
    return LocalResponseNormalization(layout, size, alpha, beta, k).apply((x,))[0]
