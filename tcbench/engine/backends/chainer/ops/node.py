"""The base of every op's FunctionNodes.

One node per forward operation and one per gradient operation. A forward node keeps what its gradient needs as its
own attributes; the gradient node reads them from the forward node when it runs, and its only inputs are gradients.

A node computes nothing itself: it launches work on the current accelerator.

The graph is Chainer's, and so is the walk over it. Only `FunctionNode.apply`, which builds it, is written anew: most of
its time goes into what has no use here (ChainerX, memory layouts, type checks that the operations make themselves, the
device, which the accelerator has made current, retained arrays). Where something listens or checks (hooks, debug mode)
Chainer's runs."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import ml_dtypes  # noqa: F401  (with it NumPy knows bfloat16 by name)
import numpy as np

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array, current
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.work import HALVES, DType, Half, Layout
from tcbench.engine.world import Current

Variable = Any
"""chainer.Variable; Chainer has no types."""
Variables = tuple[Variable, ...]


_DTYPES: dict[Any, DType] = {np.dtype(name): name for name in get_args(DType)}


def dtype_of(array: Array) -> DType:
    """The dtype's name as work has it. Raises ValueError for one that no work is described for."""
    try:
        return _DTYPES[array.dtype]
    except KeyError:
        raise ValueError(f"expected one of {', '.join(get_args(DType))}, got {array.dtype}") from None


def half_of(array: Array) -> Half | None:
    """The same where it has 16 bits, else None."""
    dtype = dtype_of(array)
    return dtype if dtype in HALVES else None


def logical(shape: tuple[int, ...], layout: Layout) -> tuple[int, int, int, int]:
    """(N, C, H, W) of a stored shape."""
    n, c, h, w = shape if layout == "NCHW" else (shape[0], shape[3], shape[1], shape[2])
    return n, c, h, w


OnGradient = Callable[[Any, Array], None]
"""Called with the node of a variable and a gradient of it, as soon as that is launched. Chainer itself hands parameters
their gradients when the whole of backward has run."""

_on_gradient = Current[OnGradient | None](None)

on_gradient = _on_gradient.use
"""Tell a listener of every gradient while it is held."""

OnFilterGradient = Callable[["ForwardNode", Array], None]
"""Called with the node of a convolution or a classifier and the gradient of its output, when its filter's gradient is
launched."""

_on_filter_gradient: list[OnFilterGradient] = []


@contextlib.contextmanager
def on_filter_gradient(listener: OnFilterGradient) -> Iterator[None]:
    """Tell `listener` of every gradient of a filter, of whatever model, while it is held."""
    _on_filter_gradient.append(listener)
    try:
        yield
    finally:
        _on_filter_gradient.remove(listener)


def filter_gradient(node: "ForwardNode", gy: Array) -> None:
    """Tell the listeners, if there are any."""
    for listener in _on_filter_gradient:
        listener(node, gy)


_VARIABLE = chainer.Variable
_new_variable = chainer.Variable._init_unchecked


class Node(chainer.FunctionNode):
    """Computes on the current accelerator."""

    def apply(self, inputs: Sequence[Variable | Array]) -> Variables:
        """As in Chainer, which builds the same graph; see the module's docstring for what is left out."""
        config = chainer.config
        if chainer.get_function_hooks() or self._local_function_hooks or config.debug:
            return super().apply(inputs)  # type: ignore[no-any-return]
        arrays, nodes, requires_grad = [], [], False
        for x in inputs:
            variable = x if isinstance(x, _VARIABLE) else chainer.as_variable(x)
            node = variable.node
            arrays.append(variable.raw_array)
            nodes.append(node)
            requires_grad = requires_grad or node.requires_grad
        outputs = self.forward_on(current(), tuple(arrays))
        made = tuple([_new_variable(y, requires_grad=requires_grad) for y in outputs])
        if config.enable_backprop:
            self.rank = max([node.rank for node in nodes])
            self.inputs = tuple(nodes)
            self.lazy_grad_sum = config.lazy_grad_sum
            after = [y.node for y in made]
            for node in after:
                node.creator_node = self
            self.outputs = tuple(map(weakref.ref, after))
        return made

    def forward(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return self.forward_on(current(), inputs)

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Launch the operation's work on arrays of the accelerator."""
        raise NotImplementedError


def add_on(accelerator: Accelerator, a: Array, b: Array, out: Array) -> tuple[Array]:
    """out = a + b; `out` may be one of them."""
    accelerator.launch(work.Add.interned(a.size, dtype_of(a)), a, b, out)
    return (out,)


class Gradient(Node):
    """A gradient operation: `launch` takes an accelerator and gradients. It is not differentiated again."""

    def __init__(self, launch: Callable[..., tuple[Array, ...]]) -> None:
        self.launch = launch

    @property
    def label(self) -> str:
        """As in "Convolution.wgrad"."""
        owner = getattr(self.launch, "__self__", None)
        return f"{owner.label}.{self.launch.__name__}" if owner else self.launch.__name__

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return self.launch(accelerator, *inputs)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        raise NotImplementedError(
            f"{self.label} has no gradient of its own: tcbench's ops support first derivatives only, "
            "so call backward() with enable_double_backprop=False"
        )


def added(accelerator: Accelerator, a: Array, b: Array) -> tuple[Array]:
    """a + b in memory of its own."""
    return add_on(accelerator, a, b, accelerator.empty(a.shape, a.dtype))


class ForwardNode(Node):
    """A forward operation. Our own kernel adds gradients that meet: Chainer's float16 add is about 50 times slower."""

    def backward_accumulate(
        self, indexes: tuple[int, ...], gys: Variables, accumulated: tuple[Variable | None, ...]
    ) -> Variables:
        gxs = self.backward(indexes, gys)
        if (listener := _on_gradient.value) is not None:
            for index, gx in zip(indexes, gxs, strict=True):
                if gx is not None:
                    listener(self.inputs[index], gx.array)
        return tuple(
            [
                gx if before is None else before if gx is None else Gradient(added).apply((gx, before))[0]
                for gx, before in zip(gxs, accumulated, strict=True)
            ]
        )

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        """Gradients of the inputs in `indexes` and of no others, in that order: of those that `gradients` launches."""
        gradients = Gradient(self.gradients).apply(gys)
        return tuple([gradients[i] for i in indexes])

    def gradients(self, accelerator: Accelerator, gy: Array) -> tuple[Array, ...]:
        """Those of all inputs, of the output's."""
        raise NotImplementedError
