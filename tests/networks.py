"""Thin copies of the networks that are not residual ones, for tests: every kind of stage, few channels."""

from tcbench.engine.models.alexnet import AlexNet
from tcbench.engine.models.googlenet import GoogLeNet
from tcbench.engine.models.resnet import ResNet
from tcbench.engine.models.vgg import Vgg

THIN = {
    "alexnet": (AlexNet("thin alexnet", widths=(16, 16, 24, 16, 16), hidden=32), 63),
    "googlenet-aux": (GoogLeNet("thin googlenet", auxiliary=True, thinner=8), 32),
    "resnet18": (ResNet("thin resnet18", variants=("v1",), blocks_per_stage=(1, 1), bottleneck=False, width=8), 32),
    "vgg16": (Vgg("thin vgg16", widths=((8,), (8, 8), (16,), (16,), (16,)), hidden=32), 32),
}
"""Network and side of its images, by the model whose copy it is."""
