"""AlexNet of one tower, without local response normalisation.

Source: A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014, section 5; as in
torchvision's alexnet, means over windows before the classifier let it take images of any size: at 224x224 they leave
the map as it is."""

from collections.abc import Iterator
from dataclasses import dataclass

from tcbench.engine.models.geometry import Conv, Dropout, Linear, MaxPool, Named, Network, TiledAverage

_STD = 0.01
"""Of initial weights: A. Krizhevsky, I. Sutskever, G. Hinton, "ImageNet Classification with Deep Convolutional Neural
Networks", 2012, section 5."""


@dataclass(frozen=True)
class AlexNet(Network):
    """Five convolutions, `widths` channels wide, and three matrix products."""

    min_image_size: int = 63
    learning_rate: float = 1e-3
    widths: tuple[int, int, int, int, int] = (64, 192, 384, 256, 256)
    hidden: int = 4096

    def stages(self, variant: str, n_classes: int) -> Iterator[Named]:
        self.check(variant)
        one, two, three, four, five = self.widths
        yield "conv1", Conv(3, one, 11, 4, bias=True, pad=2)
        yield "pool1", MaxPool(3, 2)
        yield "conv2", Conv(one, two, 5, bias=True)
        yield "pool2", MaxPool(3, 2)
        yield "conv3", Conv(two, three, 3, bias=True)
        yield "conv4", Conv(three, four, 3, bias=True)
        yield "conv5", Conv(four, five, 3, bias=True)
        yield "pool5", MaxPool(3, 2)
        yield "average pool", TiledAverage(6)
        yield "drop6", Dropout(0.5)
        yield "fc6", Linear(five, self.hidden, relu=True, side=6, std=_STD)
        yield "drop7", Dropout(0.5)
        yield "fc7", Linear(self.hidden, self.hidden, relu=True, std=_STD)
        yield "head", Linear(self.hidden, n_classes, std=_STD)


MODELS = (AlexNet("alexnet", "A. Krizhevsky, One weird trick, 2014, section 5: one tower, no LRN"),)
