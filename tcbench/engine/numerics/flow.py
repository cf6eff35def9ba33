"""Hands over gradients as a backward pass makes them: those of the parameters, and those that flow between layers."""

from collections.abc import Callable, Iterator
from typing import Any

from tcbench.core.numerics import GradientKind
from tcbench.engine.accelerators.protocol import current
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.layers import link_name

Observe = Callable[[GradientKind, str, Any], None]
"""Told of one array of gradients: its kind, its layer ("stem", "block2.b", "head"), the array on the host."""


def on_host(array: Any) -> Any:
    """The array in the host's memory."""
    return current().download(array)


def layers_of(model: Any) -> Iterator[tuple[str, Any]]:
    """Each parameter with the name of its layer."""
    for path, parameter in model.namedparams():
        yield link_name(path.rpartition("/")[0]), parameter


class FlowingGradients(chainer.FunctionHook):
    """A context manager: while it is held, `observe` is told of the gradient that reaches the output of each function
    that has a filter or weight matrix of the model."""

    name = "tcbench.flow"

    def __init__(self, model: Any, observe: Observe) -> None:
        super().__init__()
        # Filters and the classifier's matrix alone: what has 1 dimension belongs to batch normalisation, or is a bias.
        self._layers = {id(p.node): layer for layer, p in layers_of(model) if p.array.ndim > 1}
        self._observe = observe

    def backward_preprocess(self, function: Any, in_data: Any, out_grad_data: Any) -> None:
        for node in function.inputs:
            layer = self._layers.get(id(node))
            if layer is not None and out_grad_data[0] is not None:
                self._observe("activations", layer, on_host(out_grad_data[0]))
