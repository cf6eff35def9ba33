"""GoogLeNet with biases and local response normalisation, without batch normalisation.

Source: C. Szegedy et al., "Going Deeper with Convolutions", 2014, table 1 and section 5. Details that the paper leaves
open (normalisation over 5 channels, windows that may end outside the image) are as in Caffe's bvlc_googlenet. The
auxiliary classifiers average to 4x4, at 224x224 as in the paper over 5x5 windows with stride 3."""

from collections.abc import Iterator
from dataclasses import dataclass

from tcbench.engine.models import geometry

_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""The channels of each inception module: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5 and pool proj."""
_STD = 0.01
"""The standard deviation of a classifier's initial weights."""
_POOL = geometry.MaxPool(3, 2, ceil=True)


@dataclass(frozen=True)
class GoogLeNet(geometry.Network):
    """GoogLeNet. With `auxiliary` it has two auxiliary classifiers, whose losses have the weight 0.3. All numbers of
    channels are divided by `thinner`."""

    learning_rate: float = 1e-3
    auxiliary: bool = False
    thinner: int = 1

    def stages(self, variant: str, n_classes: int) -> Iterator[geometry.Named]:
        """Yield the named stages in order. Raises ValueError for an unknown variant."""
        self.check(variant)
        first, second = 64 // self.thinner, 192 // self.thinner
        yield "conv1", geometry.Conv(3, first, 7, 2, bias=True)
        yield "pool1", _POOL
        yield "norm1", geometry.Lrn()
        yield "conv2 reduce", geometry.Conv(first, first, 1, bias=True)
        yield "conv2", geometry.Conv(first, second, 3, bias=True)
        yield "norm2", geometry.Lrn()
        yield "pool2", _POOL
        channels = second
        for name, widths in _INCEPTIONS.items():
            thin = [width // self.thinner for width in widths]
            yield name, _inception(channels, *thin)
            channels = thin[0] + thin[2] + thin[4] + thin[5]
            if self.auxiliary and name in ("4a", "4d"):
                yield f"auxiliary {name}", geometry.Auxiliary(self._classifier(channels, n_classes), 0.3)
            if name in ("3b", "4e"):
                yield f"pool{name[0]}", _POOL
        yield "average pool", geometry.GlobalAverage()
        yield "drop", geometry.Dropout(0.4)
        yield "head", geometry.Linear(channels, n_classes, std=_STD)

    def _classifier(self, channels: int, n_classes: int) -> tuple[geometry.Named, ...]:
        """Return the stages of an auxiliary classifier."""
        narrow, hidden = 128 // self.thinner, 1024 // self.thinner
        return (
            ("average pool", geometry.TiledAverage(4)),
            ("conv", geometry.Conv(channels, narrow, 1, bias=True)),
            ("fc", geometry.Linear(narrow, hidden, relu=True, side=4)),
            ("drop", geometry.Dropout(0.7)),
            ("head", geometry.Linear(hidden, n_classes, std=_STD)),
        )


def _inception(
    channels: int, out_1x1: int, mid_3x3: int, out_3x3: int, mid_5x5: int, out_5x5: int, out_pool: int
) -> geometry.Branches:
    """Return an inception module with these numbers of channels."""

    def conv(inputs: int, outputs: int, ksize: int) -> geometry.Conv:
        return geometry.Conv(inputs, outputs, ksize, bias=True)

    return geometry.Branches(
        (
            (("1x1", conv(channels, out_1x1, 1)),),
            (("3x3 reduce", conv(channels, mid_3x3, 1)), ("3x3", conv(mid_3x3, out_3x3, 3))),
            (("5x5 reduce", conv(channels, mid_5x5, 1)), ("5x5", conv(mid_5x5, out_5x5, 5))),
            (("pool", geometry.MaxPool(3, 1, 1)), ("pool proj", conv(channels, out_pool, 1))),
        )
    )


_SOURCE = "C. Szegedy et al., Going Deeper with Convolutions, 2014, table 1, with LRN"
MODELS = (
    GoogLeNet("googlenet", f"{_SOURCE}, without its auxiliary classifiers"),
    GoogLeNet("googlenet-aux", f"{_SOURCE} and its auxiliary classifiers", auxiliary=True),
)
