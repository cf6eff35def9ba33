"""The matrix product of a fully connected layer."""

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.ops.convolution import Filtered, works_of
from tcbench.engine.backends.chainer.ops.node import Gradient, Variable, Variables, dtype_of
from tcbench.engine.work import Math


class Linear(Filtered):
    """The node of x @ w.T + b, computed as a 1x1 convolution by cuDNN because cuBLAS cannot be captured in a graph."""

    def __init__(self, math: Math) -> None:
        self.math = math

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        """Launch the matrix product, then add the bias."""
        x, w, b = inputs
        if x.ndim < 2 or x.shape[1:] != w.shape[1:] or b.shape != (w.shape[0],) or x.dtype != w.dtype:
            raise ValueError(
                f"linear: x {x.shape} {x.dtype}, w {w.shape} {w.dtype}, b {b.shape} do not fit: "
                "expected x (N, ...) and w (K, ...) alike and of one dtype, b (K,)"
            )
        self.x, self.w, self.bias_dtype = x, w, b.dtype
        n, k, dtype = x.shape[0], w.shape[0], dtype_of(x)
        c = x.size // n
        self.works = works_of((n, 1, 1, c), (k, 1, 1, c), 1, 0, "NHWC", dtype, self.math)
        y = accelerator.empty((n, k), x.dtype)
        accelerator.launch(self.works.fprop, x, w, y)
        accelerator.launch(work.AddBias.interned(n, k, dtype), y, b)
        return (y,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        gradients = (self.dgrad, self.wgrad, self.bias_gradient)
        return tuple(Gradient(gradients[i]).apply(gys)[0] for i in indexes)

    def bias_gradient(self, accelerator: Accelerator, gy: Array) -> tuple[Array]:
        """Return the gradient of b from gy."""
        gb = accelerator.empty((gy.shape[1],), self.bias_dtype)
        accelerator.launch(work.BiasGradient.interned(*gy.shape, dtype_of(gy)), gy, gb)
        return (gb,)


def linear(x: Variable, w: Variable, b: Variable, *, math: Math = "strict") -> Variable:
    """Return x @ w.T + b for x (N, ...) and w (K, ...) with the same trailing axes, such as maps, and the same dtype.

    b is (K,), and float32 even if x is float16. `math` is as in `convolution_2d`."""
    return Linear(math).apply((x, w, b))[0]
