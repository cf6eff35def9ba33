"""Observation of the gradients of parameters and of layers' outputs in a backward pass."""

from collections.abc import Callable, Iterator
from typing import Any

from tcbench.core.numerics import GradientKind
from tcbench.engine.accelerators.protocol import current
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.layers import link_name

Observe = Callable[[GradientKind, str, Any], None]
"""A function that gets an array of gradients: its kind, its layer ("stem", "block2.b", "head"), the array on the host.
"""


def on_host(array: Any) -> Any:
    """Return a copy of the array in the host's memory."""
    return current().download(array)


def layer_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield each parameter with the name of its layer."""
    for path, parameter in model.namedparams():
        yield link_name(path.rpartition("/")[0]), parameter


class FlowingGradients(chainer.FunctionHook):
    """A context in which `observe` gets the gradient of the output of each function that uses a weight matrix or filter
    of the model."""

    name = "tcbench.flow"

    def __init__(self, model: Any, observe: Observe) -> None:
        super().__init__()
        # Parameters with one dimension are biases or belong to batch normalisation.
        self._layers = {id(p.node): layer for layer, p in layer_parameters(model) if p.array.ndim > 1}
        self._observe = observe

    def backward_preprocess(self, function: Any, in_data: Any, out_grad_data: Any) -> None:
        """Observe the gradient of the function's output, if one of its inputs is a weight of the model."""
        for node in function.inputs:
            layer = self._layers.get(id(node))
            if layer is not None and out_grad_data[0] is not None:
                self._observe("activations", layer, on_host(out_grad_data[0]))
