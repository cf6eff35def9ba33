"""Descriptions of networks without a framework.

A network is a sequence of named stages, from which its layers, parameters and arithmetic are derived. Each backend
builds the stages in its own way. All images and windows are square."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from tcbench.core.errors import SelectionError


@dataclass(frozen=True)
class Conv:
    """A convolution followed by batch normalisation (or a bias if `bias`), and by ReLU if `relu`. The default `pad`
    keeps the image's size at stride 1."""

    in_channels: int
    out_channels: int
    ksize: int
    stride: int = 1
    relu: bool = True
    bias: bool = False
    pad: int = -1

    def __post_init__(self) -> None:
        if self.pad < 0:
            object.__setattr__(self, "pad", self.ksize // 2)


@dataclass(frozen=True)
class Block:
    """A residual block of two (basic) or three (bottleneck) convolutions. The shortcut is added before the last ReLU.
    If `shortcut` is None, the block's input itself is added."""

    convs: tuple[Conv, ...]
    shortcut: Conv | None


@dataclass(frozen=True)
class MaxPool:
    """Max pooling. With `ceil`, the last window may end outside the image."""

    ksize: int
    stride: int
    pad: int = 0
    ceil: bool = False


@dataclass(frozen=True)
class GlobalAverage:
    """Global average pooling: the result has the shape (N, C)."""


@dataclass(frozen=True)
class TiledAverage:
    """Average pooling to `out` x `out` pixels (`tcbench.engine.work.TiledAverageForward`), by which a classifier for
    one image size accepts any size."""

    out: int


@dataclass(frozen=True)
class Lrn:
    """Local response normalisation across channels: x / (k + alpha * sum of squares over `size` channels) ** beta."""

    size: int = 5
    alpha: float = 1e-4 / 5
    beta: float = 0.75
    k: float = 1.0


@dataclass(frozen=True)
class Dropout:
    """Dropout: in training each activation x becomes 0 with the probability `ratio`, else x / (1 - ratio)."""

    ratio: float


@dataclass(frozen=True)
class Linear:
    """A fully connected layer with a bias, followed by ReLU if `relu`. Its input is a vector, or a feature map with
    `in_features` channels and `side` x `side` pixels. `std` is the standard deviation of the initial weights; None
    means He's, as for convolutions."""

    in_features: int
    out_features: int
    relu: bool = False
    side: int = 1
    std: float | None = None


@dataclass(frozen=True)
class Branches:
    """Parallel sequences of stages with the same input. Their outputs are concatenated along channels."""

    branches: tuple[tuple["Named", ...], ...]


@dataclass(frozen=True)
class Auxiliary:
    """An auxiliary classifier on the current feature map. In training its loss is added with a weight."""

    stages: tuple["Named", ...]
    weight: float


Stage = Conv | Block | MaxPool | GlobalAverage | TiledAverage | Lrn | Dropout | Linear | Branches | Auxiliary
Named = tuple[str, Stage]


Built = TypeVar("Built")


@functools.lru_cache(maxsize=64)
def _parameters(maker: Callable[..., Any]) -> frozenset[str]:
    """Return the names of a function's parameters."""
    return frozenset(inspect.signature(maker).parameters)


def build(stage: Stage, makers: Mapping[type[Stage], Callable[..., Built]], reader: str, *arguments: Any) -> Built:
    """Build a stage: call the maker of its type with `arguments` and the stage's fields by name; return the result.

    Raises SelectionError if there is no maker for the type, or if the maker does not take a field, unless the field has
    its default. Otherwise a maker that ignores a field such as `groups` would silently build a different network.
    `reader` names the owner of the makers in the message."""
    maker = next((maker for kind, maker in makers.items() if isinstance(stage, kind)), None)
    if maker is None:
        raise SelectionError(f"{reader} does not support {type(stage).__name__}: add a function that builds {stage}")
    values = dict(vars(stage))
    for name in values.keys() - _parameters(maker):
        default = next(field.default for field in dataclasses.fields(stage) if field.name == name)
        if values.pop(name) != default:
            where = getattr(maker, "func", maker).__module__
            raise SelectionError(
                f"{reader} does not use '{name}' of {stage}: add this parameter to its function in {where}"
            )
    return maker(*arguments, **values)


Kind = Literal["conv", "max_pool", "average_pool", "tiled_average", "lrn", "dropout", "concat", "fc"]


@dataclass(frozen=True)
class Layer:
    """A layer of a network, with its shapes. Its kinds are:

    - `conv`: followed by batch normalisation or a `bias`, then the addition of a shortcut if `add`, then ReLU if
      `relu`.
    - `fc`: a fully connected layer with a bias, on a feature map of `ksize` x `ksize` pixels.
    - `concat`: a concatenation of branches with `parts` channels.
    - `lrn`, `dropout`: `stage` has their settings.
    - `max_pool` (with `ceil` as in MaxPool), `average_pool` (over the whole image), `tiled_average`.

    `first` is set if the input is the image, which needs no gradient."""

    name: str
    kind: Kind
    in_channels: int
    out_channels: int
    in_size: int
    out_size: int
    ksize: int = 1
    stride: int = 1
    pad: int = 0
    relu: bool = False
    add: bool = False
    first: bool = False
    bias: bool = False
    ceil: bool = False
    parts: tuple[int, ...] = ()
    stage: Stage | None = None

    @property
    def macs(self) -> int:
        """Multiply-accumulates of a convolution or fully connected layer in the forward pass of one image."""
        if self.kind not in ("conv", "fc"):
            return 0
        return self.in_channels * self.out_channels * (self.ksize * self.out_size) ** 2

    @property
    def parameters(self) -> int:
        """The number of trained parameters: weights, and a bias or batch normalisation's scale and shift."""
        if self.kind not in ("conv", "fc"):
            return 0
        vectors = 1 if self.bias else 2
        return self.in_channels * self.out_channels * self.ksize**2 + vectors * self.out_channels


@dataclass(frozen=True)
class Network:
    """A network that is defined by its stages. `source` is the publication. `min_image_size` is the side, in pixels, of
    the smallest image for which no feature map is empty. `learning_rate` is the highest rate to use: networks without
    batch normalisation diverge at rates at which others train."""

    name: str
    source: str = ""
    variants: tuple[str, ...] = ("v1",)
    min_image_size: int = 32
    learning_rate: float = math.inf

    def stages(self, variant: str, n_classes: int) -> Iterator[Named]:
        """Yield the named stages in order. The last returns the logits. Raises ValueError for an unknown variant."""
        raise NotImplementedError

    def check(self, variant: str) -> None:
        """Check that a variant exists. Raises ValueError if it does not."""
        if variant not in self.variants:
            raise ValueError(f"unknown variant {variant!r}, expected one of {', '.join(self.variants)}")

    def parameters(self, n_classes: int) -> int:
        """Return the number of trained parameters, which is the same for all variants and image sizes."""
        return sum(layer.parameters for layer in self.layers(self.variants[0], self.min_image_size, n_classes))

    def macs(self, variant: str, image_size: int, n_classes: int) -> int:
        """Return the multiply-accumulates of convolutions and fully connected layers per image in the forward pass."""
        return sum(layer.macs for layer in self.layers(variant, image_size, n_classes))

    def layers(self, variant: str, image_size: int, n_classes: int) -> Iterator[Layer]:
        """Yield all layers of a forward pass in order, named by their stage. In a block the shortcut comes first, then
        "block1.a" and so on."""
        layers = _Walk(image_size).sequence("", self.stages(variant, n_classes))
        yield replace(next(layers), first=True)
        yield from layers


class _Walk:
    """A walk through stages that keeps track of the channels and the side of the image."""

    def __init__(self, size: int, channels: int = 0) -> None:
        self.channels = channels
        self.size = size

    def sequence(self, path: str, stages: Iterable[Named]) -> Iterator[Layer]:
        """Yield the layers of stages, with names that begin with a path such as "3a."."""
        for name, stage in stages:
            yield from self.stage(f"{path}{name}", stage)

    def stage(self, name: str, stage: Stage) -> Iterator[Layer]:
        return build(stage, _LAYERS, "the list of layers", self, name)

    def conv(
        self, name: str, in_channels: int, out_channels: int, ksize: int, stride: int, relu: bool, bias: bool, pad: int
    ) -> Iterator[Layer]:
        """Yield the layer of a convolution and set the channels and size after it."""
        before = self.size
        self.channels, self.size = out_channels, _out(before, ksize, stride, pad)
        sizes = in_channels, out_channels, before, self.size
        yield Layer(name, "conv", *sizes, ksize, stride, pad, relu=relu, bias=bias)

    def block(self, name: str, convs: tuple[Conv, ...], shortcut: Conv | None) -> Iterator[Layer]:
        """Yield the layers of a residual block: the shortcut's first, then those of its convolutions."""
        if shortcut:
            yield from _Walk(self.size).stage(f"{name}.shortcut", shortcut)
        for part, conv in zip("abc", convs, strict=False):
            for layer in self.stage(f"{name}.{part}", conv):
                yield replace(layer, add=conv is convs[-1])

    def branches(self, name: str, branches: tuple[tuple[Named, ...], ...]) -> Iterator[Layer]:
        """Yield the layers of all branches and of the concatenation after them."""
        walks = [_Walk(self.size, self.channels) for _ in branches]
        for walk, branch in zip(walks, branches, strict=True):
            yield from walk.sequence(f"{name}.", branch)
        parts = tuple(walk.channels for walk in walks)
        self.channels, self.size = sum(parts), walks[0].size
        yield Layer(name, "concat", self.channels, self.channels, self.size, self.size, parts=parts)

    def auxiliary(self, name: str, stages: tuple[Named, ...], weight: float) -> Iterator[Layer]:
        yield from _Walk(self.size, self.channels).sequence(f"{name}.", stages)

    def max_pool(self, name: str, ksize: int, stride: int, pad: int, ceil: bool) -> Iterator[Layer]:
        layer = self._to(name, "max_pool", _out(self.size, ksize, stride, pad, ceil=ceil))
        yield replace(layer, ksize=ksize, stride=stride, pad=pad, ceil=ceil)

    def global_average(self, name: str) -> Iterator[Layer]:
        yield self._to(name, "average_pool", 1)

    def tiled_average(self, name: str, out: int) -> Iterator[Layer]:
        yield self._to(name, "tiled_average", out)

    def lrn(self, name: str, size: int, alpha: float, beta: float, k: float) -> Iterator[Layer]:
        yield replace(self._to(name, "lrn", self.size), stage=Lrn(size, alpha, beta, k))

    def dropout(self, name: str, ratio: float) -> Iterator[Layer]:
        yield replace(self._to(name, "dropout", self.size), stage=Dropout(ratio))

    def linear(
        self, name: str, in_features: int, out_features: int, relu: bool, side: int, std: float | None
    ) -> Iterator[Layer]:
        """Yield the layer of a matrix product over all pixels of its input."""
        self.channels, self.size = out_features, 1
        yield Layer(name, "fc", in_features, out_features, side, 1, side, relu=relu, bias=True)

    def _to(self, name: str, kind: Kind, size: int) -> Layer:
        """Return a layer that keeps the channels and changes the image's side to `size`, the next layer's input."""
        before, self.size = self.size, size
        return Layer(name, kind, self.channels, self.channels, before, size)


_LAYERS: dict[type[Stage], Callable[..., Iterator[Layer]]] = {
    Conv: _Walk.conv,
    Block: _Walk.block,
    Branches: _Walk.branches,
    Auxiliary: _Walk.auxiliary,
    MaxPool: _Walk.max_pool,
    GlobalAverage: _Walk.global_average,
    TiledAverage: _Walk.tiled_average,
    Lrn: _Walk.lrn,
    Dropout: _Walk.dropout,
    Linear: _Walk.linear,
}


def _out(size: int, ksize: int, stride: int, pad: int, *, ceil: bool = False) -> int:
    return (size + 2 * pad - ksize + (stride - 1 if ceil else 0)) // stride + 1
