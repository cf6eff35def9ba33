"""VGG with 16 layers of weights.

Source: K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", 2014,
configuration D. As in torchvision's vgg16, average pooling before the classifier makes it accept images of any size; at
224x224 it changes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass

from tcbench.engine.models.geometry import Conv, Dropout, Linear, MaxPool, Named, Network, TiledAverage

_STD = 0.01
"""The standard deviation of the initial weights of fully connected layers, as in torchvision."""


@dataclass(frozen=True)
class Vgg(Network):
    """VGG: stages of 3x3 convolutions, each followed by max pooling, and three fully connected layers. `widths` has the
    channels of each convolution by stage."""

    learning_rate: float = 1e-3
    widths: tuple[tuple[int, ...], ...] = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)
    hidden: int = 4096

    def stages(self, variant: str, n_classes: int) -> Iterator[Named]:
        """Yield the named stages in order. Raises ValueError for an unknown variant."""
        self.check(variant)
        channels = 3
        for number, widths in enumerate(self.widths, start=1):
            for place, width in enumerate(widths, start=1):
                yield f"conv{number}_{place}", Conv(channels, width, 3, bias=True)
                channels = width
            yield f"pool{number}", MaxPool(2, 2)
        yield "average pool", TiledAverage(7)
        yield "fc6", Linear(channels, self.hidden, relu=True, side=7, std=_STD)
        yield "drop6", Dropout(0.5)
        yield "fc7", Linear(self.hidden, self.hidden, relu=True, std=_STD)
        yield "drop7", Dropout(0.5)
        yield "head", Linear(self.hidden, n_classes, std=_STD)


MODELS = (Vgg("vgg16", "K. Simonyan, A. Zisserman, Very Deep Convolutional Networks, 2014, configuration D"),)
