"""The bias of a convolution, with an optional ReLU."""

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.ops.elementwise import relu_gradient
from tcbench.engine.backends.chainer.ops.node import ForwardNode, Gradient, Variable, Variables, dtype_of, logical
from tcbench.engine.work import Layout


class Bias(ForwardNode):
    """The node of [relu](x + b), computed in x's memory. It keeps the output because ReLU's gradient needs its sign."""

    def __init__(self, layout: Layout, relu: bool) -> None:
        self.layout = layout
        self.relu = relu

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        """Check the shapes, and add b to x in place."""
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
        """Return (rows, columns, pixels per row) of x, as `work.AddBias` takes them."""
        n, c, h, w = logical(x.shape, self.layout)
        return (n, c, h * w) if self.layout == "NCHW" else (n * h * w, c, 1)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        gx = gys[0] if self.y is None else Gradient(self.relu_gradient).apply(gys)[0]
        return tuple(Gradient(self.bias_gradient).apply((gx,))[0] if i else gx for i in indexes)

    def relu_gradient(self, accelerator: Accelerator, gy: Array) -> tuple[Array]:
        """Return the gradient of x from that of the output."""
        return (relu_gradient(accelerator, gy, self.y),)

    def bias_gradient(self, accelerator: Accelerator, gx: Array) -> tuple[Array]:
        """Return the gradient of b, summed first over each image's pixels, then over images."""
        n, k, pixels = self.rows(gx)
        images = gx.shape[0]
        parts, gb = (accelerator.empty(shape, self.bias_dtype) for shape in ((images, k), (k,)))
        accelerator.launch(work.BiasGradient.interned(n, k, dtype_of(gx), pixels, images), gx, parts)
        accelerator.launch(work.BiasGradient.interned(images, k, dtype_of(parts)), parts, gb)
        return (gb,)


def bias(x: Variable, b: Variable, *, layout: Layout, relu: bool = False) -> Variable:
    """Return [relu](x + b) per channel. b is (C,), and float32 even if x is float16. It overwrites x, so nothing else
    may read x."""
    return Bias(layout, relu).apply((x, b))[0]
