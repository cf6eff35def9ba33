"""Hooks that report each layer to a listener as it runs, forward and backward, for profiles.

Chainer calls hooks around every link and every function. A layer is a function of the model or of the loss, named after
the link that called it and its kind: "stem/conv", "block3.c/bn", "head/fc", "max pool", "loss". Backward, a layer is
the whole gradient of its function, under the same name. Inside a recorded graph (static_graph) Chainer calls no hooks:
the graph noted its layers when it was recorded, and reports them itself."""

from typing import Any

from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.ops.node import Node
from tcbench.engine.session import Layers

_SHORT = {
    "Convolution": "conv",
    "ConvolutionStats": "conv+stats",
    "Im2colConvolution": "im2col+conv",
    "BatchNorm": "bn",
    "BatchNormFromSums": "bn",
    "Relu": "relu",
    "AddNode": "add",
    "Bias": "bias",
    "Concatenation": "concat",
    "LocalResponseNormalization": "lrn",
    "Dropout": "dropout",
    "MaxPooling": "max pool",
    "TiledAveragePooling": "average pool",
    "GlobalAveragePooling": "average pool",
    "Linear": "fc",
    "SoftmaxCrossEntropy": "loss",
}


class LayeredNode(Node):
    """A function that contains many layers, and reports them to `layers` itself."""

    layers: Layers | None = None


class LayerHooks:
    """A context in which every layer of `model` is reported to `layers`. It may be entered repeatedly."""

    def __init__(self, model: Any, layers: Layers) -> None:
        self._links = _Links({id(link): link_name(path) for path, link in model.namedlinks()})
        self._functions = _Functions(self._links, layers)

    def __enter__(self) -> None:
        self._links.__enter__()
        self._functions.__enter__()

    def __exit__(self, *_: Any) -> None:
        self._functions.__exit__(*_)
        self._links.__exit__(*_)


def link_name(path: str) -> str:
    """Return the display name of a link's path: "/block3/c" becomes "block3.c", and the model itself ""."""
    return path.strip("/").replace("/", ".")


class _Links(chainer.LinkHook):
    """A hook that keeps track of the link that is running."""

    name = "tcbench.links"

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self._names = names
        self._running: list[str] = []

    @property
    def current(self) -> str:
        """The name of the running link, or ""."""
        return self._running[-1] if self._running else ""

    def forward_preprocess(self, args: Any) -> None:
        self._running.append(self._names.get(id(args.link), self.current))

    def forward_postprocess(self, args: Any) -> None:
        self._running.pop()


class _Functions(chainer.FunctionHook):
    """A hook that reports functions. A function that runs inside another one counts as part of it."""

    name = "tcbench.layers"

    def __init__(self, links: _Links, layers: Layers) -> None:
        super().__init__()
        self._links = links
        self._layers = layers
        self._depth = 0
        # By id, which stays valid because a function lives until its gradient has been computed.
        self._names: dict[int, str] = {}

    def forward_preprocess(self, function: Any, in_data: Any) -> None:
        """Report the begin of an outermost function, and remember its name for the backward pass."""
        if isinstance(function, LayeredNode):
            function.layers = self._layers
            return
        if self._depth == 0:
            name = _name(self._links.current, function, len(in_data))
            self._names[id(function)] = name
            self._layers.begin(name)
        self._depth += 1

    def backward_preprocess(self, function: Any, in_data: Any, out_grad_data: Any) -> None:
        """Report the begin of an outermost function's gradient, under the function's name."""
        if isinstance(function, LayeredNode):
            return
        if self._depth == 0:
            self._layers.begin(self._names.pop(id(function), "") or _name("", function, len(in_data)))
        self._depth += 1

    def forward_postprocess(self, function: Any, *_: Any) -> None:
        """Report the end of an outermost function or gradient."""
        if isinstance(function, LayeredNode):
            return
        self._depth -= 1
        if self._depth == 0:
            self._layers.end()

    backward_postprocess = forward_postprocess


def _name(link: str, function: Any, n_inputs: int) -> str:
    """Return the layer's name, such as "block3.c/bn+relu"."""
    kind = getattr(function, "kind", type(function).__name__)
    name = _SHORT.get(kind, kind)
    if name == "bn":
        name += "+add" * (n_inputs > 3) + "+relu" * bool(getattr(function, "relu", False))
    elif name == "bias":
        name += "+relu" * function.relu
    return f"{link}/{name}" if link not in ("", name) else name
