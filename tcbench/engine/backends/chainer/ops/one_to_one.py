"""Operations with one input: pooling, local response normalisation across channels, and dropout."""

from collections.abc import Callable
from typing import Any

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.ops.node import ForwardNode, Variable, dtype_of, logical
from tcbench.engine.work import Layout


class OneToOne(ForwardNode):
    """The node of a function of one input that takes one operation forward and one backward.

    `describe` returns the fields of both operations for an input x. With `like_x` outputs have x's shape, whatever
    shape the operation itself describes. `arrays` are further operands, by name. Operands that the backward operation
    reads are kept by name after the forward pass."""

    def __init__(
        self,
        kind: str,
        forward: type[work.Work],
        backward: type[work.Work],
        describe: Callable[[Array], tuple[Any, ...]],
        like_x: bool = False,
        **arrays: Array,
    ) -> None:
        self.kind = kind
        self.forward_work, self.backward_work = forward.interned, backward.interned
        self.describe = describe
        self.like_x = like_x
        self.arrays = arrays

    @property
    def label(self) -> str:
        return self.kind

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        """Launch the forward operation, and keep the operands that the backward operation reads."""
        (x,) = inputs
        self.x_shape, self.described = x.shape, self.describe(x)
        arrays = self.launch(accelerator, self.forward_work(*self.described), x=x)
        read = self.backward_work(*self.described).roles
        self.arrays = {name: array for name, array in arrays.items() if name in read}
        return (arrays["y"],)

    def launch(self, accelerator: Accelerator, work: work.Work, **inputs: Array) -> dict[str, Array]:
        """Launch an operation, and return its operands by name: the inputs, the kept arrays and new outputs."""
        arrays = self.arrays | inputs
        for operand in work.operands:
            if operand.role == "out":
                shape = self.x_shape if self.like_x else operand.shape
                arrays[operand.name] = accelerator.empty(shape, operand.dtype)
        accelerator.launch(work, *(arrays[operand.name] for operand in work.operands))
        return arrays

    def gradients(self, accelerator: Accelerator, gy: Array) -> tuple[Array]:
        return (self.launch(accelerator, self.backward_work(*self.described), gy=gy)["gx"],)


def max_pooling_2d(x: Variable, *, ksize: int, stride: int, pad: int, layout: Layout, ceil: bool = False) -> Variable:
    """Return the maximum over windows, with an output size of floor((H + 2 pad - ksize) / stride) + 1.

    Windows that would start in the far padding are left out, as in PyTorch (Chainer's cover_all=False). `ceil` is as in
    `work.Pool`."""
    if pad >= ksize:
        raise ValueError(f"max_pooling_2d: pad {pad}, expected less than ksize {ksize}: windows would be empty")

    def describe(x: Array) -> tuple[Any, ...]:
        return (work.Pool(*logical(x.shape, layout), ksize, stride, pad, layout, dtype_of(x), ceil),)

    return OneToOne("MaxPooling", work.MaxPoolForward, work.MaxPoolBackward, describe).apply((x,))[0]


def global_average_pooling_2d(x: Variable, *, layout: Layout) -> Variable:
    """Return the mean over all pixels, (N, C)."""
    node = OneToOne(
        "GlobalAveragePooling",
        work.GlobalAverageForward,
        work.GlobalAverageBackward,
        lambda x: (*logical(x.shape, layout), layout, dtype_of(x)),
    )
    return node.apply((x,))[0]


def tiled_average_pooling_2d(x: Variable, *, out: int, layout: Layout) -> Variable:
    """Return the means over the windows of `work.TiledAverageForward`, as maps of `out` x `out` pixels."""

    def describe(x: Array) -> tuple[Any, ...]:
        """Return the fields of the operation for this input. Raises ValueError for maps that are not square."""
        n, c, h, w = logical(x.shape, layout)
        if h != w:
            raise ValueError(f"tiled_average_pooling_2d: expected square maps, got {h}x{w}")
        return n, c, h, out, layout, dtype_of(x)

    node = OneToOne("TiledAveragePooling", work.TiledAverageForward, work.TiledAverageBackward, describe)
    return node.apply((x,))[0]


def local_response_normalization(
    x: Variable, *, size: int, alpha: float, beta: float, k: float, layout: Layout
) -> Variable:
    """Return x / (k + alpha * the sum of squares over `size` neighbouring channels) ** beta."""

    def describe(x: Array) -> tuple[Any, ...]:
        n, c, h, w = logical(x.shape, layout)
        return n, c, h * w, layout, dtype_of(x), size, alpha, beta, k

    node = OneToOne("LocalResponseNormalization", work.LrnForward, work.LrnBackward, describe, like_x=True)
    return node.apply((x,))[0]


def dropout(x: Variable, ratio: float, counter: Array, *, layout: Layout) -> Variable:
    """Return dropout of x: in training each element is zero with probability `ratio`, else x / (1 - ratio).

    Outside training (chainer.config.train) x is returned. x is maps in the layout, or (N, C). `counter`, int64 (2,), is
    a seed and a count that increases with each gradient, so that every step drops other elements."""

    def describe(x: Array) -> tuple[Any, ...]:
        last = layout == "NHWC" and x.ndim == 4
        n, c = x.shape[0], x.shape[-1 if last else 1]
        return n, c, x.size // (n * c), "NHWC" if last else "NCHW", dtype_of(x), ratio

    if not chainer.config.train:
        return x
    node = OneToOne("Dropout", work.DropoutForward, work.DropoutBackward, describe, like_x=True, counter=counter)
    return node.apply((x,))[0]
