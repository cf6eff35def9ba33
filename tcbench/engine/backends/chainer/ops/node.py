"""Base classes of the FunctionNodes of all operations.

There is a node for each forward operation and one for each gradient operation. A forward node stores what its gradient
needs in its attributes; the gradient node reads them when it runs, and its only inputs are gradients. Nodes do not
compute: they launch work on the current accelerator.

Graph and traversal are Chainer's. Only `FunctionNode.apply`, which builds the graph, is replaced by a faster version
without features that are unused here: ChainerX, memory layouts, type checks (the operations make their own), device
selection (the accelerator is current) and retained arrays. With hooks or debug mode Chainer's version runs."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, get_args

import ml_dtypes  # noqa: F401  (with it NumPy knows bfloat16 by name)
import numpy as np

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array, current
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.work import HALVES, DType, Half, Layout
from tcbench.engine.world import Current

Variable = Any
"""A chainer.Variable; Chainer has no type annotations."""
Variables = tuple[Variable, ...]


_DTYPES: dict[Any, DType] = {np.dtype(name): name for name in get_args(DType)}


def dtype_of(array: Array) -> DType:
    """Return the name of an array's dtype. Raises ValueError for a dtype that no operation supports."""
    try:
        return _DTYPES[array.dtype]
    except KeyError:
        raise ValueError(f"expected one of {', '.join(get_args(DType))}, got {array.dtype}") from None


def half_of(array: Array) -> Half | None:
    """Return the name of an array's dtype if it has 16 bits, else None."""
    dtype = dtype_of(array)
    return dtype if dtype in HALVES else None


def logical(shape: tuple[int, ...], layout: Layout) -> tuple[int, int, int, int]:
    """Return (N, C, H, W) for a shape stored in a layout."""
    n, c, h, w = shape if layout == "NCHW" else (shape[0], shape[3], shape[1], shape[2])
    return n, c, h, w


OnGradient = Callable[[Any, Array], None]
"""A listener that is called with a variable's node and its gradient as soon as that is launched. Chainer itself assigns
gradients to parameters only after all of backward has run."""

_on_gradient = Current[OnGradient | None](None)

on_gradient = _on_gradient.use
"""Return a context in which a listener is called with every gradient."""

OnFilterGradient = Callable[["ForwardNode", Array], None]
"""A listener that is called with the node of a convolution or classifier, and the gradient of its output, when the
gradient of its filter is launched."""

_on_filter_gradient = Current[OnFilterGradient | None](None)
on_filter_gradient = _on_filter_gradient.use
"""Return a context in which a listener is called with every filter gradient."""


def notify_filter_gradient(node: "ForwardNode", gy: Array) -> None:
    """Call the listener of `on_filter_gradient`, if there is one, with the node and the gradient of its output."""
    if (listener := _on_filter_gradient.value) is not None:
        listener(node, gy)


_VARIABLE = chainer.Variable
_new_variable = chainer.Variable._init_unchecked


class Node(chainer.FunctionNode):
    """A function node that launches its work on the current accelerator."""

    def apply(self, inputs: Sequence[Variable | Array]) -> Variables:
        """Compute the outputs and build the same graph as Chainer; the module's docstring says what is left out."""
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
        ys = self.forward_on(current(), tuple(arrays))
        outputs = tuple([_new_variable(y, requires_grad=requires_grad) for y in ys])
        if config.enable_backprop:
            self.rank = max([node.rank for node in nodes])
            self.inputs = tuple(nodes)
            self.lazy_grad_sum = config.lazy_grad_sum
            output_nodes = [y.node for y in outputs]
            for node in output_nodes:
                node.creator_node = self
            self.outputs = tuple(map(weakref.ref, output_nodes))
        return outputs

    def forward(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return self.forward_on(current(), inputs)

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Launch the operation on arrays of the accelerator, and return its outputs."""
        raise NotImplementedError


def add_into(accelerator: Accelerator, a: Array, b: Array, out: Array) -> tuple[Array]:
    """Write a + b into `out`, which may be one of them, and return it."""
    accelerator.launch(work.Add.interned(a.size, dtype_of(a)), a, b, out)
    return (out,)


class Gradient(Node):
    """The node of a gradient operation, which `launch` computes from an accelerator and gradients. It has no gradient
    of its own."""

    def __init__(self, launch: Callable[..., tuple[Array, ...]]) -> None:
        self.launch = launch

    @property
    def label(self) -> str:
        """The operation's name, such as "Convolution.wgrad"."""
        owner = getattr(self.launch, "__self__", None)
        return f"{owner.label}.{self.launch.__name__}" if owner else self.launch.__name__

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return self.launch(accelerator, *inputs)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        raise NotImplementedError(
            f"{self.label} has no gradient of its own: tcbench's ops support first derivatives only, "
            "so call backward() with enable_double_backprop=False"
        )


def add_arrays(accelerator: Accelerator, a: Array, b: Array) -> tuple[Array]:
    """Return a + b in a new array."""
    return add_into(accelerator, a, b, accelerator.empty(a.shape, a.dtype))


class ForwardNode(Node):
    """The node of a forward operation.

    Gradients of the same variable are added by our own kernel: Chainer's float16 addition is about 50 times slower."""

    def backward_accumulate(
        self, indexes: tuple[int, ...], gys: Variables, accumulated: tuple[Variable | None, ...]
    ) -> Variables:
        """Return the gradients of the inputs at `indexes`, each added to the one accumulated so far, if any. The
        listener of `on_gradient` is called with each new gradient before the addition."""
        gxs = self.backward(indexes, gys)
        if (listener := _on_gradient.value) is not None:
            for index, gx in zip(indexes, gxs, strict=True):
                if gx is not None:
                    listener(self.inputs[index], gx.array)
        return tuple(
            [
                gx if other is None else other if gx is None else Gradient(add_arrays).apply((gx, other))[0]
                for gx, other in zip(gxs, accumulated, strict=True)
            ]
        )

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        """Return the gradients of the inputs at `indexes`, in that order, from those that `gradients` computes."""
        gradients = Gradient(self.gradients).apply(gys)
        return tuple([gradients[i] for i in indexes])

    def gradients(self, accelerator: Accelerator, gy: Array) -> tuple[Array, ...]:
        """Return the gradients of all inputs from `gy`, the gradient of the output."""
        raise NotImplementedError
