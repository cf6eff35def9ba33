"""The bias of a convolution, with ReLU or without."""

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.ops.elementwise import relu_backward_on
from tcbench.engine.backends.chainer.ops.node import ForwardNode, Gradient, Variable, Variables, dtype_of, logical
from tcbench.engine.work import Layout


class Bias(ForwardNode):
    """[relu](x + b), in x's memory. Keeps its output, whose sign ReLU's gradient needs."""

    def __init__(self, layout: Layout, relu: bool) -> None:
        self.layout = layout
        self.relu = relu

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        x, b = inputs
        channels = x.shape[1 if self.layout == "NCHW" else -1]
        if x.ndim != 4 or b.shape != (channels,):
            raise ValueError(f"add_bias: x {x.shape} and b {b.shape} do not fit in {self.layout}")
        self.bias_dtype = b.dtype
        n, k, pixels = self.rows(x)
        accelerator.launch((work.AddBiasRelu if self.relu else work.AddBias).interned(n, k, dtype_of(x), pixels), x, b)
        self.y = x if self.relu else None
        return (x,)

    def rows(self, x: Array) -> tuple[int, int, int]:
        """Rows, columns and pixels, as work has them."""
        n, c, h, w = logical(x.shape, self.layout)
        return (n, c, h * w) if self.layout == "NCHW" else (n * h * w, c, 1)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        gx = gys[0] if self.y is None else Gradient(self.relu_gradient).apply(gys)[0]
        return tuple(Gradient(self.bias_gradient).apply((gx,))[0] if i else gx for i in indexes)

    def relu_gradient(self, accelerator: Accelerator, gy: Array) -> tuple[Array]:
        """gx of gy."""
        return (relu_backward_on(accelerator, gy, self.y),)

    def bias_gradient(self, accelerator: Accelerator, gx: Array) -> tuple[Array]:
        """gb of gx: the sum of each image, then of all images."""
        n, k, pixels = self.rows(gx)
        images = gx.shape[0]
        parts, gb = (accelerator.empty(shape, self.bias_dtype) for shape in ((images, k), (k,)))
        accelerator.launch(work.BiasGradient.interned(n, k, dtype_of(gx), pixels, images), gx, parts)
        accelerator.launch(work.BiasGradient.interned(images, k, dtype_of(parts)), parts, gb)
        return (gb,)


def bias(x: Variable, b: Variable, *, layout: Layout, relu: bool = False) -> Variable:
    """[relu](x + b) per channel, in x's own memory, which nothing else may read. b (C,), float32 even where x is
    float16."""
    return Bias(layout, relu).apply((x, b))[0]
