"""Networks as numbers, without a framework: stages, of which follow parameters, arithmetic and layers.

A network is a sequence of named stages. Each backend builds a stage of its own parts; nothing else looks inside. Sizes
are of square images and square windows."""

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
    """A convolution followed by batch normalisation, or by the addition of a bias if `bias`; then by ReLU if `relu`.
    `pad`: by default what keeps the image's size at stride 1."""

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
    """Convolutions around a shortcut, which the last of them adds before its ReLU: two (basic) or three (bottleneck).
    `shortcut` is None where the block's input is added as it is."""

    convs: tuple[Conv, ...]
    shortcut: Conv | None


@dataclass(frozen=True)
class MaxPool:
    """Maxima over windows. `ceil`: a last window that begins inside the image counts although it ends outside."""

    ksize: int
    stride: int
    pad: int = 0
    ceil: bool = False


@dataclass(frozen=True)
class GlobalAverage:
    """Means over the whole image: (N, C)."""


@dataclass(frozen=True)
class TiledAverage:
    """Means over `out` x `out` windows, as `tcbench.engine.work.TiledAverageForward` has them: so a classifier that was
    made for one size of images takes any."""

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
    """In training each value is zero with the probability `ratio`, else x / (1 - ratio)."""

    ratio: float


@dataclass(frozen=True)
class Linear:
    """A product with a matrix, and a bias; then ReLU if `relu`. Its input is a vector, or the map of `in_features`
    channels and `side` x `side` pixels. `std`: the standard deviation of its initial weights; None: He's, as of
    convolutions."""

    in_features: int
    out_features: int
    relu: bool = False
    side: int = 1
    std: float | None = None


@dataclass(frozen=True)
class Branches:
    """Sequences beside each other on one input, whose outputs are concatenated along channels."""

    branches: tuple[tuple["Named", ...], ...]


@dataclass(frozen=True)
class Auxiliary:
    """A classifier on what passes by, for training alone: its loss is added with a weight."""

    stages: tuple["Named", ...]
    weight: float


Stage = Conv | Block | MaxPool | GlobalAverage | TiledAverage | Lrn | Dropout | Linear | Branches | Auxiliary
Named = tuple[str, Stage]


Made = TypeVar("Made")


@functools.lru_cache(maxsize=64)
def _parameters(maker: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(maker).parameters)


def build(stage: Stage, makers: Mapping[type[Stage], Callable[..., Made]], reader: str, *place: Any) -> Made:
    """What a reader makes of a stage: its maker is called with a place and the stage's fields by name. Raises
    SelectionError for a field that the maker does not take, unless it has its default: somebody who does not read, say,
    `groups` would build another network without a word."""
    maker = next((maker for kind, maker in makers.items() if isinstance(stage, kind)), None)
    if maker is None:
        raise SelectionError(f"{reader} builds no {type(stage).__name__}: expected one of its makers to take {stage}")
    values = dict(vars(stage))
    for name in values.keys() - _parameters(maker):
        default = next(field.default for field in dataclasses.fields(stage) if field.name == name)
        if values.pop(name) != default:
            where = getattr(maker, "func", maker).__module__
            raise SelectionError(
                f"{reader} does not read '{name}' of {stage}: expected its maker in {where} to take it"
            )
    return maker(*place, **values)


Kind = Literal["conv", "max_pool", "average_pool", "tiled_average", "lrn", "dropout", "concat", "fc"]


@dataclass(frozen=True)
class Layer:
    """One place in a network: `conv` (batch normalisation follows, or a `bias`, then the addition of a shortcut if
    `add`, then ReLU if `relu`), `max_pool`, `average_pool` (over the whole image), `tiled_average`, `lrn`, `dropout`,
    `concat` (of parts with `in_channels`' channels in all) or `fc` (with a bias; of maps in a window of their size).
    Sizes are of square images. `first`: its input is the image, which needs no gradient. `ceil` as in MaxPool, `parts`:
    the channels that are concatenated, `stage`: of `lrn` and `dropout`, their settings."""

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
        """Multiply-accumulates for one image's forward pass; of convolutions and matrix products alone."""
        if self.kind not in ("conv", "fc"):
            return 0
        return self.in_channels * self.out_channels * (self.ksize * self.out_size) ** 2

    @property
    def parameters(self) -> int:
        """Trained values: filters or a matrix, and batch normalisation's scale and shift, or a bias."""
        if self.kind not in ("conv", "fc"):
            return 0
        vectors = 1 if self.bias else 2
        return self.in_channels * self.out_channels * self.ksize**2 + vectors * self.out_channels


@dataclass(frozen=True)
class Network:
    """A network that says which stages it has. `source`: the publication that defines it. `min_image_size`: the side,
    in pixels, of the smallest image that leaves no empty feature map. `learning_rate`: the highest that is tried; one
    without batch normalisation diverges at rates that others train at."""

    name: str
    source: str = ""
    variants: tuple[str, ...] = ("v1",)
    min_image_size: int = 32
    learning_rate: float = math.inf

    def stages(self, variant: str, n_classes: int) -> Iterator[Named]:
        """The stages in order, by name; the last gives the logits. Raises ValueError for an unknown variant."""
        raise NotImplementedError

    def check(self, variant: str) -> None:
        """Raises ValueError for a variant that there is not."""
        if variant not in self.variants:
            raise ValueError(f"unknown variant {variant!r}, expected one of {', '.join(self.variants)}")

    def parameters(self, n_classes: int) -> int:
        """Number of trained values; the same for every variant and size of images."""
        return sum(layer.parameters for layer in self.layers(self.variants[0], self.min_image_size, n_classes))

    def macs(self, variant: str, image_size: int, n_classes: int) -> int:
        """Multiply-accumulates of the convolutions and matrix products for one image's forward pass."""
        return sum(layer.macs for layer in self.layers(variant, image_size, n_classes))

    def layers(self, variant: str, image_size: int, n_classes: int) -> Iterator[Layer]:
        """All layers of a forward pass in order, named by stage; in a block "block1.a" and so on, shortcut first."""
        layers = _Walk(image_size).sequence("", self.stages(variant, n_classes))
        yield replace(next(layers), first=True)
        yield from layers


class _Walk:
    """Follows the channels and the side of an image through stages."""

    def __init__(self, size: int, channels: int = 0) -> None:
        self.channels = channels
        self.size = size

    def sequence(self, path: str, stages: Iterable[Named]) -> Iterator[Layer]:
        """The layers of stages below a path such as "3a."."""
        for name, stage in stages:
            yield from self.stage(f"{path}{name}", stage)

    def stage(self, name: str, stage: Stage) -> Iterator[Layer]:
        return build(stage, _LAYERS, "the list of layers", self, name)

    def conv(
        self, name: str, in_channels: int, out_channels: int, ksize: int, stride: int, relu: bool, bias: bool, pad: int
    ) -> Iterator[Layer]:
        before = self.size
        self.channels, self.size = out_channels, _out(before, ksize, stride, pad)
        sizes = in_channels, out_channels, before, self.size
        yield Layer(name, "conv", *sizes, ksize, stride, pad, relu=relu, bias=bias)

    def block(self, name: str, convs: tuple[Conv, ...], shortcut: Conv | None) -> Iterator[Layer]:
        if shortcut:
            yield from _Walk(self.size).stage(f"{name}.shortcut", shortcut)
        for part, conv in zip("abc", convs, strict=False):
            for layer in self.stage(f"{name}.{part}", conv):
                yield replace(layer, add=conv is convs[-1])

    def branches(self, name: str, branches: tuple[tuple[Named, ...], ...]) -> Iterator[Layer]:
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
        self.channels, self.size = out_features, 1
        yield Layer(name, "fc", in_features, out_features, side, 1, side, relu=relu, bias=True)

    def _to(self, name: str, kind: Kind, size: int) -> Layer:
        """A layer from here to so many pixels, where the walk goes on."""
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
