"""Operations of one input: pooling, local response normalisation across channels, dropout."""

from collections.abc import Callable
from typing import Any

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.ops.node import ForwardNode, Variable, dtype_of, logical
from tcbench.engine.work import Layout


class OneToOne(ForwardNode):
    """y of x by one piece of work, and gx of gy by another of the same description, which `describe` gives of x.
    `like_x`: whether all that the works write has x's shape, whatever they take it for. `held` are arrays of the node's
    own that either reads. What the gradient's work reads is kept under its operand's name."""

    def __init__(
        self,
        kind: str,
        forward: type[work.Work],
        backward: type[work.Work],
        describe: Callable[[Array], tuple[Any, ...]],
        like_x: bool = False,
        **held: Array,
    ) -> None:
        self.kind = kind
        self.forward_work, self.backward_work = forward.interned, backward.interned
        self.describe = describe
        self.like_x = like_x
        self.arrays = held

    @property
    def label(self) -> str:
        return self.kind

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        (x,) = inputs
        self.x_shape, self.described = x.shape, self.describe(x)
        arrays = self.launch(accelerator, self.forward_work(*self.described), x=x)
        read = self.backward_work(*self.described).roles
        self.arrays = {name: array for name, array in arrays.items() if name in read}
        return (arrays["y"],)

    def launch(self, accelerator: Accelerator, work: work.Work, **given: Array) -> dict[str, Array]:
        """All arrays of the work by name: those given, those kept, and what it writes."""
        arrays = self.arrays | given
        for operand in work.operands:
            if operand.role == "out":
                shape = self.x_shape if self.like_x else operand.shape
                arrays[operand.name] = accelerator.empty(shape, operand.dtype)
        accelerator.launch(work, *(arrays[operand.name] for operand in work.operands))
        return arrays

    def gradients(self, accelerator: Accelerator, gy: Array) -> tuple[Array]:
        return (self.launch(accelerator, self.backward_work(*self.described), gy=gy)["gx"],)


def max_pooling_2d(x: Variable, *, ksize: int, stride: int, pad: int, layout: Layout, ceil: bool = False) -> Variable:
    """Output size floor((H + 2 pad - ksize) / stride) + 1: windows that would start in the far padding are left out
    (PyTorch's rule; Chainer calls it cover_all=False). `ceil` as in `work.Pool`."""
    if pad >= ksize:
        raise ValueError(f"max_pooling_2d: pad {pad}, expected less than ksize {ksize}: windows would be empty")

    def describe(x: Array) -> tuple[Any, ...]:
        return (work.Pool(*logical(x.shape, layout), ksize, stride, pad, layout, dtype_of(x), ceil),)

    return OneToOne("MaxPooling", work.MaxPoolForward, work.MaxPoolBackward, describe).apply((x,))[0]


def global_average_pooling_2d(x: Variable, *, layout: Layout) -> Variable:
    """(N, C): the mean over all pixels."""
    node = OneToOne(
        "GlobalAveragePooling",
        work.GlobalAverageForward,
        work.GlobalAverageBackward,
        lambda x: (*logical(x.shape, layout), layout, dtype_of(x)),
    )
    return node.apply((x,))[0]


def tiled_average_pooling_2d(x: Variable, *, out: int, layout: Layout) -> Variable:
    """Maps of `out` x `out` pixels, whose windows `work.TiledAverageForward` gives."""

    def describe(x: Array) -> tuple[Any, ...]:
        n, c, h, w = logical(x.shape, layout)
        if h != w:
            raise ValueError(f"tiled_average_pooling_2d: expected square maps, got {h}x{w}")
        return n, c, h, out, layout, dtype_of(x)

    node = OneToOne("TiledAveragePooling", work.TiledAverageForward, work.TiledAverageBackward, describe)
    return node.apply((x,))[0]


def local_response_normalization(
    x: Variable, *, size: int, alpha: float, beta: float, k: float, layout: Layout
) -> Variable:
    """x / (k + alpha * the sum of squares over `size` neighbouring channels) ** beta."""

    def describe(x: Array) -> tuple[Any, ...]:
        n, c, h, w = logical(x.shape, layout)
        return n, c, h * w, layout, dtype_of(x), size, alpha, beta, k

    node = OneToOne("LocalResponseNormalization", work.LrnForward, work.LrnBackward, describe, like_x=True)
    return node.apply((x,))[0]


def dropout(x: Variable, ratio: float, counter: Array, *, layout: Layout) -> Variable:
    """While chainer.config.train is set: zero with probability `ratio`, else x / (1 - ratio). `counter`, int64 (2,): a
    seed, and a count that rises with each gradient, so that the next step drops others. x: maps in the layout, or (N,
    C)."""

    def describe(x: Array) -> tuple[Any, ...]:
        last = layout == "NHWC" and x.ndim == 4
        n, c = x.shape[0], x.shape[-1 if last else 1]
        return n, c, x.size // (n * c), "NHWC" if last else "NCHW", dtype_of(x), ratio

    if not chainer.config.train:
        return x
    node = OneToOne("Dropout", work.DropoutForward, work.DropoutBackward, describe, like_x=True, counter=counter)
    return node.apply((x,))[0]
