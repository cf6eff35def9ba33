"""Tells a listener of each layer as it runs, forward and backward: what a profiled pass sees inside a phase.

Chainer calls hooks around every link and every function. A layer is a function of the model or of the loss; it is named
after the link that called it and what it does: "stem/conv", "block3.c/bn", "head/fc", "max pool", "loss". Backward, a
layer is its function's whole gradient, under the same name. A recorded graph (static_graph) calls no hooks inside: it
was told of its layers when it was recorded, and tells of them itself."""

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
    """A function that is many layers, and tells `layers` of them itself."""

    layers: Layers | None = None


class LayerHooks:
    """While it is held, as often as one likes, `layers` is told of every layer of `model`."""

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
    """A link's path as people call it: "/block3/c" is "block3.c"; the model itself has no name."""
    return path.strip("/").replace("/", ".")


class _Links(chainer.LinkHook):
    """Knows which link runs."""

    name = "tcbench.links"

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self._names = names
        self._running: list[str] = []

    @property
    def current(self) -> str:
        return self._running[-1] if self._running else ""

    def forward_preprocess(self, args: Any) -> None:
        self._running.append(self._names.get(id(args.link), self.current))

    def forward_postprocess(self, args: Any) -> None:
        self._running.pop()


class _Functions(chainer.FunctionHook):
    """Tells of functions. What runs inside another, as a gradient's own functions do, is part of that one."""

    name = "tcbench.layers"

    def __init__(self, links: _Links, layers: Layers) -> None:
        super().__init__()
        self._links = links
        self._layers = layers
        self._depth = 0
        # By identity: a function of this pass lives until its gradient is done.
        self._names: dict[int, str] = {}

    def forward_preprocess(self, function: Any, in_data: Any) -> None:
        if isinstance(function, LayeredNode):
            function.layers = self._layers
            return
        if self._depth == 0:
            name = _name(self._links.current, function, len(in_data))
            self._names[id(function)] = name
            self._layers.begin(name)
        self._depth += 1

    def backward_preprocess(self, function: Any, in_data: Any, out_grad_data: Any) -> None:
        if isinstance(function, LayeredNode):
            return
        if self._depth == 0:
            self._layers.begin(self._names.pop(id(function), "") or _name("", function, len(in_data)))
        self._depth += 1

    def forward_postprocess(self, function: Any, *_: Any) -> None:
        if isinstance(function, LayeredNode):
            return
        self._depth -= 1
        if self._depth == 0:
            self._layers.end()

    backward_postprocess = forward_postprocess


def _name(link: str, function: Any, n_inputs: int) -> str:
    kind = getattr(function, "kind", type(function).__name__)
    what = _SHORT.get(kind, kind)
    if what == "bn":
        what += "+add" * (n_inputs > 3) + "+relu" * bool(getattr(function, "relu", False))
    elif what == "bias":
        what += "+relu" * function.relu
    return f"{link}/{what}" if link not in ("", what) else what
