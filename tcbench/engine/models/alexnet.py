"""AlexNet with one tower and without local response normalisation.

Source: A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014, section 5. As in
torchvision's alexnet, average pooling before the classifier makes it accept images of any size; at 224x224 it changes
nothing."""

from collections.abc import Iterator
from dataclasses import dataclass

from tcbench.engine.models.geometry import Conv, Dropout, Linear, MaxPool, Named, Network, TiledAverage

_STD = 0.01
"""The standard deviation of initial weights: A. Krizhevsky, I. Sutskever, G. Hinton, "ImageNet Classification with Deep
Convolutional Neural Networks", 2012, section 5."""


@dataclass(frozen=True)
class AlexNet(Network):
    """AlexNet: five convolutions with `widths` channels and three fully connected layers."""

    min_image_size: int = 63
    learning_rate: float = 1e-3
    widths: tuple[int, int, int, int, int] = (64, 192, 384, 256, 256)
    hidden: int = 4096

    def stages(self, variant: str, n_classes: int) -> Iterator[Named]:
        """Yield the named stages in order. Raises ValueError for an unknown variant."""
        self.check(variant)
        width1, width2, width3, width4, width5 = self.widths
        yield "conv1", Conv(3, width1, 11, 4, bias=True, pad=2)
        yield "pool1", MaxPool(3, 2)
        yield "conv2", Conv(width1, width2, 5, bias=True)
        yield "pool2", MaxPool(3, 2)
        yield "conv3", Conv(width2, width3, 3, bias=True)
        yield "conv4", Conv(width3, width4, 3, bias=True)
        yield "conv5", Conv(width4, width5, 3, bias=True)
        yield "pool5", MaxPool(3, 2)
        yield "average pool", TiledAverage(6)
        yield "drop6", Dropout(0.5)
        yield "fc6", Linear(width5, self.hidden, relu=True, side=6, std=_STD)
        yield "drop7", Dropout(0.5)
        yield "fc7", Linear(self.hidden, self.hidden, relu=True, std=_STD)
        yield "head", Linear(self.hidden, n_classes, std=_STD)


MODELS = (AlexNet("alexnet", "A. Krizhevsky, One weird trick, 2014, section 5: one tower, no LRN"),)
