"""Max pooling, global average pooling, and averages over windows."""

from typing import Any

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Array
from tcbench.engine.backends.chainer.ops.node import OneToOne, Variable, dtype_of, logical
from tcbench.engine.work import Layout


class MaxPooling(OneToOne):
    """Keeps where in its window each maximum stands."""

    forward_work = work.shared(work.MaxPoolForward)
    backward_work = work.shared(work.MaxPoolBackward)

    def __init__(self, ksize: int, stride: int, pad: int, layout: Layout, ceil: bool = False) -> None:
        if pad >= ksize:
            raise ValueError(f"max_pooling_2d: pad {pad}, expected less than ksize {ksize}: windows would be empty")
        super().__init__()
        self.window = ksize, stride, pad
        self.layout = layout
        self.ceil = ceil

    def describe(self, x: Array) -> tuple[Any, ...]:
        return (work.Pool(*logical(x.shape, self.layout), *self.window, self.layout, dtype_of(x), self.ceil),)


class GlobalAveragePooling(OneToOne):
    """(N, C) means of x."""

    forward_work = work.shared(work.GlobalAverageForward)
    backward_work = work.shared(work.GlobalAverageBackward)

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout

    def describe(self, x: Array) -> tuple[Any, ...]:
        return *logical(x.shape, self.layout), self.layout, dtype_of(x)


class TiledAveragePooling(OneToOne):
    """Means over windows."""

    forward_work = work.shared(work.TiledAverageForward)
    backward_work = work.shared(work.TiledAverageBackward)

    def __init__(self, out: int, layout: Layout) -> None:
        super().__init__()
        self.out = out
        self.layout = layout

    def describe(self, x: Array) -> tuple[Any, ...]:
        n, c, h, w = logical(x.shape, self.layout)
        if h != w:
            raise ValueError(f"tiled_average_pooling_2d: expected square maps, got {h}x{w}")
        return n, c, h, self.out, self.layout, dtype_of(x)


def max_pooling_2d(x: Variable, *, ksize: int, stride: int, pad: int, layout: Layout, ceil: bool = False) -> Variable:
    """Output size floor((H + 2 pad - ksize) / stride) + 1: windows that would start in the far padding are left out
    (PyTorch's rule; Chainer calls it cover_all=False). `ceil` as in `work.Pool`."""
    return MaxPooling(ksize, stride, pad, layout, ceil).apply((x,))[0]


def tiled_average_pooling_2d(x: Variable, *, out: int, layout: Layout) -> Variable:
    """Maps of `out` x `out` pixels, whose windows `work.TiledAverageForward` gives."""
    return TiledAveragePooling(out, layout).apply((x,))[0]


def global_average_pooling_2d(x: Variable, *, layout: Layout) -> Variable:
    """(N, C): the mean over all pixels."""
    return GlobalAveragePooling(layout).apply((x,))[0]
